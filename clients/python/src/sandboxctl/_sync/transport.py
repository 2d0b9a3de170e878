# Made from transport.py by scripts/unasync.
"""What carries calls, for synchronous programs: the lines of a process, or HTTP."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from .._core.requests import ENGINES, Path, Spec
from .._core.waiting import Pieces
from ..errors import error_of
from ..results import Json
from .local import LocalTransport

if TYPE_CHECKING:
    from .._core import wire

__all__ = ["Execution", "Transport", "connect"]


class Execution(Protocol):
    """A script or a command that was started. Its document has its id."""

    def events(self) -> Generator[Json]:
        """What happens, up to its end, for one reader."""
        ...

    def document(self) -> Json:
        """Waits for its end."""
        ...

    def kill(self) -> None:
        """Ends it, and all that it started; its document says so. One that has ended is as it was."""
        ...


class Transport(Protocol):
    """Calls of the sandbox that it creates, as the process or the server takes them. Every failure is a
    `SandboxError`."""

    def create(self, spec: Spec) -> str:
        """Creates a sandbox, and returns its id."""
        ...

    def operation(self, operation: Json) -> Json:
        """Performs an operation on files, and returns its envelope."""
        ...

    def start(self, request: wire.ExecutionRequest, *, events: bool) -> Execution:
        """Starts an execution; with `events` it can be followed."""
        ...

    def once(
        self, spec: Spec, request: wire.ExecutionRequest, *, events: bool
    ) -> AbstractContextManager[Execution]:
        """Starts an execution in a sandbox of its own, which ends with the block."""
        ...

    def download(self, path: Path) -> Generator[bytes]:
        """The content of a file, in pieces of one consistent file."""
        ...

    def upload(self, path: Path, content: Pieces) -> Json:
        """Writes a file, whole or not at all."""
        ...

    def destroy(self) -> None:
        """Ends the sandbox; one that is gone already is not an error."""
        ...

    def close(self) -> None:
        """Gives up its connections."""
        ...


def connect(
    server: str | None, token: str | None, binary: str | os.PathLike[str] | None, engine: str | None
) -> Transport:
    """The transport that a caller means: a server's if one is named, else that of this machine."""
    if server:
        for name, value in (("binary", binary), ("engine", engine)):
            if value is not None:
                raise error_of("usage", f"{name} is of this machine, and a server has its own")
    elif server is None and binary is None and engine is None:
        server = os.environ.get("SANDBOXCTL_SERVER")
    if not server:
        if token is not None:
            raise error_of("usage", "token: it needs a server")
        if engine is not None and engine not in ENGINES:
            raise error_of("usage", f"engine: {engine!r} is not one of {', '.join(ENGINES)}")
        return LocalTransport(binary, engine)
    try:
        from .http import HttpTransport
    except ImportError as error:
        raise error_of("config", f"a server needs httpx: {error}", "pip install httpx") from error
    return HttpTransport(server, token or os.environ.get("SANDBOXCTL_TOKEN") or None)
