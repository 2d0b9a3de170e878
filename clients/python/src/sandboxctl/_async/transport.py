"""Calls over HTTP, of a server or of a process on this machine, for asyncio."""

from __future__ import annotations

import asyncio
import os
import random
import re
import secrets
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from .._core.answers import Answer, identifier, is_identifier, parsed, unexpected
from .._core.connection import LOST, Exchange, Server
from .._core.forward import Forward
from .._core.limiter import Limiter, Slots
from .._core.lines import Lines
from .._core.local_service import local_service
from .._core.process import Process, shared_process
from .._core.requests import ENGINES, Path, Spec, encoded, path_bytes
from .._core.waiting import AsyncPieces, async_begun, async_pieces, async_result, async_run
from ..errors import NotFound, SandboxError, SandboxGone, error_of
from ..results import Json

if TYPE_CHECKING:
    from .._core import wire

__all__ = ["AsyncExecution", "AsyncTransport", "connect", "connect_kept"]

_ATTEMPTS: Final = 6
# A server that asks for a longer pause is not waited for.
_LONGEST_PAUSE: Final = 60.0
# For how long one request waits for an execution's end, in seconds; the client's own limit is longer.
_WAIT: Final = 60
# The time for what is made up for after a cancellation, in seconds.
_CLEANUP: Final = 10.0
_LONGEST_ANSWER: Final = 128 << 20
_LONGEST_PROBLEM: Final = 1 << 20
_LONGEST_EVENT: Final = 64 << 20
_LONGEST_BODY: Final = 48 << 20
_NO_HEADERS: Final[Mapping[str, str]] = {}
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


class AsyncExecution:
    """A script or a command that was started. Its document has its id."""

    def __init__(self, transport: AsyncTransport, answer: Json) -> None:
        self._transport = transport
        self._path = f"/v1/executions/{_id(answer)}"
        self._document = None if _runs(answer) else answer

    async def events(self) -> AsyncGenerator[Json]:
        """What happens, up to its end, for one reader."""
        async for event in self._transport.events(f"{self._path}/events"):
            yield event

    async def document(self) -> Json:
        """Waits for its end."""
        return self._document or await self._transport.document(self._path)

    async def kill(self) -> None:
        """Ends it, and all that it started; its document says so. It has no effect on one that has ended."""
        try:
            await self._transport.json("DELETE", self._path, timeout=_CLEANUP)
        except SandboxError as error:
            # It has ended already.
            if error.kind not in {"conflict", "not_found", "gone"}:
                raise


