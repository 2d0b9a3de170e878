"""What calls return: plain data, made from the server's JSON, which is read strictly."""

from __future__ import annotations

import codecs
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast, overload

from ._core.answers import Answer, unexpected
from .errors import SandboxError, TimeoutOwner, error_of

if TYPE_CHECKING:
    from ._core import wire

__all__ = [
    "CommandResult",
    "Copied",
    "Created",
    "Edited",
    "Entry",
    "FileChange",
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

_Item = TypeVar("_Item")


class _Found(Sequence[_Item]):
    """Items that were found: they are iterated over, counted and indexed as those of a list."""

    @abstractmethod
    def _items(self) -> list[_Item]: ...

    @overload
    def __getitem__(self, index: int) -> _Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[_Item]: ...

    def __getitem__(self, index: int | slice) -> _Item | list[_Item]:
        return self._items()[index]

    def __iter__(self) -> Iterator[_Item]:
        return iter(self._items())

    def __len__(self) -> int:
        return len(self._items())


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
class Listed(_Found[Entry]):
    """A sequence of the entries of a directory, sorted by their paths."""

    path: str
    entries: list[Entry]
    truncated: bool
    """Whether there are more."""
    note: str | None = None
    """What is left out, and why."""

    def _items(self) -> list[Entry]:
        return self.entries


@dataclass(frozen=True)
class FileChange:
    """A change in a watched directory."""

    change: Literal["create", "write", "remove", "rename", "chmod", "omitted"]
    """What has happened: `rename` to the old name, and `create` to the new one; `omitted` stands for changes that are
    missing."""
    name: str
    """The path in the watched directory; empty for that itself, which ends the watch."""
    name_bytes: bytes = b""
    type: FileType | None = None
    """What it is, if that is known."""
    seq: int = 0
    """Its number. Numbers that are missing were omitted."""
    omitted: int = 0
    """How many are missing, or at least one that was not counted."""


@dataclass(frozen=True)
class Match:
    """A path that a pattern matches. `name` begins as the pattern does."""

    name: str
    path: str
    name_bytes: bytes
    path_bytes: bytes


@dataclass(frozen=True)
class Globbed(_Found[Match]):
    """A sequence of the paths that a pattern matches."""

    path: str
    matches: list[Match]
    truncated: bool
    """Whether there are more."""
    note: str | None = None
    """What is left out, and why."""

    def _items(self) -> list[Match]:
        return self.matches


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
class Grepped(_Found[Line]):
    """A sequence of the lines that a search found."""

    path: str
    lines: list[Line]
    matches: int
    files: int
    truncated: bool
    """Whether there may be more."""
    note: str | None = None
    """What is left out, and why."""

    def _items(self) -> list[Line]:
        return self.lines


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
    target: str | None = None
    """What a link points to, in a sandbox with `file_scope="all"`."""
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    """By namespace and key, such as `sbx.author`, in a sandbox with `file_scope="all"`."""


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
    """Whether the listeners missed some output: they get the first 64 MiB of a run, and of a server's the first 4."""


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


def written(data: Answer) -> Written:
    """What a write did."""
    return Written(data.text("path"), data.raw("path"), data.integer("bytes_written"), data.flag("created"))


def listed(data: Answer) -> Listed:
    """The entries of a list."""
    entries = [_entry(entry) for entry in data.items("entries")]
    return Listed(data.text("path"), entries, data.flag("truncated"), data.text_or_none("note"))


def file_change(data: Answer) -> FileChange | None:
    """A change, or None for an event that this version does not know."""
    match data.text("event"):
        case "omitted":
            return FileChange("omitted", "", omitted=data.integer("events"))
        case "change":
            pass
        case _:
            return None
    match data.text("change"):
        case "create" | "write" | "remove" | "rename" | "chmod" as change:
            kind = _type(data) if data.text_or_none("type") is not None else None
            return FileChange(change, data.text("name"), data.raw("name"), kind, data.integer("seq"))
        case _:
            return None


def _entry(data: Answer) -> Entry:
    return Entry(
        data.text("name"),
        data.text("path"),
        _type(data),
        data.integer("size"),
        data.text_or_none("modified"),
        data.raw("name"),
        data.raw("path"),
    )


def _type(data: Answer) -> FileType:
    match data.text("type"):
        case "file" | "directory" | "symlink" as known:
            return known
        case _:
            return "other"


def globbed(data: Answer) -> Globbed:
    """The paths of a glob."""
    matches = [
        Match(match.text("name"), match.text("path"), match.raw("name"), match.raw("path"))
        for match in data.items("matches")
    ]
    return Globbed(data.text("path"), matches, data.flag("truncated"), data.text_or_none("note"))


def grepped(data: Answer) -> Grepped:
    """The lines of a search."""
    lines = [
        Line(
            line.text("name"),
            line.text("path"),
            line.integer("line"),
            line.text("text"),
            line.is_set("context"),
            line.is_set("cut"),
            line.raw("path"),
        )
        for line in data.items("lines")
    ]
    matches, files = data.integer("matches"), data.integer("files")
    return Grepped(data.text("path"), lines, matches, files, data.flag("truncated"), data.text_or_none("note"))


def stat(data: Answer) -> Stat:
    """What is known of a file."""
    return Stat(
        path=data.text("path"),
        type=_type(data),
        size=data.integer("size"),
        permissions=data.text("permissions"),
        mode=data.text("mode"),
        uid=data.integer("uid"),
        gid=data.integer("gid"),
        owner=data.text("owner"),
        group=data.text("group"),
        modified=data.text_or_none("modified"),
        accessed=data.text_or_none("accessed"),
        created=data.text_or_none("created"),
        target=data.text_or_none("target"),
        metadata=data.object_or_none("metadata") or {},
    )


def failure(data: object, owner: TimeoutOwner) -> SandboxError:
    """The error of a failure as data."""
    said = Answer(data)
    made = error_of(said.text("kind"), said.text("message"), said.text_or_none("hint"), owner=owner)
    made.line, made.traceback = said.integer_or_none("line"), said.text_or_none("traceback")
    made.value = said.data.get("value")
    return made


class _Output:
    """Hands an output on: as bytes, and as text, of which a piece may end in the middle of a character."""

    def __init__(self, on_text: Callable[[str], object] | None, on_bytes: Callable[[bytes], object] | None) -> None:
        self._on_text = on_text
        self._on_bytes = on_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def say(self, piece: bytes, *, end: bool = False) -> None:
        """Hands a piece on; after the last one there is no more of its last character."""
        if piece and self._on_bytes is not None:
            self._on_bytes(piece)
        if self._on_text is not None and (text := self._decoder.decode(piece, end)):
            self._on_text(text)


class Listener:
    """Hands events to those who listen, and knows whether they missed some."""

    def __init__(
        self, stdout: _Output | None, stderr: _Output | None, on_log: Callable[[str, str], object] | None
    ) -> None:
        self.missed = False
        self._outputs = {"stdout": stdout, "stderr": stderr}
        self._on_log = on_log

    def __call__(self, data: object) -> None:
        """Hands an event on."""
        event = Answer(data)
        match event.text("event"):
            case "output":
                piece = event.output("text", "encoding")
                if output := self._outputs.get(event.text("stream")):
                    output.say(piece)
            case "log":
                text, level = event.text("text"), event.text_or_none("level")
                if self._on_log is not None:
                    self._on_log(text, level or "print")
            case "omitted":
                self.missed = True
                self.end()
            case _:
                pass

    def end(self) -> None:
        """Says that no more follows what was said."""
        for output in self._outputs.values():
            if output is not None:
                output.say(b"", end=True)


def listener(
    *,
    on_stdout: Callable[[str], object] | None = None,
    on_stderr: Callable[[str], object] | None = None,
    on_stdout_bytes: Callable[[bytes], object] | None = None,
    on_stderr_bytes: Callable[[bytes], object] | None = None,
    on_log: Callable[[str, str], object] | None = None,
) -> Listener | None:
    """What hands events to those who listen, if someone does."""
    if all(each is None for each in (on_stdout, on_stderr, on_stdout_bytes, on_stderr_bytes, on_log)):
        return None
    return Listener(_output(on_stdout, on_stdout_bytes), _output(on_stderr, on_stderr_bytes), on_log)


def _output(on_text: Callable[[str], object] | None, on_bytes: Callable[[bytes], object] | None) -> _Output | None:
    return None if on_text is None and on_bytes is None else _Output(on_text, on_bytes)


def _notes(document: Answer) -> list[wire.Note]:
    notes = document.items("notes") if document.data.get("notes") is not None else []
    for note in notes:
        note.text("kind")
        note.text("message")
        note.text_or_none("hint")
    return [cast("wire.Note", note.data) for note in notes]


def _common(document: Answer, heard: Listener | None) -> dict[str, Any]:
    error = document.data.get("error")
    touched = document.items("files_touched")
    return {
        "id": document.text_or_none("id"),
        "status": document.text("status"),
        "error": None if error is None else failure(error, "execution"),
        "files_touched": [
            Touched(each.text("name"), each.text("op"), each.integer("bytes"), each.raw("name")) for each in touched
        ],
        "files_touched_truncated": document.flag("files_touched_truncated"),
        "engine": document.text_or_none("engine"),
        "limits": document.object_or_none("limits"),
        "usage": document.object_or_none("usage"),
        "notes": _notes(document),
        "document": document.data,
        "missed": heard is not None and heard.missed,
    }


def command_result(data: object, heard: Listener | None) -> CommandResult:
    """The result of a command, from its document."""
    document = _document(data, "sandboxctl.exec/1")
    return CommandResult(
        **_common(document, heard),
        exit_code=document.integer_or_none("exit_code"),
        signal=document.integer_or_none("signal"),
        stdout_bytes=document.output("stdout", "stdout_encoding"),
        stderr_bytes=document.output("stderr", "stderr_encoding"),
        stdout_truncated=document.flag("stdout_truncated"),
        stderr_truncated=document.flag("stderr_truncated"),
    )


def script_result(data: object, heard: Listener | None) -> ScriptResult:
    """The result of a script, from its document."""
    document = _document(data, "sandboxctl.result/1")
    return ScriptResult(
        **_common(document, heard),
        result=document.data.get("result"),
        logs=document.texts("logs"),
        logs_truncated=document.flag("logs_truncated"),
    )


def _document(data: object, schema: str) -> Answer:
    document = Answer(data)
    if document.text("schema") != schema:
        raise unexpected(f"not a document of {schema}")
    return document


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
