"""The few things that a synchronous and an asynchronous program do in different words.

`scripts/unasync` turns each `async_x` into `x`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, BinaryIO, Final, Protocol, TypeAlias, TypeVar, cast

__all__ = [
    "AsyncPieces",
    "Pieces",
    "async_begun",
    "async_pieces",
    "async_result",
    "async_run",
    "async_spawned",
    "begun",
    "pieces",
    "result",
    "run",
    "spawned",
]

_PIECE: Final = 256 << 10

T = TypeVar("T")

Pieces: TypeAlias = "Iterable[bytes] | BinaryIO"
"""Content in pieces, or a file that is open for reading bytes."""

AsyncPieces: TypeAlias = "Pieces | AsyncIterable[bytes]"
"""The same, or pieces that come one after another."""


def result(future: Future[T]) -> T:
    """Waits for a result."""
    return future.result()


async def async_result(future: Future[T]) -> T:
    """Waits for a result. A task that is cancelled meanwhile leaves the future as it is."""
    await _done(future)
    return future.result()


def run(work: Callable[..., T], *args: Any) -> T:
    """Does what blocks."""
    return work(*args)


async def async_run(work: Callable[..., T], *args: Any) -> T:
    """Does what blocks, in a thread. It goes on if the task is cancelled: who made the call ends it."""
    return await async_result(async_begun(work, *args))


class Doable(Protocol):
    """What is done at some time."""

    def done(self) -> bool:
        """Whether it is done."""
        ...


class _Asked:
    def __init__(self, ask: Callable[[float | None], bool]) -> None:
        self._ask = ask

    def done(self) -> bool:
        return self._ask(0)


def begun(wait: Callable[[float | None], bool], seconds: float | None) -> Doable:
    """What is waited for while something else is done: here it is asked for."""
    return _Asked(wait)


def async_begun(work: Callable[..., T], *args: Any) -> Future[T]:
    """What is waited for while something else is done, in a thread, which does not keep the program running."""
    future: Future[T] = Future()

    def settle() -> None:
        try:
            future.set_result(work(*args))
        except BaseException as error:
            future.set_exception(error)

    _workers.put(settle)
    return future


def spawned(work: Callable[[], T]) -> Future[T]:
    """What goes on beside the program, in a thread."""
    return async_begun(work)


def async_spawned(work: Callable[[], Awaitable[T]]) -> Future[T]:
    """What goes on beside the program, in a task."""
    future: Future[T] = Future()

    async def settle() -> None:
        try:
            future.set_result(await work())
        except BaseException as error:
            future.set_exception(error)

    task = asyncio.ensure_future(settle())
    # The event loop itself does not keep it.
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return future


_tasks: set[asyncio.Future[None]] = set()


class _Workers:
    """Threads for what blocks: as many as there was at one time. A pool of the standard library would keep the program
    from ending while one of them waits."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    def put(self, work: Callable[[], None]) -> None:
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._run, name="sandboxctl", daemon=True).start()
        self._waiting.put(work)

    def _run(self) -> None:
        while True:
            self._waiting.get()()
            self._idle.release()


def _begin() -> None:
    global _workers
    _workers = _Workers()


_begin()
# The child of a fork has no threads of its parent.
os.register_at_fork(after_in_child=_begin)


async def _done(future: Future[Any]) -> None:
    if future.done():
        return
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def done(_: Future[Any]) -> None:
        # A closed loop has no waiters.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(done)
    await waiter


def pieces(content: Pieces, until: Doable | None = None) -> Generator[bytes]:
    """The content in pieces of a size that can be sent, until the future is done."""
    source = _parts(content)
    for piece in source:
        for start in range(0, len(piece), _PIECE):
            if until is not None and until.done():
                return
            yield bytes(piece[start : start + _PIECE])


async def async_pieces(content: AsyncPieces, until: Future[Any] | None = None) -> AsyncGenerator[bytes]:
    """The content in pieces of a size that can be sent, until the future is done, even while the content is waited
    for."""
    if not isinstance(content, AsyncIterable):
        source = _parts(content)
        # To read a file takes time, which the event loop has not.
        read: Callable[[], Any] = lambda: next(source, None)  # noqa: E731
        blocking = hasattr(content, "read")
        while (piece := await asyncio.to_thread(read) if blocking else read()) is not None:
            for part in pieces([piece], until):
                yield part
            if until is not None and until.done():
                return
        return
    iterator = aiter(content)
    ended = asyncio.ensure_future(_done(until)) if until is not None else None
    following: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            following = asyncio.ensure_future(_next(iterator))
            await asyncio.wait([following, ended] if ended else [following], return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                return
            if (piece := following.result()) is None:
                return
            for part in pieces([piece], until):
                yield part
    finally:
        for task in (following, ended):
            if task is not None:
                task.cancel()


async def _next(iterator: AsyncIterator[bytes]) -> bytes | None:
    return await anext(iterator, None)


def _parts(content: Pieces) -> Iterator[bytes]:
    if hasattr(content, "read"):
        file = cast("BinaryIO", content)
        return iter(lambda: file.read(_PIECE), b"")
    return iter(cast("Iterable[bytes]", content))