class AsyncTransport:
    """Calls of the sandbox that it creates, at a server or in a process on this machine. Every failure is a
    `SandboxError`."""

    def __init__(self, where: Server | Callable[[], Server | Process]) -> None:
        self._where = where

    async def create(self, spec: Spec) -> str:
        """Creates a sandbox, and returns its id."""
        await self._open()
        # With a name the request can be repeated: it finds the sandbox that it has created.
        request = {"name": spec.name or f"client-{uuid.uuid4()}", "spec": self._kept(spec), **spec.request}
        try:
            answer = Answer(await self.json("POST", "/v1/sandboxes", json=request))
        except SandboxError:
            raise
        except BaseException:
            # Cancelled too late, it may be there; one with a name of the caller's is found by it.
            if spec.name is None:
                with suppress(Exception):
                    made = _id(await self.json("POST", "/v1/sandboxes", attempts=1, timeout=_CLEANUP, json=request))
                    await self.json("DELETE", f"/v1/sandboxes/{made}", attempts=1, timeout=_CLEANUP)
            raise
        return self._use(answer)

    async def find(self, which: str) -> str:
        """Finds a sandbox by its id or its name, and returns its id."""
        await self._open()
        missing = error_of("not_found", f"there is no sandbox {which!r}", "`Sandbox.list` has those that there are")
        if is_identifier(which):
            try:
                return self._use(Answer(await self.json("GET", f"/v1/sandboxes/{which}")))
            except NotFound as error:
                missing.status = error.status
        async with aclosing(self.sandboxes({"name": which})) as found:
            async for view in found:
                return self._use(Answer(view))
        raise missing

    async def sandboxes(self, wanted: Mapping[str, str]) -> AsyncGenerator[Json]:
        """The sandboxes of a list, page after page."""
        await self._open()
        query = dict(wanted)
        while True:
            path = f"/v1/sandboxes?{urlencode(query, quote_via=quote)}".rstrip("?")
            page = Answer(await self.json("GET", path))
            for view in page.items("sandboxes"):
                yield view.data
            cursor = page.text_or_none("next_cursor")
            if cursor is None:
                return
            if cursor == query.get("cursor"):
                raise unexpected("the next page is the same again")
            query["cursor"] = cursor

    def _use(self, answer: Answer) -> str:
        identifier = _id(answer.data)
        self._sandbox = f"/v1/sandboxes/{identifier}"
        # One of this program that has ended is gone; others start again.
        self._query = f"?generation={answer.integer('generation')}" if isinstance(self._place, Process) else ""
        return identifier

    async def _open(self) -> None:
        self._place = self._where if isinstance(self._where, Server) else await async_run(self._where)

    @property
    def _slots(self) -> Slots:
        return self._place.connections.slots

    async def operation(self, operation: Json) -> Json:
        """Performs an operation on files, and returns its envelope."""
        repeatable = operation["operation"] in _READING
        path = f"{self._sandbox}/operations{self._query}"
        try:
            async with _slot(self._slots.operations):
                answer = await self.json("POST", path, repeatable=repeatable, json=operation)
        except NotFound as error:
            raise self._gone(error) from error
        return answer

    async def start(self, request: wire.ExecutionRequest, *, wait: bool) -> AsyncExecution:
        """Starts an execution. With `wait` it may have ended then."""
        try:
            return await self._submit(f"{self._sandbox}/executions{self._query}", request, wait)
        except NotFound as error:
            raise self._gone(error) from error

    @asynccontextmanager
    async def once(self, spec: Spec, request: wire.ExecutionRequest, *, wait: bool) -> AsyncGenerator[AsyncExecution]:
        """Starts an execution in a sandbox of its own, which ends with it."""
        await self._open()
        if spec.io_dir is not None and self._place.takes_directories:
            await self.create(spec)
            try:
                yield await self.start(request, wait=wait)
            finally:
                await self.destroy()
            return
        limits = {**(spec.limits or {}), **request.get("limits", {})}
        yield await self._submit("/v1/executions", {**self._kept(spec), **request, "limits": limits}, wait)

    async def start_process(self, request: wire.ProcessRequest) -> Json:
        """Starts a process once, whatever happens to the connection, and returns its view."""
        path, key = f"{self._sandbox}/processes{self._query}", {"Idempotency-Key": secrets.token_hex(16)}
        try:
            async with _slot(self._slots.operations):
                return await self.json("POST", path, json=request, headers=key)
        except NotFound as error:
            raise self._gone(error) from error
        except SandboxError:
            raise
        except BaseException:
            # As that of an execution.
            with suppress(Exception):
                found = await self.json("POST", path, attempts=3, timeout=_CLEANUP, json=request, headers=key)
                stop = f"{self._sandbox}/processes/{Answer(found).integer('id')}{self._query}"
                await self.json("DELETE", stop, attempts=3, timeout=_CLEANUP)
            raise

    async def ask(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        repeatable: bool = True,
    ) -> Json:
        """The answer to a request of the sandbox, or below it. One that waits for something says so in its path."""
        if path and "generation=" not in path:
            path += self._query.replace("?", "&") if "?" in path else self._query
        limiter = self._slots.followers if "wait=" in path else self._slots.operations
        try:
            async with _slot(limiter):
                return await self.json(
                    method, f"{self._sandbox}{path}", repeatable=repeatable, json=json, content=content
                )
        except NotFound as error:
            raise await self._missing(error) from error

    async def forward(self, port: int, host: str, local_port: int) -> Forward:
        """A port of this machine that leads to one of the sandbox."""
        place = self._place
        place.check()
        path = f"{self._sandbox}/ports/{port}/connect{self._query}"
        return await async_run(Forward, place.connections, path, place.headers, host, local_port)

    async def exited(self, path: str) -> Json:
        """Waits until a process has exited, and returns its view."""
        attempt = 0
        while True:
            asked = monotonic()
            view = await self.ask("GET", f"{path}&wait={_WAIT}")
            if view.get("state") != "running":
                return view
            # As for the end of an execution.
            attempt = attempt + 1 if monotonic() - asked < 1 else 1
            await asyncio.sleep(_backoff(attempt))

    async def follow(self, path: str, after: int | None) -> AsyncGenerator[Json]:
        """The events of a process after a number, or from now on, up to its end."""
        try:
            async with aclosing(self.events(f"{self._sandbox}{path}", after, self._slots.followers)) as events:
                async for event in events:
                    yield event
        except NotFound as error:
            raise await self._missing(error) from error

    async def changes(self, path: str) -> AsyncGenerator[Json]:
        """The events of a watch, after an empty one when it is on. A connection that is lost is not made again: what
        happened meanwhile is not known."""
        path += self._query.replace("?", "&")
        try:
            async with (
                _slot(self._slots.followers),
                self._stream("GET", f"{self._sandbox}{path}", {"Accept": "text/event-stream"}) as exchange,
            ):
                yield {}
                async with aclosing(_sent(exchange)) as events:
                    async for event in events:
                        yield event.data
        except NotFound as error:
            raise await self._missing(error) from error

    @asynccontextmanager
    async def port(
        self, port: int, method: str, path: str, body: object = None, timeout: float | None = None
    ) -> AsyncGenerator[Exchange]:
        """The answer of an HTTP server at a port of the sandbox, as it comes. It may be silent for so many seconds."""
        headers = {"Accept": "*/*", "Content-Type": "application/json"}
        content = None if body is None else encoded(body)
        async with _slot(self._slots.followers):
            url = f"{self._sandbox}/ports/{port}/http{path}"
            exchange = await self._send(
                method, url, headers, content, None, repeatable=False, attempts=1, timeout=timeout
            )
            try:
                yield exchange
            except LOST as error:
                raise await self._named(error) from error
            finally:
                exchange.close()

    async def download(self, path: Path) -> AsyncGenerator[bytes]:
        """The content of a file, in pieces of one consistent file."""
        try:
            async with (
                _slot(self._slots.downloads),
                self._stream("GET", self._file(path)) as exchange,
            ):
                while part := await async_run(exchange.read):
                    yield part
        except NotFound as error:
            raise await self._missing(error) from error

    async def upload(self, path: Path, content: AsyncPieces) -> Json:
        """Writes a file, whole or not at all."""
        try:
            async with _slot(self._slots.uploads):
                headers = {"Content-Type": "application/octet-stream"}
                exchange = self._exchange("PUT", self._file(path), headers)
                try:
                    return await self._push(exchange, content)
                except LOST as error:
                    raise await self._named(error) from error
                finally:
                    exchange.close()
        except NotFound as error:
            raise await self._missing(error) from error

    async def _push(self, exchange: Exchange, content: AsyncPieces) -> Json:
        """Sends content in pieces, until the server refuses it, even while the content is waited for."""
        await async_run(exchange.begin)
        answered = async_begun(exchange.is_answered, None)
        async with aclosing(async_pieces(content, answered)) as parts:
            async for part in parts:
                await async_run(exchange.push, part)
        if not answered.done():
            await async_run(exchange.push, b"")
        await async_run(exchange.take, _LONGEST_ANSWER, _LONGEST_PROBLEM)
        if not exchange.is_success:
            raise _refusal(exchange)
        return Answer(parsed(exchange.body)).data

    async def destroy(self) -> None:
        """Ends the sandbox; one that is gone already is not an error."""
        with suppress(NotFound, SandboxGone):
            await self.json("DELETE", self._sandbox)

    async def close(self) -> None:
        """Gives up its connections; those of the process are shared."""
        if isinstance(self._where, Server):
            self._where.connections.close()

    async def document(self, path: str) -> Json:
        """Waits for the end of an execution."""
        attempt = 0
        while True:
            asked = monotonic()
            async with _slot(self._slots.executions):
                document = await self.json("GET", f"{path}?wait={_WAIT}")
            if not _runs(document):
                return document
            # A server that does not wait for the end is given more and more time.
            attempt = attempt + 1 if monotonic() - asked < 1 else 1
            await asyncio.sleep(_backoff(attempt))

    async def events(self, path: str, last: int | None = 0, limiter: Limiter | None = None) -> AsyncGenerator[Json]:
        """The events after the last one that is known, up to the end. A stream that breaks off is resumed."""
        attempt = 1
        while True:
            failure: Exception | None = None
            try:
                headers = {"Accept": "text/event-stream"}
                if last is not None:
                    headers["Last-Event-ID"] = str(last)
                async with (
                    _slot(limiter or self._slots.executions),
                    self._stream("GET", path, headers) as exchange,
                    aclosing(_sent(exchange)) as events,
                ):
                    async for event in events:
                        number = event.integer("seq")
                        if last is not None and number <= last:
                            continue
                        last, attempt = number, 1
                        yield event.data
                        if event.text("event") == "end":
                            return
            except SandboxError as error:
                if not _is_passing(error):
                    raise
                failure = error
            if attempt == _ATTEMPTS:
                raise failure or await self._named(None, "the events break off")
            await asyncio.sleep(_backoff(attempt))
            attempt += 1

    async def json(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool = True,
        attempts: int = _ATTEMPTS,
        timeout: float | None = None,
        json: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> dict[str, Any]:
        """The JSON of an answer. A request is made again where the server asks for that, and after a lost connection
        if it is repeatable. Its body is `json`, or the bytes of `content`."""
        if content is not None:
            headers = {"Content-Type": "application/octet-stream", **headers}
        if json is not None:
            content = encoded(json)
            if len(content) > _LONGEST_BODY:
                raise error_of(
                    "too_large",
                    f"a request of more than {_LONGEST_BODY} bytes",
                    "write large files in pieces: `files.write` takes an iterable of bytes, or a file",
                )
            headers = {"Content-Type": "application/json", **headers}
        exchange = await self._send(
            method, path, headers, content, _LONGEST_ANSWER, repeatable=repeatable, attempts=attempts, timeout=timeout
        )
        return Answer(parsed(exchange.body)).data if exchange.body else {}

    async def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes | None,
        longest: int | None,
        *,
        repeatable: bool = True,
        attempts: int = _ATTEMPTS,
        timeout: float | None = None,
    ) -> Exchange:
        """An answer whose status is a success, with its body, or without `longest` to be read and closed."""
        attempt = 0
        while True:
            attempt += 1
            exchange = self._exchange(method, path, headers, timeout)
            is_taken = False
            try:
                await async_run(exchange.perform, content, longest, _LONGEST_PROBLEM)
                if exchange.is_success:
                    is_taken = True
                    return exchange
                failure, pause = _refusal(exchange), _pause(exchange)
            except LOST as error:
                failure, pause = await self._named(error), 0.0
                failure.__cause__ = error
                if exchange.is_sent and (not repeatable or isinstance(error, TimeoutError)):
                    pause = None
                if not _is_passing(failure):
                    pause = None
            finally:
                if not is_taken:
                    exchange.close()
            if pause is None or attempt >= attempts:
                raise failure
            await asyncio.sleep(pause + _backoff(attempt))

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, headers: Mapping[str, str] = _NO_HEADERS
    ) -> AsyncGenerator[Exchange]:
        """An answer as it comes."""
        exchange = await self._send(method, path, headers, None, None)
        try:
            yield exchange
        except LOST as error:
            raise await self._named(error) from error
        finally:
            exchange.close()

    def _exchange(self, method: str, path: str, headers: Mapping[str, str], timeout: float | None = None) -> Exchange:
        self._place.check()
        return Exchange(self._place.connections, method, path, {**self._place.headers, **headers}, timeout)

    async def _named(self, error: BaseException | None, why: str = "") -> SandboxError:
        if isinstance(error, TimeoutError):
            return error_of("timeout", "timed out waiting for the server's answer", retryable=True, owner="client")
        return await async_run(self._place.failure, error, why or str(error) or type(error).__name__)

    def _kept(self, spec: Spec) -> dict[str, Any]:
        """The members of a sandbox that a server takes, and of this machine's also its directory."""
        kept: dict[str, Any] = {}
        if spec.io_dir is not None:
            if not self._place.takes_directories:
                raise error_of(
                    "usage",
                    "io_dir is a directory of this machine, and a server uses none",
                    "write and read the files with `files`, or name no server (SANDBOXCTL_SERVER)",
                )
            kept["host_dir"] = spec.io_dir
        if spec.image is not None:
            kept["image"] = spec.image
        if spec.limits:
            kept["limits"] = dict(spec.limits)
        if spec.allow:
            kept["network"] = {"allow": list(spec.allow)}
        return {**kept, **spec.kept}

    async def _submit(self, path: str, request: Mapping[str, Any], wait: bool) -> AsyncExecution:
        """Submits an execution once, whatever happens to the connection."""
        waiting = f"{path}{'&' if '?' in path else '?'}wait={_WAIT}" if wait else path
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        try:
            async with _slot(self._slots.executions):
                return AsyncExecution(self, await self.json("POST", waiting, json=request, headers=headers))
        except SandboxError:
            raise
        except BaseException:
            # The answer that had its id may be lost: the same key finds it, also while the server accepts it. What
            # ended the wait is the error.
            with suppress(Exception):
                found = await self.json("POST", path, attempts=3, timeout=_CLEANUP, json=request, headers=headers)
                await AsyncExecution(self, found).kill()
            raise

    def _file(self, path: Path) -> str:
        """The URL of a file: its path is one segment, so that no parser of URLs resolves its dots."""
        segment = quote(path_bytes(path), safe="")
        return f"{self._sandbox}/files/{'.%2F' + segment if segment in {'.', '..'} else segment}{self._query}"

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


