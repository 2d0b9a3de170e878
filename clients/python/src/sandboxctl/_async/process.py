"""Processes of a sandbox that live on after the call that started them, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from .._core.names import worded
from .._core.requests import Path, Text, bytes_of, signal_of, terminal_request
from .._core.waiting import async_result, async_spawned
from ..errors import SandboxError
from ..views import EventReader, ProcessEvent, ProcessInfo, exited, process_info
from .transport import AsyncTransport

if TYPE_CHECKING:
    from .._core import wire

__all__ = ["AsyncProcess", "AsyncPty", "AsyncTerminal"]

SignalName: TypeAlias = "wire.SignalName"
"""A signal: `HUP`, `INT`, `QUIT`, `KILL`, `USR1`, `USR2`, `TERM`, `CONT`, `STOP`, `TSTP` or `WINCH`."""

SignalTarget: TypeAlias = "wire.SignalTarget"
"""Who gets a signal: the `process`, its `group`, the `foreground` group of its terminal, or the `tree`, which is all
that it has started."""

# What is sent of an input at once.
_PIECE: Final = 64 << 10
# A process that has ended, or is forgotten since.
_ENDED: Final = frozenset({"process_ended", "not_found", "gone"})


@worded
class AsyncProcess:
    """A process of a sandbox. It lives on until it ends, or its sandbox does: no call has to wait for it.

    Iteration gives its events, those from its start too as far as they are kept, and ends when nothing of it is left.
    """

    id: int
    """Its number in its sandbox."""
    pid: int
    """Its process id, in the sandbox."""
    tag: str | None
    """The word of its creator's own."""

    def __init__(self, opened: Callable[[], AsyncTransport], info: ProcessInfo) -> None:
        self.id = info.id
        self.pid = info.pid
        self.tag = info.tag
        self._opened = opened
        self._path = f"/processes/{info.id}"
        # Another generation of the sandbox has other processes.
        self._query = f"?generation={info.generation}"

    async def get_info(self) -> ProcessInfo:
        """What is known of it."""
        return process_info(await self._opened().ask("GET", f"{self._path}{self._query}"))

    async def wait(self, *, check: bool = False) -> ProcessInfo:
        """Waits until it has exited. Whatever ends the wait leaves it running.

        With `check` an exit code other than 0 is raised.
        """
        return exited(process_info(await self._opened().exited(f"{self._path}{self._query}")), check)

    async def events(
        self, after: int | Literal["now"] = 0, *, mode: Literal["lossy", "wait"] = "lossy"
    ) -> AsyncGenerator[ProcessEvent]:
        """Its events after one of this number, or from now on, until nothing of it is left.

        A connection that is lost is made again, and goes on after the last event. A reader that is slow misses events,
        which one `omitted` stands for; with the mode `wait` the process is held up instead, for up to 30 seconds.
        """
        path = f"{self._path}/events{self._query}&after={after}&mode={mode}"
        read = EventReader()
        async with aclosing(self._opened().follow(path, None if after == "now" else after)) as events:
            async for data in events:
                event = read(data)
                if event is not None:
                    yield event

    def __aiter__(self) -> AsyncGenerator[ProcessEvent]:
        return self.events()

    async def send_stdin(self, data: Text) -> None:
        """Writes to its stdin, which must be open (`stdin=True`). What it does not read yet waits, up to 256 KiB.

        An input that it does not read within 10 seconds is a `SandboxError` of kind `stdin_full`.
        """
        content = bytes_of(data, "data")
        for start in range(0, len(content), _PIECE):
            await self._ask("POST", "/stdin", content=content[start : start + _PIECE], repeatable=False)

    async def close_stdin(self) -> None:
        """Ends its stdin, after what was sent."""
        await self._ask("POST", "/stdin/close")

    async def signal(self, signal: SignalName | str | int, to: SignalTarget = "group") -> None:
        """Sends a signal: `"TERM"`, `"SIGTERM"`, `signal.SIGTERM` or 15. One that has ended is a `SandboxError` of kind
        `process_ended`."""
        await self._ask("POST", "/signal", json={"signal": signal_of(signal), "to": to}, repeatable=False)

    async def kill(self) -> None:
        """Kills it, and all that it started. It has no effect on one that has ended."""
        try:
            await self._ask("POST", "/signal", json={"signal": "KILL", "to": "tree"})
        except SandboxError as error:
            if error.kind not in _ENDED:
                raise

    async def stop(self) -> None:
        """Asks it, and all that it started, to end, and kills what has not ended after its `stop_timeout`; a second
        call kills at once. It has no effect on one that has ended."""
        try:
            await self._ask("DELETE", "")
        except SandboxError as error:
            if error.kind not in _ENDED:
                raise

    async def resize(self, cols: int, rows: int) -> None:
        """Sets the size of its terminal."""
        await self._ask("POST", "/resize", json={"cols": cols, "rows": rows})

    async def _ask(
        self, method: str, what: str, *, json: object = None, content: bytes | None = None, repeatable: bool = True
    ) -> None:
        await self._opened().ask(
            method, f"{self._path}{what}{self._query}", json=json, content=content, repeatable=repeatable
        )


@worded
class AsyncTerminal(AsyncProcess):
    """A process with a terminal."""

    def __init__(
        self,
        opened: Callable[[], AsyncTransport],
        info: ProcessInfo,
        on_data: Callable[[bytes], object] | None = None,
    ) -> None:
        super().__init__(opened, info)
        self._on_data = on_data
        self._heard: Future[None] | None = None if on_data is None else async_spawned(self._listen)

    async def send(self, data: Text) -> None:
        """Types into it: `"ls\\n"`, or `"\\x03"` for Ctrl-C."""
        await self.send_stdin(data)

    async def wait(self, *, check: bool = False) -> ProcessInfo:
        """Waits until it has exited, and with `on_data` until that has got all of its output, which goes on while
        something that it started still has the terminal. What `on_data` raises is raised here.

        Whatever ends the wait leaves it running. With `check` an exit code other than 0 is raised.
        """
        info = await super().wait()
        if self._heard is not None:
            await async_result(self._heard)
        return exited(info, check)

    async def _listen(self) -> None:
        async with aclosing(self.events()) as events:
            async for event in events:
                if event.bytes and self._on_data is not None:
                    self._on_data(event.bytes)


@worded
class AsyncPty:
    """The terminals of a sandbox, which keeps processes (`processes="kept"`) and has programs."""

    def __init__(self, opened: Callable[[], AsyncTransport]) -> None:
        self._opened = opened

    async def create(
        self,
        cols: int = 80,
        rows: int = 24,
        on_data: Callable[[bytes], object] | None = None,
        *,
        command: Text | None = None,
        args: Sequence[Text] | None = None,
        env: Mapping[str, Text] | None = None,
        cwd: Path | None = None,
        secrets: Mapping[str, Text] | None = None,
        timeout: float | None = None,
        tag: str | None = None,
        term: str | None = None,
        stop_signal: SignalName | str | int | None = None,
        stop_timeout: float | None = None,
    ) -> AsyncTerminal:
        """Starts a shell, or a command as `commands.run` takes it, in a terminal.

        `on_data` gets its output as it comes. `term` is the kind of the terminal, `xterm-256color` if it is not given.
        """
        request = terminal_request(
            cols,
            rows,
            command,
            args,
            env=env,
            cwd=cwd,
            secrets=secrets,
            timeout=timeout,
            tag=tag,
            term=term,
            stop_signal=stop_signal,
            stop_timeout=stop_timeout,
        )
        info = process_info(await self._opened().start_process(request))
        return AsyncTerminal(self._opened, info, on_data)
