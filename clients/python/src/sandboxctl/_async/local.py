"""Calls of a process on this machine, which keeps any number of sandboxes, for asyncio."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Final, cast

from .._core.answers import Answer, base64_bytes
from .._core.channel import Channel
from .._core.process import CHUNK_WINDOW, Call, Process, shared_process
from .._core.requests import Path, Spec, path_of
from .._core.waiting import AsyncPieces, async_pieces, async_result, async_settled
from ..errors import NotFound, SandboxError, SandboxGone
from ..results import Json

if TYPE_CHECKING:
    from .._core import wire

__all__ = ["AsyncLocalTransport"]

# The time for a cancellation, in seconds.
_CANCEL: Final = 10.0


class _AsyncExecution:
    """An execution of the process."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def events(self) -> AsyncGenerator[Json]:
        async for event in _said(self._call):
            yield event

    async def document(self) -> Json:
        return await async_result(self._call.answer)

    async def kill(self) -> None:
        self._call.cancel()
        await async_settled(self._call.answer, _CANCEL)


class AsyncLocalTransport:
    """Calls of one sandbox in a process that others share."""

    def __init__(self, binary: str | os.PathLike[str] | None, engine: str | None) -> None:
        self._place = binary, engine
        self._process: Process | None = None
        self._name = ""

    async def create(self, spec: Spec) -> str:
        process = shared_process(*self._place)
        await async_result(process.ready)
        name = spec.name or f"client-{uuid.uuid4()}"
        arguments: dict[str, Any] = {"containerId": name, "rootPath": "io"}
        options = {
            "projectOutPath": spec.io_dir,
            "containerName": spec.name,
            "imageName": spec.image,
            "limits": spec.limits,
            "allow": spec.allow,
        }
        arguments |= {option: value for option, value in options.items() if value is not None}
        call = process.call("sandbox_init", arguments)
        try:
            data = await async_result(call.answer)
        except SandboxError:
            raise
        except BaseException:
            call.cancel()
            # Cancelled too late, it may be there; one with a name of the caller's is found by it.
            if spec.name is None:
                process.call("sandbox_destroy", {"containerId": name})
            raise
        self._process, self._name = process, name
        return Answer(data).text("sandboxId")

    async def operation(self, operation: Json) -> Json:
        call = self._open().call("sandbox_operation", {"containerId": self._name, "operation": operation})
        try:
            return await async_result(call.answer)
        finally:
            # If its answer is not waited for; else there is nothing to cancel.
            call.cancel()

    async def start(self, request: wire.ExecutionRequest, *, events: bool) -> _AsyncExecution:
        arguments = {"containerId": self._name, "request": request}
        channel = Channel() if events else None
        return _AsyncExecution(self._open().call("sandbox_execute", arguments, channel=channel, stream=events))

    @asynccontextmanager
    async def once(
        self, spec: Spec, request: wire.ExecutionRequest, *, events: bool
    ) -> AsyncGenerator[_AsyncExecution]:
        await self.create(spec)
        try:
            yield await self.start(request, events=events)
        finally:
            await self.destroy()

    async def download(self, path: Path) -> AsyncGenerator[bytes]:
        call = self._transfer("sandbox_download", path)
        try:
            async for chunk in _said(call):
                yield base64_bytes(chunk)
                call.take(1)
            await async_result(call.answer)
        finally:
            call.cancel()

    async def upload(self, path: Path, content: AsyncPieces) -> Json:
        call = self._transfer("sandbox_upload", path)
        channel = cast("Channel", call.channel)
        credit = CHUNK_WINDOW
        try:
            await async_result(call.begun)
            async with aclosing(async_pieces(content, call.answer)) as parts:
                async for piece in parts:
                    while credit == 0 and not channel.ended:
                        await async_result(channel.more())
                        more = channel.take()
                        credit += more if isinstance(more, int) and more > 0 else 0
                    if channel.ended:
                        break
                    credit -= 1
                    call.give(piece)
            # A refusal is the answer already.
            if not channel.ended:
                call.end()
            return await async_result(call.answer)
        finally:
            call.cancel()

    async def destroy(self) -> None:
        process = self._process
        if process is None or process.end is not None:
            return
        # The process waits for their end.
        process.cancel_all(self._name)
        with suppress(NotFound, SandboxGone):
            await async_result(process.call("sandbox_destroy", {"containerId": self._name}).answer)

    async def close(self) -> None:
        pass

    def _transfer(self, tool: str, path: Path) -> Call:
        arguments = {"containerId": self._name, "path": path_of(path)}
        return self._open().call(tool, arguments, channel=Channel())

    def _open(self) -> Process:
        process = self._process
        assert process is not None
        if process.end is not None:
            raise copy(process.end)
        return process


async def _said(call: Call) -> AsyncGenerator[Any]:
    """What a call says before its answer."""
    channel = cast("Channel", call.channel)
    while not channel.ended:
        item = channel.take()
        if item is None:
            await async_result(channel.more())
        else:
            yield item
