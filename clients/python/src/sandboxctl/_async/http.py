"""Calls over HTTP, for asyncio."""

from __future__ import annotations

import asyncio
import os
import random
import re
import secrets
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import httpx

from .._core.answers import Answer, identifier, parsed, unexpected
from .._core.limiter import Limiter, Slots
from .._core.lines import Lines
from .._core.requests import Path, Spec, encoded, path_bytes
from .._core.trust import is_untrusted, trusted
from .._core.waiting import AsyncPieces, async_pieces, async_result
from ..errors import NotFound, SandboxError, SandboxGone, error_of
from ..results import Json

if TYPE_CHECKING:
    from .._core import wire

__all__ = ["AsyncHttpTransport"]

_ATTEMPTS: Final = 6
# A server that asks for a longer pause is not waited for.
_LONGEST_PAUSE: Final = 60.0
# For how long one request waits for an execution's end, in seconds; the client's own limit is longer.
_WAIT: Final = 60
_TIMEOUT: Final = httpx.Timeout(_WAIT + 30, connect=10, pool=None)
# For what is made up for after a cancellation.
_CLEANUP: Final = httpx.Timeout(10, pool=None)
_LONGEST_ANSWER: Final = 128 << 20
_LONGEST_PROBLEM: Final = 1 << 20
_LONGEST_EVENT: Final = 64 << 20
_LONGEST_BODY: Final = 48 << 20
_READING: Final = frozenset({"read", "view", "list", "glob", "grep", "exists", "stat"})
_KIND_OF_STATUS: Final = {
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    408: "request_timeout",
    410: "gone",
    413: "too_large",
    429: "rate_limited",
    502: "unavailable",
    503: "unavailable",
    504: "request_timeout",
}


class _AsyncExecution:
    """An execution of the server."""

    def __init__(self, transport: AsyncHttpTransport, identifier: str) -> None:
        self._transport = transport
        self._path = f"/v1/executions/{identifier}"

    async def events(self) -> AsyncGenerator[Json]:
        async for event in self._transport.events(f"{self._path}/events"):
            yield event

    async def document(self) -> Json:
        return await self._transport.document(self._path)

    async def kill(self) -> None:
        try:
            await self._transport.json("DELETE", self._path, timeout=_CLEANUP)
        except SandboxError as error:
            # It has ended already.
            if error.kind not in {"conflict", "not_found", "gone"}:
                raise


