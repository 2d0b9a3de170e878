"""The table that the clients of all languages share: clients/conformance."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from table import OTHER, async_call, call, given, in_seconds, rows

import sandboxctl
from sandboxctl import AsyncSandbox, Sandbox, SandboxError

CASES = [case for name in ("files", "errors", "executions", "processes") for case in rows(name)]


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
    with Sandbox.create(**place, **in_seconds(given(case.get("sandbox", {})))) as sandbox:
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
    async with await AsyncSandbox.create(**place, **in_seconds(given(case.get("sandbox", {})))) as sandbox:
        for number, step in enumerate(case["steps"], 1):
            at = f"step {number}, {step['call']} {step['with']}"
            if "fails" in step:
                with pytest.raises(SandboxError) as failure:
                    await async_call(sandbox, step)
                fails(failure.value, step, at)
            else:
                compare(await async_call(sandbox, step), step["gives"], at)
