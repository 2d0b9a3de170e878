"""What carries calls, for asyncio: the lines of a process, or HTTP."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from .._core.requests import ENGINES, Path, Spec
from .._core.waiting import AsyncPieces
from ..errors import error_of
from ..results import Json
from .local import AsyncLocalTransport

if TYPE_CHECKING:
    from .._core import wire

__all__ = ["AsyncExecution", "AsyncTransport", "connect"]


class AsyncExecution(Protocol):
    """A script or a command that was started. Its document has its id."""

    def events(self) -> AsyncGenerator[Json]:
        """What happens, up to its end, for one reader."""
        ...

    async def document(self) -> Json:
        """Waits for its end."""
        ...

    async def kill(self) -> None:
        """Ends it, and all that it started; its document says so. One that has ended is as it was."""
        ...


class AsyncTransport(Protocol):
    """Calls of the sandbox that it creates, as the process or the server takes them. Every failure is a
    `SandboxError`."""

    async def create(self, spec: Spec) -> str:
        """Creates a sandbox, and returns its id."""
        ...

    async def operation(self, operation: Json) -> Json:
        """Performs an operation on files, and returns its envelope."""
        ...

    async def start(self, request: wire.ExecutionRequest, *, events: bool) -> AsyncExecution:
        """Starts an execution; with `events` it can be followed."""
        ...

    def once(
        self, spec: Spec, request: wire.ExecutionRequest, *, events: bool
    ) -> AbstractAsyncContextManager[AsyncExecution]:
        """Starts an execution in a sandbox of its own, which ends with the block."""
        ...

    def download(self, path: Path) -> AsyncGenerator[bytes]:
        """The content of a file, in pieces of one consistent file."""
        ...

    async def upload(self, path: Path, content: AsyncPieces) -> Json:
        """Writes a file, whole or not at all."""
        ...

    async def destroy(self) -> None:
        """Ends the sandbox; one that is gone already is not an error."""
        ...

    async def close(self) -> None:
        """Gives up its connections."""
        ...


def connect(
    server: str | None, token: str | None, binary: str | os.PathLike[str] | None, engine: str | None
) -> AsyncTransport:
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
        return AsyncLocalTransport(binary, engine)
    try:
        from .http import AsyncHttpTransport
    except ImportError as error:
        raise error_of("config", f"a server needs httpx: {error}", "pip install httpx") from error
    return AsyncHttpTransport(server, token or os.environ.get("SANDBOXCTL_TOKEN") or None)
