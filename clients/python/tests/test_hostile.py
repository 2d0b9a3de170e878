"""A server, and a process, that answer anything: what is malformed is a `SandboxError`, and nothing else is raised.

Each route of the table `hostile.json` is answered wrongly in every way: each member is missing, of another type and
huge, and each answer is cut, compressed, endless, and no answer at all.
"""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import re
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from table import async_call, call, rows

from sandboxctl import AsyncSandbox, Sandbox, SandboxError
from sandboxctl._async import transport as async_transport
from sandboxctl._sync import transport as sync_transport

CASES = rows("hostile")
END = {"seq": 9, "time": "", "event": "end"}
PROCESS = next(case["answer"] for case in CASES if case["of"] == "process")
PROCESS_END = {**END, "document": PROCESS}
EVENTS = {
    "log": ("events", END),
    "output": ("events", END),
    "process_output": ("process_events", PROCESS_END),
    "change": ("changes", END),
}
# What each route answers, if nothing else is asked of it.
USUAL: dict[str, Any] = {
    "sandbox": {"id": "s"},
    "execution": {"id": "e", "status": "queued"},
    "written": {"path": "/io/a", "bytes_written": 1, "created": True},
    "content": b"content",
    "removal": {},
    "cancel": {},
    "operation": {"success": True, "data": {"path": "/io/a", "content": "x"}, "error": None},
    "events": b"",
    "info": {"id": "s"},
    "process": PROCESS,
    "processes": {"processes": []},
    "process_events": b"",
    "changes": b"",
}
SCRIPT, COMMAND = (
    next(case["answer"] for case in CASES if (case["of"], case["call"]) == ("document", name))
    for name in ("run_script", "commands.run")
)
SANDBOX, EXECUTION = (f"/v1/{kind}/[A-Za-z0-9_-]+" for kind in ("sandboxes", "executions"))
ROUTES = {
    "POST /v1/sandboxes": "sandbox",
    f"GET {SANDBOX}": "info",
    f"POST {SANDBOX}/processes": "process",
    f"GET {SANDBOX}/processes": "processes",
    rf"GET {SANDBOX}/processes/3/events\?generation=2&after=0&mode=lossy": "process_events",
    rf"GET {SANDBOX}/watch\?path=\.&recursive=false": "changes",
    f"DELETE {SANDBOX}": "removal",
    f"POST {SANDBOX}/operations": "operation",
    rf"POST {SANDBOX}/executions(\?wait=60)?": "execution",
    rf"GET {EXECUTION}\?wait=60": "document",
    f"GET {EXECUTION}/events": "events",
    f"DELETE {EXECUTION}": "cancel",
    f"PUT {SANDBOX}/files/a": "written",
    f"GET {SANDBOX}/files/a": "content",
}

DEEP = 100_000
VALUES: list[Any] = [None, True, -1, 1.5, "x", [], {}]
# What only a text can have: an invalid number, half of a character, more digits and brackets than a parser takes.
TEXTS = ["1e999", "NaN", r'"\ud800"', "9" * 5_000, f'"{"x" * 100_000}"', "[" * 500 + "]" * 500, "[" * DEEP + "]" * DEEP]
MARK = "\N{BLACK SQUARE}"
IDS = ["../../../x?y#z", "..", ".", "", "a/b", "a b", "%2e%2e", "a\n", "a\0", "\x7f", "é", "x" * 100_000, "http://x"]


class Whole(bytes):
    """A response after which the connection is used again."""


def reply(body: bytes, status: str = "200 OK", headers: str = "") -> Whole:
    """A response, as it is sent."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return Whole(head.encode("latin-1") + body)


def cut(body: bytes, length: int) -> bytes:
    """A response of another length than it says."""
    return f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n".encode() + body


def stream(text: bytes) -> bytes:
    """A stream of events, which ends with its connection."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + text


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


