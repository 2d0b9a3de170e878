"""What calls return: plain data, made from the server's JSON, which is read strictly."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from .errors import SandboxError, TimeoutOwner, error_of

if TYPE_CHECKING:
    from ._core import wire

__all__ = [
    "CommandResult",
    "Copied",
    "Created",
    "Edited",
    "Entry",
    "Globbed",
    "Grepped",
    "Line",
    "Listed",
    "Match",
    "Moved",
    "Removed",
    "ScriptResult",
    "Stat",
    "Touched",
    "Written",
]

Json: TypeAlias = Mapping[str, Any]

FileType: TypeAlias = Literal["file", "directory", "symlink", "other"]
"""What a file is. `other` is a FIFO, a socket or a device."""


@dataclass(frozen=True)
class Written:
    """What a write did."""

    path: str
    path_bytes: bytes
    bytes_written: int
    created: bool
    """Whether there was no such file before."""


@dataclass(frozen=True)
class Edited:
    """What an edit did."""

    path: str
    replacements: int


@dataclass(frozen=True)
class Created:
    """Whether a directory is new."""

    path: str
    created: bool


@dataclass(frozen=True)
class Removed:
    """What was removed."""

    path: str
    removed: bool
    """Whether there was something."""
    entries: int


@dataclass(frozen=True)
class Moved:
    """The paths of a move."""

    source: str
    target: str


@dataclass(frozen=True)
class Copied:
    """How much was copied."""

    source: str
    target: str
    entries: int
    bytes: int


@dataclass(frozen=True)
class Entry:
    """An entry of a directory."""

    name: str
    path: str
    type: FileType
    size: int
    modified: str | None
    name_bytes: bytes
    path_bytes: bytes
    """The path's bytes: `path` is lossy where they are not UTF-8."""


@dataclass(frozen=True)
class Listed:
    """The entries of a directory, sorted by their paths."""

    path: str
    entries: list[Entry]
    truncated: bool
    """Whether there are more."""
    note: str | None = None
    """What is left out, and why."""


@dataclass(frozen=True)
class Match:
    """A path that a pattern matches. `name` begins as the pattern does."""

    name: str
    path: str
    name_bytes: bytes
    path_bytes: bytes


@dataclass(frozen=True)
class Globbed:
    """The paths that a pattern matches."""

    path: str
    matches: list[Match]
    truncated: bool
    """Whether there are more."""
    note: str | None = None
    """What is left out, and why."""


@dataclass(frozen=True)
class Line:
    """A line that a search found, or one around it (`context`)."""

    name: str
    path: str
    line: int
    text: str
    context: bool
    cut: bool
    """Whether the line is longer than its text."""
    path_bytes: bytes


@dataclass(frozen=True)
class Grepped:
    """The lines that a search found."""

    path: str
    lines: list[Line]
    matches: int
    files: int
    truncated: bool
    """Whether there may be more."""
    note: str | None = None
    """What is left out, and why."""


@dataclass(frozen=True)
class Stat:
    """What is known of a file."""

    path: str
    type: FileType
    size: int
    permissions: str
    mode: str
    uid: int
    gid: int
    owner: str
    group: str
    modified: str | None
    accessed: str | None
    created: str | None


@dataclass(frozen=True)
class Touched:
    """A file that an execution changed."""

    name: str
    """Relative to the io dir."""
    op: str
    bytes: int
    name_bytes: bytes


@dataclass(frozen=True)
class _Execution:
    id: str | None
    status: str
    error: SandboxError | None
    """What went wrong, if something did. `check=True` raises it."""
    files_touched: list[Touched]
    files_touched_truncated: bool
    """Whether there were more."""
    engine: str | None
    """The engine that ran it."""
    limits: wire.Limits | None
    """Every limit that was in force."""
    usage: wire.Usage | None
    """Time, memory and bytes written."""
    notes: list[wire.Note]
    """What stood in its way in the sandbox, such as memory that ran out; empty if it ended well."""
    document: Json
    """The whole result document, as it came: also `network`, `timing` and others."""
    missed: bool
    """Whether the listeners missed some output: 64 MiB wait for them here, and a server keeps 4 MiB of a run."""
    missed_bytes: int
    """How many bytes of that were dropped here. What a server left out, it does not count."""


@dataclass(frozen=True)
class ScriptResult(_Execution):
    """How a script ended. A failure is a result: `status` is `ok`, `script_error`, `timeout`, `limit`, …"""

    result: Any
    """What the script returned, as JSON; None if it failed."""
    logs: list[str]
    """An entry for each `print` and `warn`."""
    logs_truncated: bool


