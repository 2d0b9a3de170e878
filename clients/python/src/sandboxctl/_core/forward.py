"""Ports of this machine that lead to ports of sandboxes: each connection is one to a sandbox's loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, TypeVar

from ..errors import error_of
from .connection import LOST, Connections

__all__ = ["Forward"]

T = TypeVar("T")

_PIECE: Final = 64 << 10
_HEAD: Final = 32 << 10
# The time for a connection to the server, and for its answer, in seconds.
_CONNECT: Final = 30.0


class Forward:
    """A port of this machine that leads to one of a sandbox, until `close` or the end of its block."""

    host: str
    """The address that it is at."""
    port: int
    """Its number."""

    def __init__(
        self, connections: Connections, path: str, headers: Mapping[str, str], host: str, local_port: int
    ) -> None:
        self._connections = connections
        lines = [f"POST {connections.prefix}{path} HTTP/1.1", f"Host: {connections.host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += ["Connection: Upgrade", "Upgrade: sandboxctl-tcp", "Content-Length: 0", "", ""]
        self._head = "\r\n".join(lines).encode("latin-1")
        self._tasks: set[asyncio.Task[None]] = set()
        # A thread, so that a synchronous program may wait for what it is asked over it.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandboxctl-forward", daemon=True)
        self._thread.start()
        try:
            self._server = self._run(asyncio.start_server(self._accepted, host, local_port, limit=_PIECE))
        except BaseException as error:
            self._stop()
            if isinstance(error, OSError):
                hint = "without `local_port` it is one that is free"
                raise error_of("usage", f"{host}:{local_port} cannot be listened at: {error}", hint) from error
            raise
        self.host, self.port = self._server.sockets[0].getsockname()[:2]

    def close(self) -> None:
        """Closes it, and its connections. A second call does nothing."""
        if not self._loop.is_closed():
            self._run(self._end())
            self._stop()

    def __enter__(self) -> Forward:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inside: asyncio.StreamWriter | None = None
        try:
            # Who is refused sees the connection end, as where nothing listens.
            there, inside = await asyncio.wait_for(self._connect(), _CONNECT)
            await asyncio.gather(_pump(reader, inside), _pump(there, writer))
        except (*LOST, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            for end in (writer, inside):
                if end is not None:
                    end.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._connections.streams(_HEAD)
        try:
            writer.write(self._head)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 101 "):
                raise ConnectionRefusedError(head[:100].decode("latin-1"))
        except BaseException:
            writer.close()
            raise
        return reader, writer


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes on what comes, up to its end, and that."""
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    # TLS has no end of one direction: the other side sees that of the connection.
    if writer.can_write_eof():
        with suppress(OSError):
            writer.write_eof()
