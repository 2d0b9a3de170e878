"""Waiting in a line: at most so many calls at once, in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

__all__ = ["Limiter", "Slots", "Ticket"]

Ticket = Future[None]
"""A place in the line; done when it is its turn."""


class Limiter:
    """So many slots, for any threads and event loops."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: deque[Ticket] = deque()
        self._lock = threading.Lock()

    def ticket(self) -> Ticket:
        """Joins the line. Each ticket is given back with `release`, whether or not its turn came."""
        ticket: Ticket = Future()
        with self._lock:
            granted = self._free > 0
            if granted:
                self._free -= 1
            else:
                self._waiting.append(ticket)
        if granted:
            ticket.set_result(None)
        return ticket

    def release(self, ticket: Ticket) -> None:
        """Gives a slot to the next in the line, or leaves the line."""
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                return
            following = self._waiting.popleft() if self._waiting else None
            if following is None:
                self._free += 1
        if following is not None:
            following.set_result(None)


@dataclass(frozen=True)
class Slots:
    """The slots of one process or server, 124 in all.

    Each kind of call has its own, so that streams that are read slowly and commands that run for long never keep a
    short operation, or each other, from being made. Those that follow a process may do so for hours.
    """

    executions: Limiter = field(default_factory=lambda: Limiter(24))
    operations: Limiter = field(default_factory=lambda: Limiter(20))
    downloads: Limiter = field(default_factory=lambda: Limiter(8))
    uploads: Limiter = field(default_factory=lambda: Limiter(8))
    followers: Limiter = field(default_factory=lambda: Limiter(64))
