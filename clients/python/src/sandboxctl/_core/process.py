"""The process `sandboxctl serve --private`, which keeps the sandboxes of this program: its start and its end."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import subprocess
import tempfile
import threading
import time
from typing import IO, Any, Final, cast

from ..errors import SandboxError, error_of
from .answers import Answer, parsed
from .binary import find_binary, version_mismatch
from .connection import Connections
from .version import PROTOCOL

__all__ = ["Process", "arguments_of", "environment", "shared_process", "socket_of"]

# The time for its first line, in seconds.
_HELLO: Final = 30.0
# The time in which it removes its sandboxes and ends; then it is killed, and they with it.
_CLOSE: Final = 60.0
# The time between the end of its connections and its own.
_LEAVE: Final = 2.0
_LONGEST_HELLO: Final = 1 << 16
# How much of its stderr is in the error that says how it ended.
_STDERR_KEPT: Final = 4096


class Process:
    """A process that answers calls, of any threads. It ends with this one, at the latest: its stdin ends then."""

    takes_directories = True
    """Whether a sandbox may have a directory of this machine."""

    def __init__(self, binary: str, arguments: list[str]) -> None:
        self.headers: dict[str, str] = {}
        self._binary = binary
        self._forked = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            # In a session of its own: Ctrl-C in a terminal is this program's to handle.
            self._child = subprocess.Popen(
                [binary, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
                start_new_session=True,
                env=environment(),
            )
        except OSError as error:
            message = f"{binary} cannot be started: {error.strerror}"
            raise error_of("config", message, "is it built for this machine?") from error
        try:
            with cast("IO[bytes]", self._child.stdout) as stdout:
                self.connections = Connections(f"unix:{self._greeting(stdout.fileno())}")
        except BaseException:
            self._child.kill()
            self._child.wait()
            cast("Any", self._child.stdin).close()
            raise

    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._child.poll() is not None

    def failure(self, error: BaseException | None, why: str) -> SandboxError:
        """The error of a connection that is lost: its end, if it has ended."""
        if self._forked:
            return error_of("gone", "the sandbox is that of the program before its fork", "create another one")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_LEAVE)
            hint = "what was in its sandboxes is gone, but not the io dirs"
            return error_of("agent_lost", self._ended(), hint)
        return error_of("unavailable", f"no connection to the process {self._binary}: {why}")

    def close(self) -> None:
        """Ends its stdin, and waits until it has removed its sandboxes and ended."""
        cast("Any", self._child.stdin).close()
        try:
            self._child.wait(_CLOSE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def forget(self) -> None:
        """Is called in the child of a fork: the process is the parent's."""
        self._forked = True
        # The parent waits for it.
        self._child.returncode = 0
        with contextlib.suppress(OSError):
            cast("Any", self._child.stdin).close()

    def check(self) -> None:
        """Refuses calls in the child of a fork."""
        if self._forked:
            raise self.failure(None, "")

    def _greeting(self, stdout: int) -> str:
        """Waits for its first line, and returns the path of its socket."""
        line, limit = b"", time.monotonic() + _HELLO
        while not line.endswith(b"\n"):
            if not _is_readable(stdout, limit - time.monotonic()):
                raise self._unusable("did not answer in time")
            piece = os.read(stdout, _LONGEST_HELLO)
            line += piece
            if not piece or len(line) > _LONGEST_HELLO:
                raise self._unusable(None if not piece else "says more than a line")
        try:
            return socket_of(self._binary, line)
        except SandboxError as error:
            raise error if error.kind == "config" else self._unusable(f"broke the protocol: {error.message}") from error

    def _unusable(self, how: str | None) -> SandboxError:
        """The error of a process that did not begin. Nothing was lost: it is not a sandbox that is gone."""
        if how is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_LEAVE)
        message, code = self._ended(how), self._child.returncode
        # A binary that is older than the protocol does not know its flags.
        if code == 2 and "unexpected argument" in message:
            return version_mismatch(self._binary, None)
        return error_of("config" if code == 2 else "engine", message)

    def _ended(self, how: str | None = None) -> str:
        code = self._child.returncode
        if how is None:
            how = f"ended with signal {-code}" if code and code < 0 else f"ended with exit code {code}"
        end = os.fstat(self._stderr.fileno()).st_size
        said = os.pread(self._stderr.fileno(), _STDERR_KEPT, max(0, end - _STDERR_KEPT)).decode("utf-8", "replace")
        return f"the process {self._binary} {how}{': ' if said.strip() else ''}{said.strip()}"


def socket_of(binary: str, line: bytes) -> str:
    """The path of the socket that a binary names in its first line."""
    hello = Answer(parsed(line))
    if hello.integer("protocol") != PROTOCOL:
        raise version_mismatch(binary, hello.data)
    return hello.text("socket")


def _is_readable(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0, seconds) * 1000))


def environment() -> dict[str, str]:
    """What the process gets of this environment. An image is fetched, as by `exec`, unless it says otherwise. The
    client's own variables are not settings of the process, which would refuse them."""
    rest = {name: value for name, value in os.environ.items() if name not in _OWN}
    return {"SANDBOXCTL_PROGRAMS_PULL": "missing", **rest}


_OWN: Final = frozenset({"SANDBOXCTL_BINARY", "SANDBOXCTL_SERVER", "SANDBOXCTL_TOKEN"})

_shared: dict[tuple[str, str | None, tuple[str, str] | None], Process] = {}
_sharing = threading.Lock()


def shared_process(
    binary: str | os.PathLike[str] | None, engine: str | None, root: tuple[str, str] | None = None
) -> Process:
    """The process of a binary, an engine, and a directory or an archive that commands run in, as `root_of` gives it. A
    new one is started when the last one has ended."""
    path = find_binary(binary)
    with _sharing:
        process = _shared.get((path, engine, root))
        if process is None or process.has_ended():
            process = Process(path, arguments_of(["serve", "--private"], engine, root))
            _shared[path, engine, root] = process
        return process


def arguments_of(verb: list[str], engine: str | None, root: tuple[str, str] | None) -> list[str]:
    """The arguments of the binary for the sandboxes of an engine, and of a directory or an archive."""
    arguments = [*([] if engine is None else ["--engine", engine]), *verb]
    return arguments if root is None else [*arguments, f"--{root[0].replace('_', '-')}", root[1]]


def _close_all() -> None:
    for process in list(_shared.values()):
        process.close()


def _forked() -> None:
    global _sharing
    _sharing = threading.Lock()
    for process in _shared.values():
        process.forget()
    _shared.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forked)
