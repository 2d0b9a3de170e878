"""What sandboxes and their processes are, and what processes say: plain data, made from the server's JSON."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from ._core.answers import Answer, unexpected
from .errors import error_of
from .results import Json

__all__ = ["ListeningPort", "Preview", "ProcessEvent", "ProcessInfo", "SandboxInfo"]

ProcessState: TypeAlias = Literal["running", "left", "ended"]
"""`left`: it has exited, and processes that it started go on."""

ProcessEventType: TypeAlias = Literal["start", "stdout", "stderr", "omitted", "exit", "end"]
"""What happened to a process. `end` is the last: nothing that it started is left."""


@dataclass(frozen=True)
class SandboxInfo:
    """What a sandbox is, and its state."""

    id: str
    name: str | None
    status: str
    """`starting`, `ready`, `paused`, or `stopped`: then it has its files, and its next use starts it again."""
    generation: int
    """The number of its container, from 1. Processes and their output end with theirs."""
    processes: int | None
    """How many processes have not ended, of those that were started in the background; None if that is unknown."""
    metadata: Json
    created_at: str
    last_used_at: str
    expires_at: str
    """When it ends, unless `set_timeout` says otherwise."""
    idle_at: str | None
    """When it stops, or is frozen, unless it is used."""
    document: Json
    """The whole view, as it came: also its `spec` and others."""


@dataclass(frozen=True)
class ProcessInfo:
    """What a process is, and its state."""

    id: int
    """Its number in its sandbox, from 1."""
    pid: int
    """Its process id, in the sandbox."""
    generation: int
    """The generation of the sandbox that it is of."""
    command: str
    """What runs, for people: it may be cut."""
    tag: str | None
    state: ProcessState
    pty: bool
    """Whether it has a terminal."""
    started_at: str
    exited_at: str | None
    exit_code: int | None
    """Its exit code; None while it runs, or if a signal ended it."""
    signal: int | None
    """The signal that ended it."""
    stopped: str | None
    """Why the sandbox ended it, if it did: `timeout` or `cancelled`."""
    out_of_memory: bool | None
    """Whether it was killed because memory ran out; None if that is unknown."""
    cpu_ms: int | None
    peak_memory_bytes: int | None
    """The memory of the largest of its processes."""
    first_event: int
    """The number of the first event that is kept; 0 if there is none."""
    last_event: int


@dataclass(frozen=True)
class ProcessEvent:
    """Something that happened to a process. The output of a terminal is `stdout`."""

    seq: int
    """Its number, from 1: `events(after=…)` goes on after it."""
    type: ProcessEventType
    """`omitted` stands for those that are no longer kept; its number is that of the last of them."""
    time: str
    bytes: bytes = b""
    """A piece of output."""
    text: str = ""
    """The same as text of whole characters; what is not UTF-8 is U+FFFD."""
    exit_code: int | None = None
    """The exit code, of `exit` and `end`; None if a signal ended the process."""
    signal: int | None = None
    """The signal that ended it."""


@dataclass(frozen=True)
class ListeningPort:
    """A port of a sandbox at which something listens."""

    port: int
    address: str
    """Where: `127.0.0.1`, `0.0.0.0` or `::`, for instance."""


@dataclass(frozen=True)
class Preview:
    """A host at which a port of a sandbox is reached."""

    url: str
    token: str | None
    """What shows that a request may use it; None for a public one."""
    expires_at: str

    @property
    def headers(self) -> dict[str, str]:
        """The headers that requests have."""
        return {} if self.token is None else {"Sandbox-Port-Token": self.token}


def preview(data: object) -> Preview:
    """A preview, from its view."""
    view = Answer(data)
    return Preview(view.text("url"), view.text_or_none("token"), view.text("expires_at"))


def sandbox_info(data: object) -> SandboxInfo:
    """What a sandbox is, from its view."""
    view = Answer(data)
    return SandboxInfo(
        id=view.text("id"),
        name=view.text_or_none("name"),
        status=view.text("status"),
        generation=view.integer("generation"),
        processes=view.integer_or_none("processes"),
        metadata=view.object_or_none("metadata") or {},
        created_at=view.text("created_at"),
        last_used_at=view.text("last_used_at"),
        expires_at=view.text("expires_at"),
        idle_at=view.text_or_none("idle_at"),
        document=view.data,
    )


def process_info(data: object) -> ProcessInfo:
    """What a process is, from its view."""
    view = Answer(data)
    state = view.text("state")
    if state not in {"running", "left", "ended"}:
        raise unexpected(f"`state` is {state[:200]!r}")
    return ProcessInfo(
        id=view.integer("id"),
        pid=view.integer("pid"),
        generation=view.integer("generation"),
        command=view.text("command"),
        tag=view.text_or_none("tag"),
        state=cast("ProcessState", state),
        pty=view.flag("pty"),
        started_at=view.text("started_at"),
        exited_at=view.text_or_none("exited_at"),
        exit_code=view.integer_or_none("exit_code"),
        signal=view.integer_or_none("signal"),
        stopped=view.text_or_none("stopped"),
        out_of_memory=view.flag_or_none("out_of_memory"),
        cpu_ms=view.integer_or_none("cpu_ms"),
        peak_memory_bytes=view.integer_or_none("peak_memory_bytes"),
        first_event=view.integer("first_event"),
        last_event=view.integer("last_event"),
    )


def exited(info: ProcessInfo, check: bool) -> ProcessInfo:
    """What a process is that has exited, but with `check` its error unless its exit code is 0."""
    if not check or info.exit_code == 0:
        return info
    how = f"exited with {info.exit_code}" if info.signal is None else f"was ended by signal {info.signal}"
    kind = {"timeout": "timeout", "cancelled": "cancelled"}.get(info.stopped or "", "exit")
    error = error_of(kind, f"the process {how}", owner="execution")
    error.result = info
    raise error


class EventReader:
    """Makes events of what comes from the server, for one reader: a piece of output may end within a character."""

    def __init__(self) -> None:
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": make("replace"), "stderr": make("replace")}

    def __call__(self, data: object) -> ProcessEvent | None:
        """An event, or None for one that this version does not know."""
        event = Answer(data)
        seq, time = event.integer("seq"), event.text_or_none("time") or ""
        match event.text("event"):
            case "output":
                piece = event.output("text", "encoding")
                stream = event.text("stream")
                if stream not in self._decoders:
                    raise unexpected(f"`stream` is {stream[:200]!r}")
                text = self._decoders[stream].decode(piece)
                return ProcessEvent(seq, cast("ProcessEventType", stream), time, piece, text)
            case "start":
                return ProcessEvent(seq, "start", time)
            case "omitted":
                return ProcessEvent(seq, "omitted", time, text=self._rest())
            case "exit":
                code, signal = event.integer_or_none("exit_code"), event.integer_or_none("signal")
                return ProcessEvent(seq, "exit", time, exit_code=code, signal=signal)
            case "end":
                view = process_info(event.object_or_none("document"))
                return ProcessEvent(seq, "end", time, text=self._rest(), exit_code=view.exit_code, signal=view.signal)
            case _:
                return None

    def _rest(self) -> str:
        """What is left of characters whose other bytes do not come."""
        return "".join(decoder.decode(b"", True) for decoder in self._decoders.values())
