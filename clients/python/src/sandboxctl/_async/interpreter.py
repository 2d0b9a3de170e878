"""The code interpreter of a sandbox, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from time import monotonic
from typing import Any, Final

from .._core.answers import Answer, parsed, unexpected
from .._core.code import CodeContext, CodeRun, CodeValue, Reader
from .._core.requests import process_request
from .._core.waiting import async_run
from ..errors import SandboxError, error_of
from ..views import process_info
from .process import AsyncProcess
from .transport import AsyncTransport

__all__ = ["AsyncInterpreter"]

_PORT: Final = 49999
# What images with an interpreter have, and for how long it may take to be ready, in seconds.
_PROGRAM: Final = "/usr/lib/code-interpreter/start"
_PATIENCE: Final = 60.0
_IMAGE: Final = (
    "an image with the code interpreter, such as `sandboxctl-e2b-code-interpreter` of templates/, has it; the sandbox "
    'needs `ports=[49999]` and `processes="kept"`'
)


class AsyncInterpreter:
    """The code interpreter of a sandbox whose image has one, and whose port 49999 is open.

    Code of a context finds what code before it has defined. Without a context it runs in one of its language.
    """

    def __init__(self, opened: Callable[[], AsyncTransport]) -> None:
        self._opened = opened

    async def run_code(
        self,
        code: str,
        *,
        language: str | None = None,
        context: CodeContext | str | None = None,
        envs: dict[str, str] | None = None,
        timeout: float | None = 300,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_value: Callable[[CodeValue], object] | None = None,
    ) -> CodeRun:
        """Runs code: `python`, unless it is of another `language` (`bash`, `javascript`, `typescript`) or `context`.

        The listeners get what it prints and shows as it comes. Whatever ends the wait interrupts it, after `timeout`
        seconds too, which is the error `Timeout`. An error of the code is a result.
        """
        reader = Reader({"stdout": on_stdout, "stderr": on_stderr, "result": on_value})
        request = {"code": code, "language": language, "context_id": _id(context), "env_vars": envs}
        until = None if timeout is None else monotonic() + timeout
        async with aclosing(self._pieces("POST", "/execute", request, timeout)) as pieces:
            async for piece in pieces:
                reader.push(piece)
                if until is not None and monotonic() > until and not reader.is_complete:
                    raise error_of("timeout", f"the code did not end within {timeout:g} s", owner="client")
        if not reader.is_complete:
            raise unexpected("the output of the code breaks off")
        return reader.run

    async def create_context(self, *, language: str | None = None, cwd: str | None = None) -> CodeContext:
        """Creates a context, whose code begins in the directory `cwd`."""
        return _context(await self._json("POST", "/contexts", {"language": language, "cwd": cwd}))

    async def list_contexts(self) -> list[CodeContext]:
        """All contexts."""
        return [_context(each) for each in await self._json("GET", "/contexts")]

    async def restart_context(self, context: CodeContext | str) -> None:
        """Forgets what code of the context has defined."""
        await self._json("POST", f"/contexts/{_id(context)}/restart", {})

    async def remove_context(self, context: CodeContext | str) -> None:
        """Ends a context."""
        await self._json("DELETE", f"/contexts/{_id(context)}")

    async def _json(self, method: str, path: str, body: object = None) -> Any:
        answer = b""
        async with aclosing(self._pieces(method, path, body)) as pieces:
            async for piece in pieces:
                answer += piece
        return parsed(answer)

    async def _pieces(
        self, method: str, path: str, body: object = None, timeout: float | None = None
    ) -> AsyncGenerator[bytes]:
        """The answer as it comes. An interpreter that does not run is started first."""
        try:
            async with self._opened().port(_PORT, method, path, body, timeout) as exchange:
                while piece := await async_run(exchange.read):
                    yield piece
            return
        except SandboxError as error:
            if error.kind != "port_closed":
                raise
        await self._start()
        async with self._opened().port(_PORT, method, path, body, timeout) as exchange:
            while piece := await async_run(exchange.read):
                yield piece

    async def _start(self) -> None:
        request = process_request(_PROGRAM, [], tag="code-interpreter")
        try:
            process = AsyncProcess(self._opened, process_info(await self._opened().start_process(request)))
        except SandboxError as error:
            raise error_of(error.kind, f"the code interpreter does not start: {error.message}", _IMAGE) from error
        until = monotonic() + _PATIENCE
        while True:
            try:
                async with self._opened().port(_PORT, "GET", "/health"):
                    return
            except SandboxError as error:
                if error.kind != "port_closed":
                    raise
                ended = (await process.get_info()).state != "running"
                if ended or monotonic() > until:
                    raise error_of("unavailable", "the code interpreter is not ready", _IMAGE) from error
            await asyncio.sleep(0.05)


def _id(context: CodeContext | str | None) -> str | None:
    return context.id if isinstance(context, CodeContext) else context


def _context(view: Any) -> CodeContext:
    answer = Answer(view)
    return CodeContext(answer.text("id"), answer.text("language"), answer.text("cwd"))
