"""The table that the clients of all languages share: clients/conformance."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

import sandboxctl
from sandboxctl import AsyncSandbox, Sandbox, SandboxError

TABLE = Path(__file__).parents[2] / "conformance"
FILES = [TABLE / f"{name}.json" for name in ("files", "errors", "executions")]
CASES = [case for file in FILES for case in json.loads(file.read_text())]
# Words that Python has for itself.
OTHER = {"from": "source", "to": "target"}


def given(value: Any) -> Any:
    """Arguments of the table as this client has them."""
    match value:
        case {"b64": str(text)} if len(value) == 1:
            return base64.b64decode(text)
        case dict():
            return {name: given(member) for name, member in value.items()}
        case list():
            return [given(each) for each in value]
    return value


def arguments(step: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a step, by their names here."""
    args = {OTHER.get(name, name): given(value) for name, value in step["with"].items()}
    if "timeout_ms" in args:
        args["timeout"] = args.pop("timeout_ms") / 1000
    if "pieces" in args:
        args["content"] = args.pop("pieces")
    return args


def call(sandbox: Sandbox, step: dict[str, Any]) -> Any:
    """Makes a call of the table."""
    args = arguments(step)
    match step["call"]:
        case "files.read_stream":
            with sandbox.files.stream(**args) as parts:
                return b"".join(parts)
        case "files.write_stream":
            return sandbox.files.write(**args)
        case name:
            target: Any = sandbox
            for part in name.split("."):
                target = getattr(target, part)
            return target(**args)


async def async_call(sandbox: AsyncSandbox, step: dict[str, Any]) -> Any:
    """Makes a call of the table."""
    args = arguments(step)
    match step["call"]:
        case "files.read_stream":
            async with sandbox.files.stream(**args) as parts:
                return b"".join([part async for part in parts])
        case "files.write_stream":
            return await sandbox.files.write(**args)
        case name:
            target: Any = sandbox
            for part in name.split("."):
                target = getattr(target, part)
            return await target(**args)


def compare(actual: Any, expected: Any, at: str) -> None:
    """Whether data has at least what is expected."""
    match expected:
        case {"b64": str(text)} if len(expected) == 1:
            assert actual == base64.b64decode(text), at
        case dict():
            for name, member in expected.items():
                found = actual[name] if isinstance(actual, dict) else getattr(actual, OTHER.get(name, name))
                compare(found, member, f"{at}.{name}")
        case list():
            assert len(actual) == len(expected), f"{at}: {actual}"
            for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
                compare(one, other, f"{at}[{number}]")
        case _:
            assert actual == expected, at


def fails(failure: SandboxError, step: dict[str, Any], at: str) -> None:
    """Whether an error is the expected one."""
    members = dict(step["fails"])
    assert type(failure) is getattr(sandboxctl, members.pop("class")), f"{at}: {failure!r}"
    compare(failure, members, at)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_table(place: dict[str, Any], case: dict[str, Any]) -> None:
    with Sandbox.create(**place) as sandbox:
        for number, step in enumerate(case["steps"], 1):
            at = f"step {number}, {step['call']} {step['with']}"
            if "fails" in step:
                with pytest.raises(SandboxError) as failure:
                    call(sandbox, step)
                fails(failure.value, step, at)
            else:
                compare(call(sandbox, step), step["gives"], at)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
async def test_table_for_asyncio(place: dict[str, Any], case: dict[str, Any]) -> None:
    async with await AsyncSandbox.create(**place) as sandbox:
        for number, step in enumerate(case["steps"], 1):
            at = f"step {number}, {step['call']} {step['with']}"
            if "fails" in step:
                with pytest.raises(SandboxError) as failure:
                    await async_call(sandbox, step)
                fails(failure.value, step, at)
            else:
                compare(await async_call(sandbox, step), step["gives"], at)
