# Made from ports.py by scripts/unasync.
"""The ports of a sandbox, for synchronous programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._core.answers import Answer
from .._core.forward import Forward
from .._core.names import worded
from .._core.requests import ttl_of
from ..views import ListeningPort, Preview, preview
from .transport import Transport

__all__ = ["Ports"]


@worded
class Ports:
    """The ports of a sandbox's loopback, as far as its `ports` say that they may be reached."""

    def __init__(self, opened: Callable[[], Transport]) -> None:
        self._opened = opened

    def list(self) -> Sequence[ListeningPort]:
        """The ports at which something listens, whether they may be reached or not."""
        answer = Answer(self._opened().ask("GET", "/ports"))
        return [ListeningPort(item.integer("port"), item.text("address")) for item in answer.items("ports")]

    def forward(self, port: int, *, local_port: int = 0, host: str = "127.0.0.1") -> Forward:
        """A port of this machine each of whose connections is one to this port, as a block or until its `close`.

        Without `local_port` it is one that is free: `port` of what it gives. Others can use it at any `host` but a
        loopback address.
        """
        return self._opened().forward(_number(port), host, local_port)

    def preview(self, port: int, *, timeout: float | None = None, public: bool = False) -> Preview:
        """Opens a host at which browsers and programs reach this port, for `timeout` seconds or an hour. It needs a
        server that has previews.

        Requests to it have its `headers`, unless it is `public`: then its URL is enough to use it, if the server
        allows that.
        """
        request = {"public": public, **({} if timeout is None else {"ttl_ms": ttl_of(timeout)})}
        return preview(self._opened().ask("POST", f"/ports/{_number(port)}/previews", json=request))

    def url(self, port: int, *, timeout: float | None = None) -> str:
        """The URL of a public preview of this port, for a browser."""
        return (self.preview(port, timeout=timeout, public=True)).url


def _number(port: int) -> int:
    if isinstance(port, bool) or not 0 < port < 65536:
        raise ValueError(f"port: a number from 1 to 65535 is expected, not {port!r}")
    return port