async def _sent(exchange: Exchange) -> AsyncGenerator[Answer]:
    """The server-sent events of an answer."""
    data, lines = bytearray(), Lines()
    while piece := await async_run(exchange.read):
        for line in lines.push(piece):
            if line.startswith(b"data:"):
                data += line[5:] + b"\n"
            elif not line and data:
                event = Answer(parsed(bytes(data)))
                data.clear()
                yield event
        if len(data) + lines.pending > _LONGEST_EVENT:
            raise unexpected("an event is too long")


@asynccontextmanager
async def _slot(limiter: Limiter) -> AsyncGenerator[None]:
    ticket = limiter.ticket()
    try:
        await async_result(ticket)
        yield
    finally:
        limiter.release(ticket)


def _is_passing(error: SandboxError) -> bool:
    """Whether the same request may succeed soon."""
    return error.retryable and not isinstance(error, SandboxGone)


def _runs(answer: Json) -> bool:
    return answer.get("status") in ("queued", "running")


def _id(answer: Json) -> str:
    return identifier(Answer(answer).text("id"))


def _refusal(exchange: Exchange) -> SandboxError:
    """The error of an answer: a Problem Details document, or whatever a proxy sent instead."""
    status = exchange.status
    # What is malformed is not one.
    with suppress(SandboxError):
        problem = Answer(parsed(exchange.body))
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
    text = exchange.body[:200].decode("utf-8", "replace").strip()
    return error_of(
        _KIND_OF_STATUS.get(status, "internal" if status >= 500 else "invalid_request"),
        f"HTTP status {status}: {text or 'no explanation'}",
        "the answer is not one of sandboxctl: is a proxy in between, or another server?",
        retryable=status == 429 or status >= 502,
        status=status,
    )


