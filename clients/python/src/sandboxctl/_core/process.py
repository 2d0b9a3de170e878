"""The process `sandboxctl tools --stdio`: its lines, its calls, and its end.

One thread of its own reads what it says and writes what its pipe did not take at once; callers get futures. Nothing
here knows whether they are synchronous.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import os
import re
import selectors
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from copy import copy
from typing import Any, Final, cast

from ..errors import SandboxError, error_of
from .answers import Answer, parsed, unexpected
from .binary import find_binary, version_mismatch
from .channel import Channel
from .limiter import Limiter, Slots
from .requests import encoded
from .version import PROTOCOL

__all__ = ["CHUNK_WINDOW", "Call", "Process", "shared_process"]

CHUNK_WINDOW: Final = 8
"""The chunks that may be on their way without being asked for."""

# The time for the first answer, in seconds.
_HELLO: Final = 30.0
# The time in which it removes its sandboxes and ends; then it is killed, and they with it.
_CLOSE: Final = 60.0
# The time between its last word and its end.
_LEAVE: Final = 10.0
_LONGEST_LINE: Final = (64 << 20) - 1
_LONGEST_ANSWER: Final = 80 << 20
# How much of its stderr is kept, for the error that says how it ended.
_STDERR_KEPT: Final = 4096
_READ: Final = 1 << 18

_GONE = re.compile(r"Container '.*' (not registered$|has ended: )", re.DOTALL)


class Call:
    """A call, and its answer to come."""

    def __init__(self, process: Process, number: int, line: bytes, sandbox: str, channel: Channel | None) -> None:
        self.answer: Future[Any] = Future()
        """Its data, or a `SandboxError`."""
        self.channel = channel
        """What it says before its answer."""
        self.begun: Future[None] = Future()
        """Done when it had its slot, and was sent."""
        self.sandbox = sandbox
        self._process = process
        self._number = number
        self._line = line
        self._cancelled = False

    def cancel(self) -> None:
        """Cancels it; it is answered nevertheless. One that was answered is as it was."""
        if self.answer.done():
            return
        self._cancelled = True
        if self.begun.done():
            self._process.write({"cancel": self._number})
        else:
            self._process.settle(self._number, error=error_of("cancelled", "it was cancelled before it began"))

    def begin(self) -> None:
        """Says that it was sent, or never will be."""
        # Its answer may come before its sender goes on.
        with contextlib.suppress(InvalidStateError):
            self.begun.set_result(None)

    def take(self, chunks: int) -> None:
        """Lets a download send so many chunks more."""
        self._process.write({"more": self._number, "chunks": chunks})

    def give(self, chunk: bytes) -> None:
        """Sends a chunk of an upload."""
        self._process.write({"chunk": self._number, "data": base64.b64encode(chunk).decode()})

    def end(self) -> None:
        """Says that an upload is complete."""
        self._process.write({"chunk": self._number, "end": True})

    def send(self) -> None:
        """Is called when it has a slot."""
        line, self._line = self._line, b""
        if self.answer.done():
            return
        self._process.put(line)
        self.begin()
        # By another thread, which took it for one that was not sent.
        if self._cancelled:
            self._process.write({"cancel": self._number})


class Process:
    """A process that answers calls, of any threads. It ends with this one, at the latest: its stdin ends then."""

    def __init__(self, binary: str, arguments: list[str]) -> None:
        self.ready: Future[None] = Future()
        """Done when it speaks the protocol."""
        self.end: SandboxError | None = None
        """How it ended, if it has."""
        self._binary = binary
        self._slots = Slots()
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[Call, Limiter | None, Future[None] | None]] = {}
        self._next = 1
        self._unsent: deque[memoryview] = deque()
        self._closing = False
        # Whether its stdin is.
        self._closed = False
        self._stderr = b""
        self._parts: list[bytes] = []
        self._length = 0
        try:
            # In a session of its own: Ctrl-C in a terminal is this program's to handle.
            self._child = subprocess.Popen(
                [binary, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                env=_environment(),
            )
        except OSError as error:
            message = f"{binary} cannot be started: {error.strerror}"
            raise error_of("config", message, "is it built for this machine?") from error
        self._stdin, self._stdout, self._errors = (
            cast("Any", pipe).fileno() for pipe in (self._child.stdin, self._child.stdout, self._child.stderr)
        )
        os.set_blocking(self._stdin, False)
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self.write({"hello": {}})
        self._thread = threading.Thread(target=self._run, name="sandboxctl", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._child.kill()
            self._child.wait()
            raise error_of("engine", f"the process has no thread: {error}") from error
        _all.add(self)

    def call(
        self, tool: str, arguments: Mapping[str, Any], *, channel: Channel | None = None, stream: bool = False
    ) -> Call:
        """Makes a call, when there is a slot for one of its kind."""
        with self._lock:
            if self.end is not None:
                raise copy(self.end)
            number = self._next
            self._next += 1
        line = _line({"id": number, "tool": tool, "args": arguments, **({"stream": True} if stream else {})})
        if len(line) > _LONGEST_LINE:
            raise error_of(
                "too_large",
                f"a request of more than {_LONGEST_LINE} bytes",
                "write large files in pieces: `files.write` takes an iterable of bytes, or a file",
            )
        call = Call(self, number, line, arguments["containerId"], channel)
        limiter = self._limiter(tool)
        ticket = limiter.ticket() if limiter else None
        with self._lock:
            self._calls[number] = (call, limiter, ticket)
            end = self.end
        if end is not None:
            # It ended meanwhile.
            self.settle(number, error=copy(end))
        elif ticket:
            ticket.add_done_callback(lambda _: call.send())
        else:
            call.send()
        return call

    def cancel_all(self, sandbox: str) -> None:
        """Cancels the calls of a sandbox."""
        with self._lock:
            calls = [call for call, _, _ in self._calls.values() if call.sandbox == sandbox]
        for call in calls:
            call.cancel()

    def write(self, line: Mapping[str, Any]) -> None:
        """Writes a line."""
        self.put(_line(line))

    def put(self, line: bytes) -> None:
        """Writes a line that is complete."""
        with self._lock:
            if self._closed or self.end is not None:
                return
            rest = memoryview(line)
            if not self._unsent:
                # A pipe that breaks is followed by the end of the process, which says more.
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    rest = rest[os.write(self._stdin, rest) :]
            if not rest:
                return
            self._unsent.append(rest)
            self._notify()

    def settle(self, number: int, data: Any = None, error: SandboxError | None = None) -> None:
        """Answers a call."""
        with self._lock:
            entry = self._calls.pop(number, None)
        if entry is None:
            return
        call, limiter, ticket = entry
        if error is None:
            call.answer.set_result(data)
        else:
            call.answer.set_exception(error)
        if call.channel is not None:
            call.channel.end()
        call.begin()
        if limiter and ticket:
            limiter.release(ticket)

    def close(self) -> None:
        """Cancels its calls and ends its stdin, and waits until it has removed its sandboxes and ended."""
        with self._lock:
            calls = [call for call, _, _ in self._calls.values()]
        for call in calls:
            call.cancel()
        with self._lock:
            if self.end is None:
                self._closing = True
                self._notify()
        self._thread.join()

    def forget(self) -> None:
        """Is called in the child of a fork: the process, its calls and their threads are the parent's."""
        self._lock = threading.Lock()
        self.end = error_of("gone", "the sandbox is that of the program before its fork", "create another one")
        self._calls.clear()
        self._unsent.clear()
        # Somebody else's to wait for.
        self._child.returncode = 0
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            with contextlib.suppress(OSError):
                cast("Any", pipe).close()
        for fd in (self._wake, self._waker):
            with contextlib.suppress(OSError):
                os.close(fd)
        if not self.ready.done():
            self.ready.set_exception(self.end)

    def _limiter(self, tool: str) -> Limiter | None:
        match tool:
            case "sandbox_execute":
                return self._slots.executions
            case "sandbox_download":
                return self._slots.downloads
            case "sandbox_upload":
                return self._slots.uploads
            case "sandbox_destroy":
                # To end a sandbox never waits.
                return None
            case _:
                return self._slots.operations

    def _notify(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"\0")

    def _run(self) -> None:
        error: SandboxError | None = None
        try:
            self._serve()
        except _Broken as broken:
            error = self._ended(str(broken))
        except Exception as broken:
            error = self._ended(f"broke the protocol: {broken}")
        self._reap(kill=error is not None)
        if error is None:
            error = self._last_word()
        with self._lock:
            self.end = error
            ids = list(self._calls)
            self._unsent.clear()
            for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
                cast("Any", pipe).close()
            os.close(self._wake)
            os.close(self._waker)
        if not self.ready.done():
            self.ready.set_exception(error)
        for number in ids:
            self.settle(number, error=copy(error))
        _all.discard(self)

    def _serve(self) -> None:
        """Reads and writes until its stdout ends."""
        limit, closing = time.monotonic() + _HELLO, False
        with selectors.DefaultSelector() as selector:
            for fd in (self._stdout, self._errors, self._wake):
                selector.register(fd, selectors.EVENT_READ)
            writing = False
            while True:
                with self._lock:
                    wanted = bool(self._unsent)
                    if self._closing and not closing:
                        closing, limit = True, time.monotonic() + _CLOSE
                    if closing and not self._closed and not wanted and not writing:
                        self._closed = True
                        cast("Any", self._child.stdin).close()
                if wanted != writing:
                    if wanted:
                        selector.register(self._stdin, selectors.EVENT_WRITE)
                    else:
                        selector.unregister(self._stdin)
                    writing = wanted
                    # Once more: there may be an end to be made.
                    continue
                limited = closing or not self.ready.done()
                events = selector.select(limit - time.monotonic() if limited else None)
                if limited and time.monotonic() >= limit:
                    raise _Broken("did not end in time" if closing else "did not answer in time")
                for key, _ in events:
                    if key.fd == self._stdin:
                        self._flush()
                        continue
                    data = os.read(key.fd, _READ)
                    if key.fd == self._stdout:
                        if not data:
                            return
                        self._receive(data)
                    elif key.fd == self._errors:
                        self._stderr = (self._stderr + data)[-_STDERR_KEPT:]
                        if not data:
                            selector.unregister(self._errors)

    def _flush(self) -> None:
        with self._lock:
            while self._unsent:
                rest = self._unsent[0]
                try:
                    written = os.write(self._stdin, rest)
                except BlockingIOError:
                    return
                except BrokenPipeError:
                    self._unsent.clear()
                    return
                if written < len(rest):
                    self._unsent[0] = rest[written:]
                else:
                    self._unsent.popleft()

    def _receive(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            if self._parts:
                line = b"".join([*self._parts, line])
                self._parts.clear()
                self._length = 0
            self._take(Answer(parsed(line)).data)
        if rest:
            self._parts.append(rest)
            self._length += len(rest)
            if self._length > _LONGEST_ANSWER:
                raise _Broken("said a line that is too long")

    def _take(self, line: dict[str, Any]) -> None:
        number = line.get("id")
        if not self.ready.done() and ("hello" in line or (number is None and "error" in line)):
            self._greet(Answer(line["hello"]).data if "hello" in line else None)
            return
        entry = self._calls.get(number) if type(number) is int else None
        if entry is None:
            return
        call = entry[0]
        for kind, expected in (("event", dict), ("chunk", str), ("more", int)):
            if kind in line:
                if type(line[kind]) is not expected:
                    raise unexpected(f"`{kind}` is {line[kind]!r:.200}")
                if call.channel is not None:
                    call.channel.put(line[kind])
                return
        assert isinstance(number, int)
        if "error" in line:
            self.settle(number, error=_error(line))
        else:
            self.settle(number, data=line.get("data"))

    def _greet(self, hello: dict[str, Any] | None) -> None:
        if hello is not None and hello.get("protocol") == PROTOCOL:
            self.ready.set_result(None)
            return
        self.ready.set_exception(version_mismatch(self._binary, hello))
        raise _Broken("speaks another protocol")

    def _reap(self, kill: bool) -> None:
        """Waits for its end, so that it is no zombie."""
        if kill:
            self._child.kill()
        try:
            self._child.wait(_LEAVE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        os.set_blocking(self._errors, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._errors, _READ):
                self._stderr = (self._stderr + data)[-_STDERR_KEPT:]

    def _last_word(self) -> SandboxError:
        code = self._child.returncode
        # A binary that is older than the protocol does not know its flags.
        if not self.ready.done() and code == 2 and b"unexpected argument" in self._stderr:
            return version_mismatch(self._binary, None)
        return self._ended(f"ended with signal {-code}" if code < 0 else f"ended with exit code {code}")

    def _ended(self, how: str) -> SandboxError:
        said = self._stderr.decode("utf-8", "replace").strip()
        message = f"the process {self._binary} {how}{': ' if said else ''}{said}"
        if self.ready.done():
            return error_of("agent_lost", message, "what was in its sandboxes is gone, but not the io dirs")
        # Before it answered nothing was lost: it is not a sandbox that is gone.
        return error_of("config" if self._child.returncode == 2 else "engine", message)


class _Broken(Exception):
    """The process does not do what it should."""


def _line(line: Mapping[str, Any]) -> bytes:
    return encoded(line) + b"\n"


def _error(line: Mapping[str, Any]) -> SandboxError:
    """The error of a line `{"id", "error", "metadata"}`."""
    message, metadata = Answer(line).text("error"), Answer(line.get("metadata") or {})
    # The sandbox has ended, whatever the reason, which the message has: to a caller it is gone.
    kind = "gone" if _GONE.match(message) else metadata.text_or_none("kind") or "internal"
    retryable = metadata.flag("retryable") if "retryable" in metadata.data else None
    return error_of(kind, message, metadata.text_or_none("hint"), retryable=retryable, owner="operation")


def _environment() -> dict[str, str]:
    """What the process gets of this environment. An image is fetched, as by `exec`, unless it says otherwise. The
    client's own variables are none of its settings, which it would refuse."""
    rest = {name: value for name, value in os.environ.items() if name not in _OWN}
    return {"SANDBOXCTL_PROGRAMS_PULL": "missing", **rest}


_OWN: Final = frozenset({"SANDBOXCTL_BINARY", "SANDBOXCTL_SERVER", "SANDBOXCTL_TOKEN"})

_all: set[Process] = set()
_shared: dict[tuple[str, str | None], Process] = {}
_sharing = threading.Lock()


def shared_process(binary: str | os.PathLike[str] | None, engine: str | None) -> Process:
    """The process of a binary and an engine. A new one is started when the last one has ended."""
    path = find_binary(binary)
    with _sharing:
        process = _shared.get((path, engine))
        if process is None or process.end is not None:
            # This program is the user's own, and no guest: it names what directory, image and host it likes.
            arguments = ["tools", "--stdio", "--unrestricted"]
            process = Process(path, arguments if engine is None else ["--engine", engine, *arguments])
            _shared[path, engine] = process
        return process


def _close_all() -> None:
    processes = list(_all)
    for process in processes:
        process.close()


def _forked() -> None:
    global _sharing
    _sharing = threading.Lock()
    _shared.clear()
    for process in list(_all):
        process.forget()
    _all.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forked)