class AsyncHttpTransport:
    """Calls of one sandbox of a server."""

    def __init__(self, server: str, token: str | None) -> None:
        if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
            raise error_of("config", "token: it has characters that no token has")
        self._server = server
        # What is compressed has no bound before it is unpacked.
        self._headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._socket = _socket(server)
        self._base = "http://localhost" if self._socket else _checked(server)
        self._sandbox = ""
        self._connect()

    async def create(self, spec: Spec) -> str:
        # With a name the request can be repeated: it finds the sandbox that it has created.
        request = {"name": spec.name or f"client-{uuid.uuid4()}", "spec": _kept(spec)}
        try:
            identifier = _id(await self.json("POST", "/v1/sandboxes", json=request))
        except SandboxError:
            raise
        except BaseException:
            # Cancelled too late, it may be there; one with a name of the caller's is found by it.
            if spec.name is None:
                with suppress(Exception):
                    made = _id(await self.json("POST", "/v1/sandboxes", attempts=1, timeout=_CLEANUP, json=request))
                    await self.json("DELETE", f"/v1/sandboxes/{made}", attempts=1, timeout=_CLEANUP)
            raise
        self._sandbox = f"/v1/sandboxes/{identifier}"
        return identifier

    async def operation(self, operation: Json) -> Json:
        repeatable = operation["operation"] in _READING
        path = f"{self._sandbox}/operations"
        try:
            async with _slot(self._slots.operations):
                answer = await self.json("POST", path, repeatable=repeatable, json=operation)
        except NotFound as error:
            raise self._gone(error) from error
        return answer

    async def start(self, request: wire.ExecutionRequest, *, events: bool) -> _AsyncExecution:
        try:
            return await self._submit(f"{self._sandbox}/executions", request)
        except NotFound as error:
            raise self._gone(error) from error

    @asynccontextmanager
    async def once(
        self, spec: Spec, request: wire.ExecutionRequest, *, events: bool
    ) -> AsyncGenerator[_AsyncExecution]:
        limits = {**(spec.limits or {}), **request.get("limits", {})}
        yield await self._submit("/v1/executions", {**_kept(spec), **request, "limits": limits})

    async def download(self, path: Path) -> AsyncGenerator[bytes]:
        try:
            async with (
                _slot(self._slots.downloads),
                self._stream("GET", self._file(path)) as response,
            ):
                async for part in response.aiter_bytes():
                    yield part
        except NotFound as error:
            raise await self._missing(error) from error

    async def upload(self, path: Path, content: AsyncPieces) -> Json:
        try:
            async with (
                _slot(self._slots.uploads),
                self._stream(
                    "PUT", self._file(path), attempts=1, content=async_pieces(content), headers=_BYTES
                ) as response,
            ):
                return Answer(parsed(await _body(response, _LONGEST_ANSWER))).data
        except NotFound as error:
            raise await self._missing(error) from error

    async def destroy(self) -> None:
        with suppress(NotFound, SandboxGone):
            await self.json("DELETE", self._sandbox)

    async def close(self) -> None:
        await self._http.aclose()

    async def document(self, path: str) -> Json:
        """Waits for the end of an execution."""
        attempt = 0
        while True:
            asked = monotonic()
            async with _slot(self._slots.executions):
                document = await self.json("GET", path, params={"wait": _WAIT})
            if document.get("status") not in ("queued", "running"):
                return document
            # A server that does not wait for the end is given more and more time.
            attempt = attempt + 1 if monotonic() - asked < 1 else 1
            await asyncio.sleep(_backoff(attempt))

    async def events(self, path: str) -> AsyncGenerator[Json]:
        """The events of an execution up to its end. A stream that breaks off is resumed after the last event."""
        last, attempt = 0, 1
        while True:
            failure: Exception | None = None
            try:
                headers = {"Last-Event-ID": str(last), "Accept": "text/event-stream"}
                async with _slot(self._slots.executions), self._stream("GET", path, headers=headers) as response:
                    data, lines = bytearray(), Lines()
                    async for piece in response.aiter_bytes():
                        for line in lines.push(piece):
                            if line.startswith(b"data:"):
                                data += line[5:] + b"\n"
                            elif not line and data:
                                event = Answer(parsed(bytes(data)))
                                data.clear()
                                number = event.integer("seq")
                                if number <= last:
                                    continue
                                last, attempt = number, 1
                                yield event.data
                                if event.text("event") == "end":
                                    return
                        if len(data) + lines.pending > _LONGEST_EVENT:
                            raise unexpected("an event is too long")
            except SandboxError as error:
                if not error.retryable:
                    raise
                failure = error
            if attempt == _ATTEMPTS:
                raise failure or _unreachable(self._server, "the events break off")
            await asyncio.sleep(_backoff(attempt))
            attempt += 1

    async def json(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool = True,
        attempts: int = _ATTEMPTS,
        timeout: httpx.Timeout = _TIMEOUT,
        **request: Any,
    ) -> dict[str, Any]:
        """The JSON of an answer. A request is made again where the server asks for that, and after a lost connection
        if it is repeatable."""
        if "json" in request:
            body = encoded(request.pop("json"))
            if len(body) > _LONGEST_BODY:
                raise error_of(
                    "too_large",
                    f"a request of more than {_LONGEST_BODY} bytes",
                    "write large files in pieces: `files.write` takes an iterable of bytes, or a file",
                )
            request["content"] = body
            request["headers"] = {"Content-Type": "application/json", **request.get("headers", {})}
        _, body = await self._send(
            method, path, whole=True, repeatable=repeatable, attempts=attempts, timeout=timeout, **request
        )
        return Answer(parsed(body)).data if body else {}

    async def _send(
        self, method: str, path: str, *, whole: bool, repeatable: bool, attempts: int, **request: Any
    ) -> tuple[httpx.Response, bytes]:
        """An answer whose status is a success, with its body if it is wanted as a whole; else it is to be closed."""
        if self._pid != os.getpid():
            # After a fork, the connections are the parent's.
            self._connect()
        attempt = 0
        while True:
            attempt += 1
            pause: float | None = 0.0
            try:
                response = await self._http.send(self._http.build_request(method, path, **request), stream=True)
                is_taken = False
                try:
                    if response.headers.get("content-encoding", "identity") != "identity":
                        raise unexpected("it is compressed")
                    is_taken = response.is_success and not whole
                    if is_taken:
                        return response, b""
                    body = await _body(response, _LONGEST_ANSWER if response.is_success else _LONGEST_PROBLEM)
                finally:
                    if not is_taken:
                        await response.aclose()
                if response.is_success:
                    return response, body
                failure, pause = _refusal(response, body), _pause(response)
            except httpx.TransportError as error:
                failure = self._named(error)
                failure.__cause__ = error
                never_sent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
                if not never_sent and (not repeatable or isinstance(error, httpx.TimeoutException)):
                    pause = None
                if not failure.retryable:
                    pause = None
            if pause is None or attempt >= attempts:
                raise failure
            await asyncio.sleep(pause + _backoff(attempt))

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, *, attempts: int = _ATTEMPTS, **request: Any
    ) -> AsyncGenerator[httpx.Response]:
        """An answer as it comes."""
        response, _ = await self._send(method, path, whole=False, repeatable=True, attempts=attempts, **request)
        try:
            yield response
        except httpx.TransportError as error:
            raise self._named(error) from error
        finally:
            await response.aclose()

    def _connect(self) -> None:
        # Slots are the limit.
        limits = httpx.Limits(max_connections=None)
        transport = httpx.AsyncHTTPTransport(uds=self._socket, limits=limits) if self._socket else None
        self._http = httpx.AsyncClient(
            transport=transport,
            base_url=self._base,
            headers=self._headers,
            timeout=_TIMEOUT,
            limits=limits,
            verify=trusted(self._base),
        )
        self._slots = Slots()
        self._pid = os.getpid()

    def _named(self, error: httpx.TransportError) -> SandboxError:
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return error_of("timeout", "timed out waiting for the server's answer", retryable=True, owner="client")
        why = str(error) or type(error).__name__
        if is_untrusted(error):
            hint = "SANDBOXCTL_CA_FILE names a file with the certificate of its authority"
            message = f"the certificate of {self._server} is not trusted: {why}"
            return error_of("unavailable", message, hint, retryable=False)
        return _unreachable(self._server, why)

    async def _submit(self, path: str, request: Mapping[str, Any]) -> _AsyncExecution:
        """Submits an execution once, whatever happens to the connection."""
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        try:
            async with _slot(self._slots.executions):
                return _AsyncExecution(self, _id(await self.json("POST", path, json=request, headers=headers)))
        except SandboxError:
            raise
        except BaseException:
            # The answer that had its id may be lost: the same key finds it. What ended the wait is the error.
            with suppress(Exception):
                found = await self.json("POST", path, attempts=1, timeout=_CLEANUP, json=request, headers=headers)
                await _AsyncExecution(self, _id(found)).kill()
            raise

    def _file(self, path: Path) -> str:
        """The URL of a file: its path is one segment, so that no parser of URLs resolves its dots."""
        segment = quote(path_bytes(path), safe="")
        return f"{self._sandbox}/files/{'.%2F' + segment if segment in {'.', '..'} else segment}"

    def _gone(self, error: SandboxError) -> SandboxError:
        message = f"the sandbox {self._sandbox.rpartition('/')[2]} is gone: {error.message}"
        return error_of("gone", message, "create another one", status=error.status)

    async def _missing(self, error: NotFound) -> SandboxError:
        """The error of a file that is not there: the sandbox may be what is missing."""
        try:
            await self.json("GET", self._sandbox)
        except NotFound:
            return self._gone(error)
        return error