@dataclass(frozen=True)
class CommandResult(_Execution):
    """How a command ended. A failure is a result: `status` is `ok`, `exit`, `timeout`, `limit`, `error`, …"""

    exit_code: int | None
    """Its own exit code; None if a signal ended it, or it did not start."""
    signal: int | None
    stdout_bytes: bytes
    stderr_bytes: bytes
    stdout_truncated: bool
    """Whether there was more than the million bytes that are kept."""
    stderr_truncated: bool

    @property
    def stdout(self) -> str:
        """The stdout as text; what is not UTF-8 is U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """The stderr as text; what is not UTF-8 is U+FFFD."""
        return self.stderr_bytes.decode("utf-8", "replace")


def raw(data: Json, name: str) -> bytes:
    """The bytes of a path or a name."""
    encoded = data.get(f"{name}_b64")
    return base64.b64decode(encoded) if encoded is not None else cast("str", data[name]).encode()


def written(data: Json) -> Written:
    """What a write did."""
    return Written(data["path"], raw(data, "path"), data["bytes_written"], data["created"])


def entry(data: Json) -> Entry:
    """An entry of a list."""
    return Entry(
        data["name"],
        data["path"],
        data["type"],
        data["size"],
        data.get("modified"),
        raw(data, "name"),
        raw(data, "path"),
    )


def match(data: Json) -> Match:
    """A path of a glob."""
    return Match(data["name"], data["path"], raw(data, "name"), raw(data, "path"))


def line(data: Json) -> Line:
    """A line of a search."""
    return Line(
        data["name"],
        data["path"],
        data["line"],
        data["text"],
        data.get("context", False),
        data.get("cut", False),
        raw(data, "path"),
    )


def failure(error: Json, owner: TimeoutOwner) -> SandboxError:
    """The error of a failure as data."""
    made = error_of(error["kind"], error["message"], error.get("hint"), owner=owner)
    made.line, made.traceback, made.value = error.get("line"), error.get("traceback"), error.get("value")
    return made


def output(text: str, encoding: str | None) -> bytes:
    """The bytes of an output."""
    return base64.b64decode(text) if encoding == "base64" else text.encode()


class Listener:
    """Hands events to those who listen, and counts what they missed."""

    def __init__(
        self,
        on_stdout: Callable[[bytes], object] | None,
        on_stderr: Callable[[bytes], object] | None,
        on_log: Callable[[str, str], object] | None,
    ) -> None:
        self.missed = False
        self.missed_bytes = 0
        self._outputs = {"stdout": on_stdout, "stderr": on_stderr}
        self._on_log = on_log

    def __call__(self, event: Json) -> None:
        """Hands an event on."""
        match event["event"]:
            case "output":
                if told := self._outputs.get(event["stream"]):
                    told(output(event["text"], event.get("encoding")))
            case "log":
                if self._on_log is not None:
                    self._on_log(event["text"], event.get("level") or "print")
            case "omitted":
                self.missed = True
                self.missed_bytes += event.get("bytes") or 0
            case _:
                pass


def listener(
    *,
    on_stdout: Callable[[bytes], object] | None = None,
    on_stderr: Callable[[bytes], object] | None = None,
    on_log: Callable[[str, str], object] | None = None,
) -> Listener | None:
    """What hands events to those who listen, if someone does."""
    if on_stdout is None and on_stderr is None and on_log is None:
        return None
    return Listener(on_stdout, on_stderr, on_log)


def _common(document: Json, heard: Listener | None) -> dict[str, Any]:
    error = document.get("error")
    touched = document["files_touched"]
    return {
        "id": document["id"],
        "status": document["status"],
        "error": None if error is None else failure(error, "execution"),
        "files_touched": [Touched(each["name"], each["op"], each["bytes"], raw(each, "name")) for each in touched],
        "files_touched_truncated": document["files_touched_truncated"],
        "engine": document["engine"],
        "limits": document["limits"],
        "usage": document["usage"],
        "notes": document.get("notes", []),
        "document": document,
        "missed": heard is not None and heard.missed,
        "missed_bytes": 0 if heard is None else heard.missed_bytes,
    }


def command_result(document: Json, heard: Listener | None) -> CommandResult:
    """The result of a command, from its document."""
    _expect(document, "sandboxctl.exec/1")
    return CommandResult(
        **_common(document, heard),
        exit_code=document["exit_code"],
        signal=document["signal"],
        stdout_bytes=output(document["stdout"], document["stdout_encoding"]),
        stderr_bytes=output(document["stderr"], document["stderr_encoding"]),
        stdout_truncated=document["stdout_truncated"],
        stderr_truncated=document["stderr_truncated"],
    )


def script_result(document: Json, heard: Listener | None) -> ScriptResult:
    """The result of a script, from its document."""
    _expect(document, "sandboxctl.result/1")
    return ScriptResult(
        **_common(document, heard),
        result=document["result"],
        logs=document["logs"],
        logs_truncated=document["logs_truncated"],
    )


def _expect(document: Json, schema: str) -> None:
    if document.get("schema") != schema:
        raise error_of("internal", f"the answer is not a document of {schema}")


_Result = TypeVar("_Result", ScriptResult, CommandResult)


def checked(result: _Result, check: bool) -> _Result:
    """The result, but with `check` its error unless the status is `ok`."""
    if not check or result.status == "ok":
        return result
    error = result.error or error_of(result.status, _ended(result), owner="execution")
    error.result = result
    raise error


def _ended(result: ScriptResult | CommandResult) -> str:
    if result.status != "exit" or not isinstance(result, CommandResult):
        return f"it ended with the status {result.status}"
    how = f"exited with {result.exit_code}" if result.signal is None else f"was ended by signal {result.signal}"
    last = result.stderr.rstrip().rpartition("\n")[2][:200]
    return f"the command {how}{': ' if last else ''}{last}"