def _pause(exchange: Exchange) -> float | None:
    """How long the server asks to wait before the same request, in seconds; None if it does not, or for too long."""
    after = exchange.header("retry-after")
    if exchange.status not in {409, 429, 503} or not re.fullmatch(r"[0-9]{1,9}", after):
        return None
    return float(after) if float(after) <= _LONGEST_PAUSE else None


def _backoff(attempt: int) -> float:
    return min(0.1 * 2 ** min(attempt - 1, 10), 5.0) * (0.5 + random.random() / 2)


def connect(
    server: str | None,
    token: str | None,
    binary: str | os.PathLike[str] | None,
    engine: str | None,
    root: tuple[str, str] | None,
) -> AsyncTransport:
    """The transport that a caller means: a server's if one is named, else that of the process of this program."""
    return _server(server, token, binary, engine, root) or AsyncTransport(partial(shared_process, binary, engine, root))


def connect_kept(
    server: str | None,
    token: str | None,
    binary: str | os.PathLike[str] | None,
    engine: str | None,
    root: tuple[str, str] | None,
) -> AsyncTransport:
    """The same for sandboxes that other programs find: without a server it is that of the user's own service."""
    return _server(server, token, binary, engine, root) or AsyncTransport(partial(local_service, binary, engine, root))


def _server(
    server: str | None,
    token: str | None,
    binary: str | os.PathLike[str] | None,
    engine: str | None,
    root: tuple[str, str] | None,
) -> AsyncTransport | None:
    local = {"binary": binary, "engine": engine, **({} if root is None else {root[0]: root[1]})}
    named = [name for name, value in local.items() if value is not None]
    if server and named:
        raise error_of("usage", f"{named[0]} is of this machine, and a server has its own")
    if server is None and not named:
        server = os.environ.get("SANDBOXCTL_SERVER")
    if server:
        return AsyncTransport(Server(server, token or os.environ.get("SANDBOXCTL_TOKEN") or None))
    if token is not None:
        raise error_of("usage", "token: it needs a server")
    if engine is not None and engine not in ENGINES:
        raise error_of("usage", f"engine: {engine!r} is not one of {', '.join(ENGINES)}")
    return None