class Hostile:
    """A server whose answers the test gives, by route: what is sent, byte by byte, or what sends it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[str, bytes | Callable[[Any], None]] = {}
        self.strays: list[str] = []
        """Requests of no route: something of an answer came into a URL."""

    def usual(self, document: Any = SCRIPT) -> None:
        """Answers as a server should."""
        ends = {route: stream(event(as_json(end))) for route, end in EVENTS.values()}
        self.answers = {
            **{route: reply(_body(answer)) for route, answer in (USUAL | {"document": document}).items()},
            **ends,
        }


def _body(answer: Any) -> bytes:
    return answer if isinstance(answer, bytes) else as_json(answer)


@pytest.fixture(scope="module")
def hostile() -> Iterator[Hostile]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            # The client may have had enough.
            with suppress(OSError):
                while self.answers():
                    pass

        def answers(self) -> bool:
            what = b" ".join(self.rfile.readline().split()[:2]).decode("latin-1")
            if not what:
                return False
            length, chunked = 0, False
            while (line := self.rfile.readline().strip().lower()) != b"":
                name, _, value = line.partition(b":")
                length = int(value) if name == b"content-length" else length
                chunked = chunked or name == b"transfer-encoding"
            self.rfile.read(length)
            while chunked and (size := int(self.rfile.readline(), 16)):
                self.rfile.read(size + 2)
            route = next((name for pattern, name in ROUTES.items() if re.fullmatch(pattern, what)), None)
            if route is None:
                server.strays.append(what)
            answer = server.answers[route or "cancel"]
            if callable(answer):
                answer(self.wfile.write)
                return False
            self.wfile.write(answer)
            return isinstance(answer, Whole)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as listener:
        server = Hostile(f"http://127.0.0.1:{listener.server_address[1]}")
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        yield server
        listener.shutdown()
        thread.join()


Outcome = Callable[..., Any]


@pytest.fixture(params=["threads", "asyncio"])
def outcome(request: pytest.FixtureRequest, hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outcome]:
    """Makes a call of the table, in a sandbox that the server made or in another one, and gives its value or its
    `SandboxError`. Whatever else it raises fails the test."""
    for module in (sync_transport, async_transport):
        monkeypatch.setattr(module, "_backoff", lambda _: 0)
    hostile.usual()
    runner = asyncio.Runner()
    run: Callable[[Any], Any] = (lambda value: value) if request.param == "threads" else runner.run
    kind, perform = (Sandbox, call) if request.param == "threads" else (AsyncSandbox, async_call)
    listening = {"log": {"on_log": lambda *_: None}, "output": {"on_stdout": lambda _: None}}

    def of(case: dict[str, Any], *, other: bool = False) -> Any:
        try:
            sandbox = run(kind.create(server=hostile.url)) if other else made
            return None if case["call"] == "create" else run(perform(sandbox, case, **listening.get(case["of"], {})))
        except SandboxError as error:
            return error

    with runner:
        made: Any = run(kind.create(server=hostile.url))
        yield of
    assert not hostile.strays


def is_error(given: Any) -> bool:
    """Whether it is an error that programs and people can read."""
    if not isinstance(given, SandboxError):
        return False
    return isinstance(given.kind, str) and isinstance(given.message, str) and isinstance(given.hint, (str, type(None)))


def places(value: Any) -> Iterator[list[Any]]:
    """The places of all members, and of the first item of each list."""
    members = list(value.items()) if isinstance(value, dict) else list(enumerate(value))[:1]
    for name, member in members:
        yield [name]
        if isinstance(member, (dict, list)):
            yield from ([name, *rest] for rest in places(member))


def changed(answer: Any, place: list[Any], change: Callable[[Any, Any], None]) -> bytes:
    """The answer with a change at a place."""
    copied = copy.deepcopy(answer)
    container = copied
    for name in place[:-1]:
        container = container[name]
    change(container, place[-1])
    return as_json(copied)


def wrong(case: dict[str, Any]) -> Iterator[tuple[str, bytes, bool]]:
    """Answers with a wrong member: which, the answer, and whether it must be an error."""
    answer = case["answer"]
    for place in places(answer):
        name = ".".join(map(str, place))
        is_read, may_miss = name in case["reads"] or f"{name}?" in case["reads"], f"{name}?" in case["reads"]
        yield (
            f"no {name}",
            changed(answer, place, lambda it, at: it.pop(at)),
            is_read and not may_miss and place[-1] != 0,
        )
        before = answer
        for part in place:
            before = before[part]
        for value in VALUES if is_read else [None, "x"]:
            yield (
                f"{name} is {value!r:.40}",
                changed(answer, place, lambda it, at, value=value: it.__setitem__(at, value)),
                is_read and type(value) is not type(before) and not (may_miss and value is None),
            )
        whole = changed(answer, place, lambda it, at: it.__setitem__(at, MARK))
        for text in TEXTS if is_read else TEXTS[-1:]:
            yield f"{name} is {text:.20}", whole.replace(as_json(MARK), text.encode()), len(text) > 2 * DEEP - 1


def answered(hostile: Hostile, case: dict[str, Any], body: bytes) -> None:
    """Has the server answer with a body where the case belongs."""
    hostile.usual(COMMAND if case["call"] == "commands.run" else SCRIPT)
    if case["of"] in EVENTS:
        route, end = EVENTS[case["of"]]
        hostile.answers[route] = stream(event(body) + event(as_json(end)))
    else:
        hostile.answers[case["of"]] = reply(body)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['call']}, {case['of']}")
def test_answer_with_a_wrong_member_is_a_sandbox_error(
    hostile: Hostile, outcome: Outcome, case: dict[str, Any]
) -> None:
    answered(hostile, case, as_json(case["answer"]))
    right = outcome(case, other=case["of"] == "sandbox")
    assert not isinstance(right, SandboxError) or case["answer"].get("success") is False, right
    for how, body, must_fail in wrong(case):
        answered(hostile, case, body)
        given = outcome(case, other=case["of"] == "sandbox")
        assert is_error(given) or not must_fail, f"{how}: {given!r}"


def flood(head: bytes, piece: bytes) -> Callable[[Any], None]:
    """What never ends by itself."""

    def send(write: Callable[[bytes], object]) -> None:
        write(head)
        while True:
            write(piece)

    return send


def faults(body: bytes) -> dict[str, Any]:
    """Answers in whose place nothing of the kind can be."""
    headers = "HTTP/1.1 200 OK\r\n"
    return {
        "nothing": b"",
        "no HTTP": b"\0\xff\r\n\r\n",
        "empty": reply(b""),
        "no content": b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
        "cut in the middle": cut(body[: len(body) // 2], len(body)),
        "cut and complete": reply(body[: len(body) // 2]),
        "of a negative length": cut(body, -1),
        "cut in its head": bytes(reply(body)[:20]),
        "no UTF-8": reply(b'{"a": "\xff"}'),
        "UTF-16": reply(body.decode().encode("utf-16")),
        "null": reply(b"null"),
        "a list": reply(b"[]"),
        "a text": reply(b'"x"'),
        "a number": reply(b"1"),
        "nested": reply(b"[" * DEEP),
        "two answers": reply(body + body),
        "compressed": reply(gzip.compress(body), headers="Content-Encoding: gzip\r\n"),
        "badly compressed": reply(body, headers="Content-Encoding: gzip\r\n"),
        "compressed to nothing": reply(gzip.compress(bytes(1 << 16)), headers="Content-Encoding: br\r\n"),
        "endless": flood(headers.encode() + b"\r\n", b" " * 65536),
        "endless headers": flood(headers.encode(), b"X-Y: z\r\n" * 1000),
        "a long header": reply(body, headers=f"X-Y: {'z' * 500_000}\r\n"),
        "strange headers": reply(body, headers="Set-Cookie: \xff=\x01; Domain=;;\r\nRetry-After: \xb2\r\n"),
        "elsewhere": reply(b"", "302 Found", "Location: http://[::1/../x\r\n"),
        "elsewhere, as an id": reply(b"", "307 Temporary Redirect", "Location: \xff\xfe\r\n"),
        "switched": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "a refusal": reply(as_json({"kind": "policy", "detail": "no"}), "403 Forbidden"),
        "a refusal for now": reply(b"x", "429 Too Many Requests", "Retry-After: 0\r\n"),
        "a refusal for ever": reply(b"x", "503 Service Unavailable", "Retry-After: 99999999999\r\n"),
        "an endless refusal": flood(b"HTTP/1.1 500 Oh\r\nConnection: close\r\n\r\n", b"x" * 65536),
        "no such status": reply(body, "999 \xff"),
        **{
            f"a refusal whose {name} is {value!r:.30}": reply(
                as_json({"kind": "policy", "detail": "no", "hint": "h"} | {name: value}), "400 Bad Request"
            )
            for name in ("kind", "detail", "hint")
            for value in VALUES
        },
    }


@pytest.mark.parametrize(
    "case",
    {case["of"]: case for case in CASES if case["answer"].get("success", True) and case["of"] != "output"}.values(),
    ids=lambda case: case["of"],
)
def test_invalid_answer_is_a_sandbox_error(
    hostile: Hostile, outcome: Outcome, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sync_transport, async_transport):
        monkeypatch.setattr(module, "_LONGEST_ANSWER", 1 << 20)
        monkeypatch.setattr(module, "_LONGEST_EVENT", 1 << 20)
    of, end = EVENTS.get(case["of"], (case["of"], None))
    right = as_json(case["answer"]) if end is None else event(as_json(case["answer"])) + event(as_json(end))
    for how, answer in faults(right).items():
        answered(hostile, case, as_json(case["answer"]))
        hostile.answers[of] = answer
        given = outcome(case, other=case["of"] == "sandbox")
        # Of events, only the last one is missed; and headers that mean nothing are nothing.
        if end is None and how not in ("strange headers", "no such status"):
            assert is_error(given), f"{how}: {given!r}"


def test_content_that_is_cut_or_compressed_is_a_sandbox_error_and_never_a_part(
    hostile: Hostile, outcome: Outcome
) -> None:
    reading = {"call": "files.read_stream", "with": {"path": "a"}, "of": "content"}
    hostile.usual()
    assert outcome(reading) == b"content"
    for how, answer in faults(b"x" * 1000).items():
        if "endless" in how and "refusal" not in how and "headers" not in how:
            # The reader of a stream ends it.
            continue
        hostile.answers["content"] = answer
        given = outcome(reading)
        assert isinstance(given, (SandboxError, bytes)), how
        if how.startswith(("cut in", "compressed", "badly")):
            assert isinstance(given, SandboxError), how


def test_file_that_never_ends_is_not_collected(
    hostile: Hostile, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("_sync", "_async"):
        monkeypatch.setattr(f"sandboxctl.{module}.files._LARGEST", 1 << 20)
    hostile.usual()
    large = {"success": False, "data": None, "error": {"kind": "too_large", "message": "too large"}}
    hostile.answers["operation"] = reply(as_json(large))
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    hostile.answers["content"] = flood(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk)
    given = outcome({"call": "files.read", "with": {"path": "a"}, "of": "content"})
    assert (given.kind, given.hint) == ("too_large", "read it with `files.stream`")


@pytest.mark.parametrize("of", ["sandbox", "execution"])
def test_invalid_id_is_never_in_a_url(hostile: Hostile, outcome: Outcome, of: str) -> None:
    for identifier in IDS:
        hostile.usual()
        hostile.answers[of] = reply(as_json({"id": identifier, "status": "queued"}))
        given = outcome({"call": "run_script", "with": {"script": "return 1"}, "of": of}, other=of == "sandbox")
        assert isinstance(given, SandboxError), identifier


@pytest.mark.parametrize(
    "events",
    [
        flood(stream(b""), b"data:\n" * 10_000),
        flood(stream(b"data: "), b"x" * 65536),
        flood(stream(b""), b"data: 1\nid: 2\n" * 10_000),
    ],
    ids=["lines", "a line", "data between lines"],
)
def test_event_that_never_ends_is_a_sandbox_error(
    hostile: Hostile, outcome: Outcome, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sync_transport, async_transport):
        monkeypatch.setattr(module, "_LONGEST_EVENT", 1 << 20)
    hostile.usual()
    hostile.answers["events"] = events
    given = outcome({"call": "run_script", "with": {"script": "return 1"}, "of": "log"})
    assert (given.kind, given.message) == ("internal", "unexpected answer: an event is too long")


@pytest.mark.parametrize("twin", ["threads", "asyncio"])
def test_server_that_always_says_running_is_asked_after_ever_longer_pauses(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch, twin: str
) -> None:
    pauses: list[float] = []
    backoff = sync_transport._backoff

    def recorded(attempt: int) -> float:
        pauses.append(backoff(attempt))
        if len(pauses) == 1_100:
            hostile.answers["document"] = reply(as_json(SCRIPT))
        return 0

    for module in (sync_transport, async_transport):
        monkeypatch.setattr(module, "_backoff", recorded)
        # It answers at once, whatever else this machine does.
        monkeypatch.setattr(module, "monotonic", lambda: 0.0)
    hostile.usual()
    hostile.answers["document"] = reply(as_json({"id": "e", "status": "running"}))

    async def asynchronously() -> Any:
        async with await AsyncSandbox.create(server=hostile.url) as sandbox:
            return await sandbox.run_script("return 1")

    if twin == "threads":
        with Sandbox.create(server=hostile.url) as sandbox:
            result = sandbox.run_script("return 1")
    else:
        result = asyncio.run(asynchronously())
    assert result.status == "ok"
    assert len(pauses) == 1_100
    assert 0.05 <= pauses[0] <= 0.1
    assert all(2.5 <= pause <= 5 for pause in pauses[6:])


def test_hostile_answers_are_made_of_every_route() -> None:
    asked = {case["of"] for case in CASES} | {"content", "events", "process_events", "changes", "removal", "cancel"}
    assert set(ROUTES.values()) <= asked
    assert sys.getrecursionlimit() < DEEP
