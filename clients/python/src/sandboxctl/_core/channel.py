"""What a call says before its answer, from the thread that hears it to the one that reads it."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, Final, cast

__all__ = ["Channel"]

# The most that waits for a reader, about as many bytes.
_KEPT: Final = 64 << 20
# What an item counts beside its text.
_ITEM: Final = 256


class Channel:
    """Items for one reader. If it is 64 MiB behind, the oldest are dropped: an event says how many bytes they had. A
    process is shared, so that a slow reader must not hold up the events of others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[Any] = deque()
        self._size = 0
        self._ended = False
        self._waiting: Future[None] | None = None

    def put(self, item: Any) -> None:
        """Adds an item."""
        with self._lock:
            self._items.append(item)
            self._size += _size(item)
            if self._size > _KEPT:
                self._drop()
        self._tell()

    def end(self) -> None:
        """Says that there are no more."""
        self._ended = True
        self._tell()

    @property
    def ended(self) -> bool:
        """Whether there are no more, not even unread ones."""
        return self._ended and not self._items

    def take(self) -> Any:
        """The next item, or None if nothing has arrived yet."""
        with self._lock:
            if not self._items:
                return None
            item = self._items.popleft()
            self._size -= _size(item)
            return item

    def more(self) -> Future[None]:
        """Is done when there is an item, or the end."""
        with self._lock:
            future: Future[None] = Future()
            if not self._items and not self._ended:
                self._waiting = future
                return future
        future.set_result(None)
        return future

    def _drop(self) -> None:
        dropped = 0
        # Half of it at once, so that it is not said too often.
        while self._size > _KEPT // 2 and len(self._items) > 1:
            item = self._items.popleft()
            self._size -= _size(item)
            dropped += _bytes(item)
        self._items.appendleft({"event": "omitted", "bytes": dropped})
        self._size += _ITEM

    def _tell(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set_result(None)


def _size(item: Any) -> int:
    text = cast("dict[str, Any]", item).get("text") if isinstance(item, dict) else item
    return _ITEM + (len(text) if isinstance(text, str) else 0)


def _bytes(item: Any) -> int:
    """The bytes that the listener of an event would get, and those that were dropped before it."""
    event = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
    text, before = event.get("text"), event.get("bytes")
    dropped = before if isinstance(before, int) else 0
    if not isinstance(text, str):
        return dropped
    if event.get("encoding") == "base64":
        return dropped + len(text) // 4 * 3 - text[-2:].count("=")
    return dropped + len(text.encode())
