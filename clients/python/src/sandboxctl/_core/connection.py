"""Requests over HTTP/1.1: over TCP, TLS or a UNIX socket. They block, and may be made and ended by any threads."""

from __future__ import annotations

import asyncio
import os
import re
import select
import socket
import ssl
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from typing import Any, Final, cast
from urllib.parse import SplitResult, urlsplit

from ..errors import SandboxError, error_of
from .answers import unexpected
from .limiter import Slots
from .requests import path_bytes
from .trust import is_untrusted, trusted

__all__ = ["LOST", "Connections", "Exchange", "Server"]

LOST: Final = (OSError, HTTPException)
"""What a request fails with if there is no answer, or not all of it."""

# The times for a connection and for the next bytes, in seconds. A request waits 60 s for an execution's end.
_CONNECT: Final = 10.0
_WAIT: Final = 90.0
_READ: Final = 1 << 18


class Connections:
    """The connections to one server, and the slots of its calls. A connection is used by one request at a time."""

    def __init__(self, server: str) -> None:
        self._url = None if server.startswith("unix:") else _url(server)
        self._path = _socket(server) if self._url is None else ""
        self.prefix = "" if self._url is None else self._url.path.rstrip("/")
        """What the paths of all requests begin with."""
        self._context = trusted() if self._url is not None and self._url.scheme == "https" else None
        if self._context is not None:
            self._context.sslsocket_class = _TlsSocket
        self._begin()

    @property
    def slots(self) -> Slots:
        """The slots."""
        self._check()
        return self._slots

    def take(self) -> _Connection:
        """A connection that is open, or is to be opened."""
        self._check()
        while self._idle:
            with suppress(IndexError):
                connection = self._idle.pop()
                # What the server has closed, or says unasked, is of no use.
                if not _is_readable(connection.sock, 0):
                    return connection
                connection.close()
        return _Connection(self._url, self._path, self._context)

    @property
    def host(self) -> str:
        """The `Host` of requests."""
        return "localhost" if self._url is None else self._url.netloc

    async def streams(self, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection for a loop of its own."""
        if self._url is None:
            return await asyncio.open_unix_connection(self._path, limit=limit)
        port = self._url.port or (80 if self._context is None else 443)
        return await asyncio.open_connection(self._url.hostname, port, limit=limit, ssl=self._context)

    def give(self, connection: _Connection) -> None:
        """Gives a connection back for the next request."""
        self._idle.append(connection)

    def close(self) -> None:
        """Closes the connections that are not in use."""
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()

    def _check(self) -> None:
        # After a fork, the slots that are taken, and all connections, are the parent's.
        if self._pid != os.getpid():
            self._begin()

    def _begin(self) -> None:
        self._idle: list[_Connection] = []
        self._slots = Slots()
        self._pid = os.getpid()


class Server:
    """A server, and its caller."""

    takes_directories = False
    """Whether a sandbox may have a directory of this machine."""

    def __init__(self, server: str, token: str | None) -> None:
        if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
            raise error_of("config", "token: it has characters that no token has")
        self.connections = Connections(server)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._server = server

    def check(self) -> None:
        """A server takes calls of any program."""

    def failure(self, error: BaseException | None, why: str) -> SandboxError:
        """The error of a connection that is lost, or is not made."""
        if is_untrusted(error):
            hint = "SANDBOXCTL_CA_FILE names a file with the certificate of its authority"
            message = f"the certificate of {self._server} is not trusted: {why}"
            return error_of("unavailable", message, hint, retryable=False)
        message = f"no connection to {self._server}: {why}"
        return error_of("unavailable", message, "is the server running, and is this its address?")


class Exchange:
    """A request and its answer."""

    def __init__(
        self,
        connections: Connections,
        method: str,
        path: str,
        headers: Mapping[str, str],
        timeout: float | None = None,
    ) -> None:
        self.is_sent = False
        """Whether the server may have it."""
        self.body = b""
        """The body of the answer, if it was wanted as a whole."""
        self._connections = connections
        self._request = method, connections.prefix + path
        self._headers = dict(headers)
        self._timeout = timeout or _WAIT
        self._connection = connections.take()
        self._socket: socket.socket | None = self._connection.sock
        self._response: HTTPResponse | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def status(self) -> int:
        """The status of the answer."""
        return cast("HTTPResponse", self._response).status

    @property
    def is_success(self) -> bool:
        """Whether it is the answer that is wanted."""
        return 200 <= self.status < 300

    def header(self, name: str) -> str:
        """A header of the answer; empty if there is none."""
        return cast("HTTPResponse", self._response).headers.get(name, "")

    def perform(self, body: bytes | None, longest: int | None, longest_refusal: int) -> None:
        """Sends it, and takes its answer: a success with `longest` None is left to `read`."""
        with self._using() as connection:
            self._connect()
            connection.send_whole(*self._request, body, self._headers)
        self.take(longest, longest_refusal)

    def begin(self) -> None:
        """Sends its head; `push` sends the body."""
        with self._using() as connection:
            self._connect()
            connection.putrequest(*self._request)
            for name, value in {**self._headers, "Transfer-Encoding": "chunked"}.items():
                connection.putheader(name, value)
            connection.endheaders()

    def push(self, piece: bytes) -> None:
        """Sends a piece of the body; an empty one is its end."""
        # A server that refuses it may not take all of it: the answer says why.
        with self._using() as connection, suppress(ConnectionError):
            connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))

    def is_answered(self, seconds: float | None) -> bool:
        """Whether there is an answer, or the end of the connection, within this time."""
        at = self._socket
        if not isinstance(at, _TlsSocket):
            return _is_readable(at, seconds)
        while at.early or _is_readable(at, seconds):
            with self._using():
                # Once `take` has the answer, it alone reads the connection.
                if self._response is not None or at.has_data():
                    return True
        return False

    def take(self, longest: int | None, longest_refusal: int) -> None:
        """Takes the answer."""
        with self._using() as connection:
            response = self._response = connection.getresponse()
            for length in response.headers.get_all("content-length", []):
                if not re.fullmatch("[0-9]{1,18}", length):
                    raise unexpected(f"`Content-Length` is {length[:200]!r}")
        if self.header("content-encoding") not in ("", "identity"):
            raise unexpected("it is compressed")
        # Where only its end says that it is complete, it may be cut. Events say so themselves.
        if self.is_success and not response.chunked and response.length is None and "Accept" not in self._headers:
            raise unexpected("it does not say how long it is")
        if self.is_success and longest is None:
            return
        bound = longest if self.is_success and longest is not None else longest_refusal
        body = bytearray()
        while piece := self.read():
            body += piece
            if len(body) > bound:
                raise error_of("too_large", f"an answer of more than {bound} bytes", "read it with `files.stream`")
        self.body = bytes(body)

    def read(self) -> bytes:
        """The next piece of the answer's body; an empty one is its end."""
        response = cast("HTTPResponse", self._response)
        if response.isclosed():
            return b""
        with self._using() as connection:
            piece = response.read1(_READ)
            if not piece and response.length:
                raise IncompleteRead(b"", response.length)
            if not piece or response.length == 0:
                response.close()
                self._is_closed = True
                if not response.will_close:
                    self._connections.give(connection)
                    # It is of others now.
                    self._connection = _NONE
            return piece

    def close(self) -> None:
        """Ends it, wherever it is; an answer that was read has ended."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._socket is not None:
            with suppress(OSError):
                # What waits for it in another thread goes on, and closes it.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        if self._lock.acquire(blocking=False):
            self._end()
            self._lock.release()

    def _connect(self) -> None:
        if self._connection.sock is None:
            self._connection.connect()
            if self._is_closed:
                raise ConnectionAbortedError("it was cancelled")
        self._socket = cast("socket.socket", self._connection.sock)
        self._socket.settimeout(self._timeout)
        self.is_sent = True

    @contextmanager
    def _using(self) -> Generator[_Connection]:
        with self._lock:
            try:
                if self._is_closed:
                    raise ConnectionAbortedError("it was cancelled")
                yield self._connection
            except BaseException:
                self._is_closed = True
                raise
            finally:
                if self._is_closed:
                    self._end()

    def _end(self) -> None:
        if self._response is not None:
            self._response.close()
        self._connection.close()


class _TlsSocket(ssl.SSLSocket):
    """What comes at it may be TLS's own, as the tickets for later sessions are, which follow the handshake."""

    early = b""
    """What was read to see whether there is any data."""

    def has_data(self) -> bool:
        """Whether there is data, or the end."""
        if not self.early:
            timeout = self.gettimeout()
            self.settimeout(0)
            try:
                self.early = self.recv(1)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except (OSError, ValueError):
                # `take` meets the same failure, and raises it.
                return True
            finally:
                self.settimeout(timeout)
        return True

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        if not self.early:
            return super().recv_into(buffer, nbytes, flags)
        memoryview(buffer)[:1] = self.early
        self.early = b""
        return 1


class _Connection(HTTPConnection):
    """A connection over TCP, TLS, or without a URL over a UNIX socket."""

    def __init__(self, url: SplitResult | None, path: str, context: ssl.SSLContext | None) -> None:
        self.default_port = 80 if context is None else 443
        host, port = ("localhost", None) if url is None else (cast("str", url.hostname), url.port)
        super().__init__(host, port or self.default_port, timeout=_CONNECT)
        self._path = path
        self._context = context
        self._parts: list[bytes] | None = None

    def connect(self) -> None:
        if self._path:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
            return
        self.sock = socket.create_connection((self.host, self.port), self.timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)

    def send_whole(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> None:
        """Sends a request at once: a head that comes alone would wake the server for nothing."""
        parts: list[bytes] = []
        self._parts = parts
        self.request(method, path, body, headers)
        self._parts = None
        self.send(b"".join(parts))

    def send(self, data: Any) -> None:
        if self._parts is None:
            super().send(data)
        else:
            self._parts.append(data)


_NONE: Final = _Connection(None, "", None)


def _is_readable(at: socket.socket | None, seconds: float | None) -> bool:
    if at is None or at.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(at, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def _socket(server: str) -> str:
    path = server.removeprefix("unix:")
    if b"\0" in (path_bytes(path) or b"\0"):
        raise error_of("config", f'server: "{server}" names no socket')
    return path


def _url(server: str) -> SplitResult:
    try:
        url = urlsplit(server)
        host = (url.hostname or "").encode("idna")
        # Reading it checks it.
        _ = url.port, url.path.encode("ascii")
    except ValueError as error:
        raise error_of("config", f'server: "{server}" is not a URL') from error
    if url.scheme not in {"http", "https"} or not host:
        raise error_of("config", f'server: "{server}" is neither http://…, https://… nor unix:PATH')
    if url.username is not None or url.query or url.fragment:
        raise error_of("config", "server: a URL without credentials, query and fragment is expected", "give `token`")
    return url