_BYTES: Final = {"Content-Type": "application/octet-stream"}


@asynccontextmanager
async def _slot(limiter: Limiter) -> AsyncGenerator[None]:
    ticket = limiter.ticket()
    try:
        await async_result(ticket)
        yield
    finally:
        limiter.release(ticket)


async def _body(response: httpx.Response, longest: int) -> bytes:
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > longest:
            raise error_of("too_large", f"an answer of more than {longest} bytes", "read it with `files.stream`")
    return bytes(body)


def _socket(server: str) -> str | None:
    """The path of a socket, if the server has one."""
    if not server.startswith("unix:"):
        return None
    path = server.removeprefix("unix:")
    if b"\0" in (path_bytes(path) or b"\0"):
        raise error_of("config", f'server: "{server}" names no socket')
    return path


def _checked(server: str) -> str:
    try:
        url = httpx.URL(server)
    except (httpx.InvalidURL, ValueError) as error:
        raise error_of("config", f'server: "{server}" is not a URL') from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise error_of("config", f'server: "{server}" is neither http://…, https://… nor unix:PATH')
    if url.userinfo or url.query or url.fragment:
        raise error_of("config", "server: a URL without credentials, query and fragment is expected", "give `token`")
    return server


def _kept(spec: Spec) -> dict[str, Any]:
    """The members of a sandbox that a server takes."""
    if spec.io_dir is not None:
        raise error_of(
            "usage",
            "io_dir is a directory of this machine, and a server uses none",
            "write and read the files with `files`, or name no server (SANDBOXCTL_SERVER)",
        )
    kept: dict[str, Any] = {}
    if spec.image is not None:
        kept["image"] = spec.image
    if spec.limits:
        kept["limits"] = dict(spec.limits)
    if spec.allow:
        kept["network"] = {"allow": list(spec.allow)}
    return kept


