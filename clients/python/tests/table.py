"""The calls of the tables that the clients of all languages share: clients/conformance."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from sandboxctl import AsyncProcess, AsyncSandbox, Forward, Process, ProcessEvent, Sandbox

TABLE = Path(__file__).parents[2] / "conformance"
# Words that Python has for itself.
OTHER = {"from": "source", "to": "target"}
# The last process that was started in a sandbox.
STARTED: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a table."""
    return json.loads((TABLE / f"{name}.json").read_text())


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
    other = OTHER if step["call"].startswith("files.") else {}
    args = in_seconds({other.get(name, name): given(value) for name, value in step["with"].items()})
    if "pieces" in args:
        args["content"] = args.pop("pieces")
    return args


def in_seconds(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments with a time as it is given here."""
    args = dict(args)
    for name in ("timeout", "stop_timeout"):
        if f"{name}_ms" in args:
            args[name] = args.pop(f"{name}_ms") / 1000
    return args


def target_of(sandbox: Any, name: str) -> Any:
    """The method of a call."""
    target: Any = sandbox
    parts = name.split(".")
    if parts[0] == "process":
        target = STARTED[sandbox]
        parts = parts[1:]
    for part in parts:
        target = getattr(target, part)
    return target


def exchange(forward: Forward, text: str) -> str:
    """What a forwarded port answers to a text and the end of its direction."""
    with forward, socket.create_connection((forward.host, forward.port), 20) as connection:
        connection.sendall(text.encode())
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read().decode()


class Read:
    """What was read of a process."""

    def __init__(self, until: str | None) -> None:
        self._until = until
        self.stdout_bytes = b""
        self.stdout = self.stderr = ""
        self.omitted = False
        self.exit_code: int | None = None

    def add(self, event: ProcessEvent) -> bool:
        """Adds an event, and says whether it is enough."""
        if event.type == "stderr":
            self.stderr += event.text
        else:
            self.stdout += event.text
            self.stdout_bytes += event.bytes
        self.omitted = self.omitted or event.type == "omitted"
        if event.type == "end":
            self.exit_code = event.exit_code
        return self._until is not None and self._until in self.stdout


def call(sandbox: Sandbox, step: dict[str, Any], **more: Any) -> Any:
    """Makes a call of the table."""
    args = arguments(step) | more
    match step["call"]:
        case "files.read_stream":
            with sandbox.files.stream(**args) as parts:
                return b"".join(parts)
        case "files.write_stream":
            return sandbox.files.write(**args)
        case "process.read" | "process.read_until":
            read = Read(args.get("text"))
            any(read.add(event) for event in STARTED[sandbox])
            return read
        case "commands.follow":
            return list(sandbox.commands.run(**args, background=True))
        case "files.watch":
            during, last, seen = args.pop("during"), args.pop("last"), list[Any]()
            with sandbox.files.watch(**args) as changes:
                for each in during:
                    call(sandbox, each)
                for change in changes:
                    seen.append(change)
                    if [change.change, change.name] == last:
                        break
            return seen
        case "ports.exchange":
            return exchange(sandbox.ports.forward(args["port"]), args["text"])
        case name:
            result = target_of(sandbox, name)(**args)
            if isinstance(result, Process):
                STARTED[sandbox] = result
            return result


async def async_call(sandbox: AsyncSandbox, step: dict[str, Any], **more: Any) -> Any:
    """Makes a call of the table."""
    args = arguments(step) | more
    match step["call"]:
        case "files.read_stream":
            async with sandbox.files.stream(**args) as parts:
                return b"".join([part async for part in parts])
        case "files.write_stream":
            return await sandbox.files.write(**args)
        case "process.read" | "process.read_until":
            read = Read(args.get("text"))
            async with aclosing(STARTED[sandbox].events()) as events:
                async for event in events:
                    if read.add(event):
                        break
            return read
        case "files.watch":
            during, last, seen = args.pop("during"), args.pop("last"), list[Any]()
            async with sandbox.files.watch(**args) as changes:
                for each in during:
                    await async_call(sandbox, each)
                async for change in changes:
                    seen.append(change)
                    if [change.change, change.name] == last:
                        break
            return seen
        case "commands.follow":
            return [event async for event in await sandbox.commands.run(**args, background=True)]
        case "ports.exchange":
            return await asyncio.to_thread(exchange, await sandbox.ports.forward(args["port"]), args["text"])
        case name:
            result = await target_of(sandbox, name)(**args)
            if isinstance(result, AsyncProcess):
                STARTED[sandbox] = result
            return result


def with_half_a_character(sandbox: Sandbox) -> list[Callable[[], object]]:
    """Calls with text that has no bytes, for any transport."""
    half = "\ud83d"
    files, run = sandbox.files, sandbox.commands.run
    return [
        lambda: files.write("a", half),
        lambda: files.write("a", "x" * (5 << 20) + half),
        lambda: files.write(half, "x"),
        lambda: files.write(half, [b"x"]),
        lambda: files.read(half),
        lambda: call(sandbox, {"call": "files.read_stream", "with": {"path": half}}),
        lambda: files.edit("a", half, "x"),
        lambda: files.edit("a", "x", half),
        lambda: files.glob(half),
        lambda: files.grep(half),
        lambda: files.move("a", half),
        lambda: run(half),
        lambda: run("a", [half]),
        lambda: run("a", env={"A": half}),
        lambda: run("a", env={half: "a"}),
        lambda: run("a", cwd=half),
        lambda: run("a", stdin=half),
        lambda: run("a", secrets={"A": half}),
        lambda: sandbox.run_script(half),
        lambda: sandbox.run_script("x", {"a": [half]}),
        lambda: sandbox.run_script("x", {half: 1}),
    ]