def _id(answer: Json) -> str:
    return identifier(Answer(answer).text("id"))


def _refusal(response: httpx.Response, body: bytes) -> SandboxError:
    """The error of an answer: a Problem Details document, or whatever a proxy sent instead."""
    status = response.status_code
    # What is malformed is not one.
    with suppress(SandboxError):
        problem = Answer(parsed(body))
        kind = problem.text("kind")
        error = error_of(
            kind,
            problem.text("detail"),
            problem.text_or_none("hint"),
            status=status,
            owner="operation" if kind == "timeout" else "server",
        )
        error.retryable = error.retryable or status in {429, 503}
        return error
    text = body[:200].decode("utf-8", "replace").strip()
    return error_of(
        _KIND_OF_STATUS.get(status, "internal" if status >= 500 else "invalid_request"),
        f"HTTP status {status}: {text or 'no explanation'}",
        "the answer is not one of sandboxctl: is a proxy in between, or another server?",
        retryable=status == 429 or status >= 502,
        status=status,
    )


def _unreachable(server: str, why: str) -> SandboxError:
    return error_of(
        "unavailable", f"no connection to {server}: {why}", "is the server running, and is this its address?"
    )


def _pause(response: httpx.Response) -> float | None:
    """How long the server asks to wait before the same request, in seconds; None if it does not, or for too long."""
    after = response.headers.get("retry-after", "")
    if response.status_code not in {409, 429, 503} or not re.fullmatch(r"[0-9]{1,9}", after):
        return None
    return float(after) if float(after) <= _LONGEST_PAUSE else None


def _backoff(attempt: int) -> float:
    return min(0.1 * 2 ** min(attempt - 1, 10), 5.0) * (0.5 + random.random() / 2)
