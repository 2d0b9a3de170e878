"""The HTTP transport against a stand-in for the server: what is made again, what is resumed, what is made up for."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from table import with_half_a_character

from sandboxctl import AsyncSandbox, NotFound, Sandbox, SandboxError, SandboxGone, ServerBusy, Timeout
from sandboxctl._core.lines import Lines

CREATED = (201, {}, {"id": "s"})
DOCUMENT = {
    "schema": "sandboxctl.result/1",
    "id": "e",
    "status": "ok",
    "result": 42,
    "logs": [],
    "logs_truncated": False,
    "files_touched": [],
    "files_touched_truncated": False,
    "error": None,
    "engine": "docker",
    "limits": None,
    "usage": None,
}
LOST = None
"""An answer that never comes: the connection is closed."""


def problem(status: int, kind: str, **headers: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    return status, headers, {"kind": kind, "detail": f"it is {kind}", "status": status}


@dataclass
class Asked:
    """A request."""

    what: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass
class Fake:
    """A server whose answers the test gives, by method and path; several answers are given one after another."""

    url: str
    server: ThreadingHTTPServer
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    begun: threading.Event = field(default_factory=threading.Event)
    """The head of a request has come."""

    def answer(self, asked: Asked) -> Any:
        with self.lock:
            self.asked.append(asked)
            known = self.answers[asked.what]
            found = (known.pop(0) if len(known) > 1 else known[0]) if isinstance(known, list) else known
        return found(asked) if callable(found) else found

    def heard(self, what: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.what == what]


@pytest.fixture
def fake() -> Iterator[Fake]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            fake.begun.set()
            what = f"{self.command} {self.path}".replace("executions?wait=60", "executions")
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.headers.get("transfer-encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = fake.answer(Asked(what, headers, body, self.client_address[1]))
            if answer is LOST:
                self.close_connection = True
                return
            status, headers, content = answer
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            if "Connection" not in headers:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = "Connection" in headers

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake = Fake(f"http://127.0.0.1:{server.server_port}", server)
        fake.answers = {"POST /v1/sandboxes": CREATED, "DELETE /v1/sandboxes/s": (204, {}, b"")}
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield fake
        server.shutdown()
        thread.join()


def over_tls(fake: Fake, tmp_path: Path) -> tuple[str, Path]:
    """Has a server speak TLS: its URL then, and its certificate."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make.split(), *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    fake.server.socket = context.wrap_socket(fake.server.socket, server_side=True)
    return fake.url.replace("http:", "https:"), certificate


def test_certificate_is_trusted_by_the_file_of_its_authority_and_else_not_tried_again(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, certificate = over_tls(fake, tmp_path)
    monkeypatch.delenv("SANDBOXCTL_CA_FILE", raising=False)
    with pytest.raises(SandboxError) as failure:
        Sandbox.create(server=url)
    assert "is not trusted" in failure.value.message
    assert "SANDBOXCTL_CA_FILE" in (failure.value.hint or "")
    assert not failure.value.retryable
    monkeypatch.setenv("SANDBOXCTL_CA_FILE", str(certificate))
    with Sandbox.create(server=url) as sandbox:
        assert sandbox.id == "s"
    monkeypatch.setenv("SANDBOXCTL_CA_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(SandboxError, match=r"none\.pem"):
        Sandbox.create(server=url)


async def test_upload_on_a_new_connection_over_tls_is_whole(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, certificate = over_tls(fake, tmp_path)
    monkeypatch.setenv("SANDBOXCTL_CA_FILE", str(certificate))
    fake.answers["POST /v1/sandboxes"] = (201, {"Connection": "close", "Content-Length": "11"}, {"id": "s"})
    fake.answers["PUT /v1/sandboxes/s/files/a"] = (200, {}, {"path": "a", "bytes_written": 2, "created": True})

    def content() -> Iterator[bytes]:
        # The tickets for later sessions, which follow the handshake, have come too.
        assert fake.begun.wait(60)
        yield from (b"1", b"2")

    with Sandbox.create(server=url) as sandbox:
        fake.begun.clear()
        sandbox.files.write("a", content())
    async with await AsyncSandbox.create(server=url) as other:
        fake.begun.clear()
        await other.files.write("a", content())
    assert [asked.body for asked in fake.heard("PUT /v1/sandboxes/s/files/a")] == [b"12"] * 2


EXECUTIONS = "POST /v1/sandboxes/s/executions"
OPERATIONS = "POST /v1/sandboxes/s/operations"
DOCUMENT_OF = "GET /v1/executions/e?wait=60"


def test_submission_is_made_again_under_its_key_and_runs_once(fake: Fake) -> None:
    fake.answers |= {
        EXECUTIONS: [
            LOST,
            problem(409, "in_flight", Retry_After="0"),
            problem(429, "rate_limited", Retry_After="0"),
            (202, {}, {"id": "e", "status": "queued"}),
        ],
        DOCUMENT_OF: [(200, {}, {"id": "e", "status": "running"}), LOST, (200, {}, DOCUMENT)],
    }
    with Sandbox.create(server=fake.url) as sandbox:
        assert sandbox.run_script("return 42").result == 42
    assert len({asked.headers["idempotency-key"] for asked in fake.heard(EXECUTIONS)}) == 1
    assert len(fake.heard(EXECUTIONS)) == 4


def test_command_has_a_signal_that_asks_it_to_end_and_a_time_after_that(fake: Fake) -> None:
    fake.answers[EXECUTIONS] = problem(422, "invalid_request")
    with Sandbox.create(server=fake.url) as sandbox:
        for run in (sandbox.commands.run, sandbox.commands.start):
            with pytest.raises(SandboxError):
                run("x", stop_signal=2, stop_timeout=1.5, timeout=3, limits={"output_bytes": 5})
    limits = {"output_bytes": 5, "stop_timeout_ms": 1500, "timeout_ms": 3000}
    expected = {"command": {"shell": "x"}, "stop_signal": "INT", "limits": limits}
    assert [json.loads(asked.body) for asked in fake.heard(EXECUTIONS)] == [expected] * 2


def test_server_that_is_busy_for_long_is_not_waited_for(fake: Fake) -> None:
    fake.answers["POST /v1/sandboxes"] = problem(503, "full", Retry_After="3600")
    with pytest.raises(ServerBusy) as failure:
        Sandbox.create(server=fake.url)
    assert (failure.value.status, failure.value.retryable) == (503, True)


def test_operation_that_changes_something_is_not_made_again(fake: Fake) -> None:
    fake.answers[OPERATIONS] = [LOST, (200, {}, {"success": True, "data": {"exists": True}})]
    with Sandbox.create(server=fake.url) as sandbox:
        assert sandbox.files.exists("a")
        fake.answers[OPERATIONS] = LOST
        with pytest.raises(ServerBusy):
            sandbox.files.remove("a")
    assert len(fake.heard(OPERATIONS)) == 3


def test_sandbox_that_the_server_no_longer_has_is_gone(fake: Fake) -> None:
    missing = problem(404, "not_found")
    fake.answers |= {
        OPERATIONS: missing,
        EXECUTIONS: missing,
        "GET /v1/sandboxes/s/files/a": missing,
        "PUT /v1/sandboxes/s/files/a": missing,
        "GET /v1/sandboxes/s": missing,
    }
    with Sandbox.create(server=fake.url) as sandbox:
        calls: list[Callable[[], object]] = [
            lambda: sandbox.files.read("a"),
            lambda: sandbox.run_script("return 1"),
            lambda: sandbox.files.write("a", iter([b"x"])),
        ]
        for call in calls:
            with pytest.raises(SandboxGone):
                call()
        with pytest.raises(SandboxGone), sandbox.files.stream("a") as parts:
            next(parts)
        fake.answers["GET /v1/sandboxes/s"] = (200, {}, {"id": "s"})
        with pytest.raises(NotFound), sandbox.files.stream("a") as parts:
            next(parts)


def test_child_of_a_fork_has_its_own_connections(fake: Fake) -> None:
    fake.answers[OPERATIONS] = (200, {}, {"success": True, "data": {"exists": True}})
    with Sandbox.create(server=fake.url) as sandbox:
        assert sandbox.files.exists("a")
        connections = {asked.connection for asked in fake.asked}
        if (child := os.fork()) == 0:
            os._exit(0 if sandbox.files.exists("a") else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert fake.asked[-1].connection not in connections
        assert sandbox.files.exists("a")


def test_error_of_a_block_is_the_error_if_the_sandbox_cannot_be_removed(fake: Fake) -> None:
    fake.answers["DELETE /v1/sandboxes/s"] = problem(500, "internal")
    with pytest.raises(KeyError), Sandbox.create(server=fake.url):
        raise KeyError
    with pytest.raises(SandboxError, match="internal"), Sandbox.create(server=fake.url):
        pass


def test_closed_sandbox_is_gone(fake: Fake) -> None:
    sandbox = Sandbox.create(server=fake.url)
    sandbox.close()
    with pytest.raises(SandboxGone, match="is closed"):
        sandbox.files.read("a")


async def test_submission_that_is_cancelled_before_its_answer_ends_the_execution(fake: Fake) -> None:
    arrived, answered = threading.Event(), threading.Event()

    def slow(asked: Asked) -> Any:
        arrived.set()
        answered.wait()
        return 202, {}, {"id": "e", "status": "queued"}

    fake.answers |= {
        # The server still accepts the first.
        EXECUTIONS: [
            slow,
            problem(409, "in_flight", Retry_After="0"),
            (202, {}, {"id": "e", "status": "running"}),
        ],
        # Even if that fails, the cancellation is what the caller gets.
        "DELETE /v1/executions/e": problem(500, "internal"),
    }
    async with await AsyncSandbox.create(server=fake.url) as sandbox:
        task = asyncio.create_task(sandbox.run_script("return 42"))
        await asyncio.to_thread(arrived.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answered.set()
    keys = {asked.headers["idempotency-key"] for asked in fake.heard(EXECUTIONS)}
    assert len(fake.heard(EXECUTIONS)) == 3
    assert len(keys) == 1
    assert fake.heard("DELETE /v1/executions/e")


def test_error_of_a_listener_is_the_error_whatever_becomes_of_the_cancellation(fake: Fake) -> None:
    event = {"seq": 1, "event": "log", "level": "print", "text": "one"}
    fake.answers |= {
        EXECUTIONS: (202, {}, {"id": "e", "status": "queued"}),
        "GET /v1/executions/e/events": (200, {"Connection": "close"}, f"id: 1\ndata: {json.dumps(event)}\n\n".encode()),
        "DELETE /v1/executions/e": LOST,
    }

    def refuse(text: str, level: str) -> None:
        raise KeyError(text)

    with Sandbox.create(server=fake.url) as sandbox, pytest.raises(KeyError, match="one"):
        sandbox.run_script("print('one')", on_log=refuse)
    assert fake.heard("DELETE /v1/executions/e")


def test_events_are_resumed_after_the_last_one_and_omissions_are_reported(fake: Fake) -> None:
    def stream(*events: dict[str, Any]) -> Any:
        text = "".join(f"id: {event['seq']}\ndata: {json.dumps(event)}\n\n" for event in events)
        return 200, {"Connection": "close"}, b": hello\n\n" + text.encode()

    def log(number: int) -> dict[str, Any]:
        return {"seq": number, "event": "log", "text": str(number)}

    fake.answers |= {
        EXECUTIONS: (202, {}, {"id": "e", "status": "queued"}),
        "GET /v1/executions/e/events": [
            stream(log(1), log(2)),
            problem(503, "unavailable"),
            stream(log(2), log(3), {"seq": 4, "event": "omitted"}, {"seq": 5, "event": "end"}),
        ],
        DOCUMENT_OF: (200, {}, DOCUMENT),
    }
    heard: list[str] = []
    with Sandbox.create(server=fake.url) as sandbox:
        result = sandbox.run_script("return 42", on_log=lambda text, _: heard.append(text))
    assert heard == ["1", "2", "3"]
    assert result.missed
    last = [asked.headers["last-event-id"] for asked in fake.heard("GET /v1/executions/e/events")]
    assert last == ["0", "2", "2"]


def test_line_of_an_event_ends_at_newlines_alone_however_its_pieces_are_cut() -> None:
    content = "data: a\u2028\u2029\u0085\v\f\x1c\n\r\ndata: b\r\rid: 1\r\n\nlost".encode()
    for size in range(1, len(content) + 1):
        lines = Lines()
        found = [line.decode() for at in range(0, len(content), size) for line in lines.push(content[at : at + size])]
        assert found == ["data: a\u2028\u2029\u0085\v\f\x1c", "", "data: b", "", "id: 1", ""], size
        assert lines.pending == 4


@pytest.mark.parametrize("text", ["a\u2028b", "a\u2029b", "a\u0085b"])
def test_event_has_what_unicode_takes_for_the_end_of_a_line(fake: Fake, text: str) -> None:
    document = {**DOCUMENT, "result": text}
    events = [{"seq": 1, "event": "log", "text": text}, {"seq": 2, "event": "end"}]
    stream = "".join(f"id: {event['seq']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events)
    fake.answers |= {
        EXECUTIONS: (202, {}, {"id": "e", "status": "queued"}),
        "GET /v1/executions/e/events": (200, {"Connection": "close"}, stream.encode()),
        DOCUMENT_OF: (200, {}, document),
    }
    heard: list[str] = []
    with Sandbox.create(server=fake.url) as sandbox:
        result = sandbox.run_script("return 1", on_log=lambda text, _: heard.append(text))
    assert (heard, result.result) == ([text], text)


def test_errors_of_the_server_have_their_kind(fake: Fake) -> None:
    fake.answers["POST /v1/sandboxes"] = [
        problem(401, "unauthenticated"),
        problem(504, "request_timeout"),
        (502, {}, b"<html>a proxy</html>"),
        (200, {}, b"no JSON"),
    ]
    with pytest.raises(SandboxError) as failure:
        Sandbox.create(server=fake.url, token="wrong")
    assert (failure.value.kind, failure.value.status) == ("unauthenticated", 401)
    assert fake.asked[0].headers["authorization"] == "Bearer wrong"
    with pytest.raises(Timeout) as timeout:
        Sandbox.create(server=fake.url)
    assert timeout.value.owner == "server"
    with pytest.raises(ServerBusy, match="a proxy"):
        Sandbox.create(server=fake.url)
    with pytest.raises(SandboxError) as failure:
        Sandbox.create(server=fake.url)
    assert failure.value.kind == "internal"


def test_path_is_one_segment_of_the_url(fake: Fake) -> None:
    for segment in ("..%2Fa%20b", ".%2F..", "%FF"):
        fake.answers[f"PUT /v1/sandboxes/s/files/{segment}"] = (
            200,
            {},
            {"path": segment, "bytes_written": 0, "created": True},
        )
    with Sandbox.create(server=fake.url) as sandbox:
        written = [sandbox.files.write(path, iter([b"1", b"23"])).path for path in ("../a b", "..", b"\xff")]
    assert written == ["..%2Fa%20b", ".%2F..", "%FF"]
    assert [asked.body for asked in fake.asked if asked.what.startswith("PUT")] == [b"123"] * 3


def test_arguments_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDBOXCTL_SERVER", raising=False)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"server": "ftp://x"}, "config"),
        ({"server": "http://a:b@x"}, "config"),
        ({"server": "http://x", "token": "a b"}, "config"),
        ({"server": "http://x", "binary": "/x"}, "usage"),
        ({"server": "http://x", "io_dir": "out"}, "usage"),
        ({"token": "x"}, "usage"),
        ({"server": "unix:/nonexistent"}, "unavailable"),
        ({"server": "unix:"}, "config"),
        ({"server": "unix:/a\0b"}, "config"),
        ({"server": "unix:/\ud800"}, "encoding"),
        ({"server": f"unix:/{'x' * 200}"}, "unavailable"),
        ({"server": "http://\ud800"}, "config"),
        ({"server": "http://[::1"}, "config"),
        ({"server": "http://127.0.0.1:1", "name": "\ud800"}, "encoding"),
        ({"server": "http://127.0.0.1:1", "image": "\ud800"}, "encoding"),
    ]
    for options, kind in cases:
        with pytest.raises(SandboxError) as failure:
            Sandbox.create(**options)
        assert failure.value.kind == kind, options
    with pytest.raises(TypeError):
        Sandbox.create(network="example.org")


def test_text_with_half_of_a_character_is_the_error_encoding(fake: Fake) -> None:
    with Sandbox.create(server=fake.url) as sandbox:
        for call in with_half_a_character(sandbox):
            with pytest.raises(SandboxError, match="no Unicode") as failure:
                call()
            assert failure.value.kind == "encoding"
    assert [asked.what for asked in fake.asked] == ["POST /v1/sandboxes", "DELETE /v1/sandboxes/s"]


PROCESSES = "POST /v1/sandboxes/s/processes"
PROCESS = "/v1/sandboxes/s/processes/3"
VIEW = {
    "id": 3,
    "pid": 17,
    "generation": 2,
    "command": "serve",
    "tag": "web",
    "state": "running",
    "pty": False,
    "started_at": "2026-01-01T00:00:00Z",
    "exited_at": None,
    "exit_code": None,
    "signal": None,
    "stopped": None,
    "out_of_memory": None,
    "cpu_ms": None,
    "peak_memory_bytes": None,
    "first_event": 1,
    "last_event": 1,
}
EXITED = {**VIEW, "state": "left", "exit_code": 3}
EVENTS = f"GET {PROCESS}/events?generation=2&after=0&mode=lossy"


def events(*given: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """A stream of events, which ends with its connection."""
    text = "".join(f"id: {event['seq']}\ndata: {json.dumps({'time': '', **event})}\n\n" for event in given)
    return 200, {"Connection": "close"}, text.encode()


def output(seq: int, text: str, **more: str) -> dict[str, Any]:
    return {"seq": seq, "event": "output", "stream": "stdout", "text": text, **more}


def test_process_is_started_once_and_its_request_has_what_was_asked_for(fake: Fake) -> None:
    fake.answers[PROCESSES] = [LOST, problem(409, "in_flight", Retry_After="0"), (201, {}, VIEW)]
    sandbox = Sandbox.create(server=fake.url)
    run = sandbox.commands.run
    process = run("serve", ["-p"], env={"A": "1"}, stdin=True, timeout=2, background=True, tag="web", merge=True)
    assert (process.id, process.pid, process.tag) == (3, 17, "web")
    assert len({asked.headers["idempotency-key"] for asked in fake.heard(PROCESSES)}) == 1
    assert json.loads(fake.heard(PROCESSES)[2].body) == {
        "command": {"program": "serve", "args": ["-p"], "env": {"A": "1"}},
        "stdin": True,
        "timeout_ms": 2000,
        "tag": "web",
        "merge": True,
    }
    run("cat", stdin="in", secrets={"B": "2"}, background=True)
    assert json.loads(fake.asked[-1].body) == {"command": {"shell": "cat", "stdin": "in"}, "secrets": {"B": "2"}}
    run("cat", stop_signal="SIGINT", stop_timeout=0, background=True)
    own = {"stop_signal": "INT", "stop_timeout_ms": 0}
    assert json.loads(fake.asked[-1].body) == {"command": {"shell": "cat"}, **own}
    with pytest.raises(ValueError, match="stop_timeout"):
        run("cat", stop_timeout=-1, background=True)
    sandbox.close()
    with pytest.raises(SandboxGone):
        process.get_info()


def test_events_of_a_process_are_resumed_and_its_text_is_of_whole_characters(fake: Fake) -> None:
    fake.answers |= {
        PROCESSES: (201, {}, VIEW),
        EVENTS: [
            events({"seq": 1, "event": "start"}, output(2, "4pw=", encoding="base64")),
            problem(503, "unavailable"),
            events(
                output(2, "x"),
                output(3, "k+I=", encoding="base64"),
                {"seq": 7, "event": "omitted"},
                {"seq": 8, "event": "later"},
                output(9, "b"),
                {"seq": 10, "event": "exit", "exit_code": 3},
                {"seq": 11, "event": "end", "exit_code": 3, "document": EXITED},
            ),
        ],
        f"GET {PROCESS}/events?generation=2&after=now&mode=wait": events(output(12, "c")),
    }
    with Sandbox.create(server=fake.url) as sandbox:
        process = sandbox.commands.run("serve", background=True)
        found = list(process)
        assert [event.type for event in found] == ["start", "stdout", "stdout", "omitted", "stdout", "exit", "end"]
        assert [event.text for event in found] == ["", "", "\u2713", "\ufffd", "b", "", ""]
        assert b"".join(event.bytes for event in found) == b"\xe2\x9c\x93\xe2b"
        assert [event.exit_code for event in found][-2:] == [3, 3]
        assert [asked.headers["last-event-id"] for asked in fake.heard(EVENTS)] == ["0", "2", "2"]
        assert next(process.events("now", mode="wait")).text == "c"
        assert "last-event-id" not in fake.asked[-1].headers


def test_process_is_waited_for_written_to_signalled_and_found(fake: Fake) -> None:
    ended = problem(409, "process_ended")
    fake.answers |= {
        PROCESSES: (201, {}, VIEW),
        f"GET {PROCESS}?generation=2": (200, {}, VIEW),
        f"GET {PROCESS}?generation=2&wait=60": [(200, {}, VIEW), LOST, (200, {}, EXITED)],
        f"POST {PROCESS}/stdin?generation=2": [(204, {}, b""), (204, {}, b""), LOST],
        f"POST {PROCESS}/stdin/close?generation=2": [LOST, (204, {}, b"")],
        f"POST {PROCESS}/signal?generation=2": [(204, {}, b""), ended, ended],
        f"POST {PROCESS}/resize?generation=2": (204, {}, b""),
        f"DELETE {PROCESS}?generation=2": (202, {}, VIEW),
        f"GET {PROCESS}": (200, {}, VIEW),
        "GET /v1/sandboxes/s/processes": (200, {}, {"processes": [VIEW, {**EXITED, "id": 2}]}),
        "GET /v1/sandboxes/s/processes?tag=web": (200, {}, {"processes": [VIEW]}),
        "GET /v1/sandboxes/s/processes?tag=a%20b": (200, {}, {"processes": []}),
        "GET /v1/sandboxes/s/processes/4": problem(404, "not_found"),
        "GET /v1/sandboxes/s": (200, {}, {"id": "s"}),
    }
    with Sandbox.create(server=fake.url) as sandbox:
        process = sandbox.commands.run("serve", background=True)
        assert process.get_info().state == "running"
        assert process.wait().exit_code == 3
        with pytest.raises(SandboxError, match="exited with 3") as failure:
            process.wait(check=True)
        assert (failure.value.kind, failure.value.result.state) == ("exit", "left")
        process.send_stdin("x" * 70_000)
        with pytest.raises(ServerBusy):
            process.send_stdin(b"lost")
        # What a process has read is not sent again.
        assert [len(asked.body) for asked in fake.heard(f"POST {PROCESS}/stdin?generation=2")] == [65536, 4464, 4]
        process.close_stdin()
        process.signal("SIGINT", "foreground")
        with pytest.raises(SandboxError) as failure:
            process.signal(15)
        assert failure.value.kind == "process_ended"
        process.kill()
        signals = [json.loads(asked.body) for asked in fake.heard(f"POST {PROCESS}/signal?generation=2")]
        assert [list(signal.values()) for signal in signals] == [
            ["INT", "foreground"],
            ["TERM", "group"],
            ["KILL", "tree"],
        ]
        process.resize(120, 40)
        process.stop()
        assert [info.id for info in sandbox.commands.list()] == [3, 2]
        assert [sandbox.commands.connect(which).id for which in (3, "web")] == [3, 3]
        for which in (4, "a b"):
            with pytest.raises(NotFound):
                sandbox.commands.connect(which)


def test_terminal_hands_its_output_on_as_it_comes(fake: Fake) -> None:
    heard: list[bytes] = []
    arrived = threading.Event()

    def hear(data: bytes) -> None:
        heard.append(data)
        arrived.set()

    fake.answers |= {
        PROCESSES: (201, {}, {**VIEW, "pty": True}),
        EVENTS: [events(output(1, "$ ")), events(output(2, "bye"), {"seq": 3, "event": "end", "document": EXITED})],
        f"GET {PROCESS}?generation=2&wait=60": (200, {}, EXITED),
        f"POST {PROCESS}/stdin?generation=2": (204, {}, b""),
    }
    with Sandbox.create(server=fake.url) as sandbox:
        terminal = sandbox.pty.create(100, 30, hear, env={"A": "1"})
        assert arrived.wait(60)
        terminal.send("exit\n")
        assert terminal.wait().exit_code == 3
        assert b"".join(heard) == b"$ bye"
        request = json.loads(fake.heard(PROCESSES)[0].body)
        assert (request["pty"], request["stdin"]) == ({"cols": 100, "rows": 30}, True)
        assert "bash" in request["command"]["shell"]
        fake.answers[EVENTS] = events(output(1, "x"))

        def refuse(data: bytes) -> None:
            raise KeyError(data)

        with pytest.raises(KeyError):
            sandbox.pty.create(on_data=refuse, command="top", args=[]).wait()


async def test_processes_for_asyncio(fake: Fake) -> None:
    heard: list[bytes] = []
    arrived, answered = threading.Event(), threading.Event()
    end = {"seq": 2, "event": "end", "document": EXITED}

    def slow(asked: Asked) -> Any:
        if not arrived.is_set():
            arrived.set()
            answered.wait()
        return LOST if len(fake.heard(PROCESSES)) == 2 else (201, {}, VIEW)

    fake.answers |= {
        PROCESSES: (201, {}, VIEW),
        EVENTS: events(output(1, "a"), end),
        f"GET {PROCESS}?generation=2&wait=60": (200, {}, EXITED),
        f"DELETE {PROCESS}": (202, {}, VIEW),
    }
    async with await AsyncSandbox.create(server=fake.url) as sandbox:
        terminal = await sandbox.pty.create(on_data=heard.append)
        assert (await terminal.wait()).exit_code == 3
        assert heard == [b"a"]
        process = await sandbox.commands.run("serve", background=True)
        assert [event.text async for event in process] == ["a", ""]
        # A start that is cancelled is made up for: what it started is stopped.
        fake.answers[PROCESSES] = slow
        fake.asked.clear()
        task = asyncio.create_task(sandbox.commands.run("serve", background=True))
        await asyncio.to_thread(arrived.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answered.set()
    assert fake.heard(f"DELETE {PROCESS}")


def test_sandboxes_are_listed_found_ended_and_changed(fake: Fake) -> None:
    times = {"created_at": "1", "last_used_at": "2", "expires_at": "3", "idle_at": None}
    view = {"id": "s", "name": "n", "status": "ready", "generation": 1, "processes": 2, "metadata": {"a": "b"}, **times}
    base = "GET /v1/sandboxes?metadata.a=b%26c&metadata.n=1&status=ready"
    fake.answers |= {
        base: (200, {}, {"sandboxes": [view], "next_cursor": "x/y"}),
        f"{base}&cursor=x%2Fy": (200, {}, {"sandboxes": [{**view, "id": "t"}], "next_cursor": None}),
        "GET /v1/sandboxes/s": (200, {}, view),
        "GET /v1/sandboxes/n": problem(404, "not_found"),
        "GET /v1/sandboxes?name=n": (200, {}, {"sandboxes": [view], "next_cursor": None}),
        "GET /v1/sandboxes?name=%2F": (200, {}, {"sandboxes": [], "next_cursor": None}),
        "PATCH /v1/sandboxes/s": (200, {}, view),
        "POST /v1/sandboxes/s/pause": (200, {}, {**view, "status": "paused"}),
        "POST /v1/sandboxes/s/resume": (200, {}, view),
        "GET /v1/sandboxes": [
            (200, {}, {"sandboxes": [], "next_cursor": "a"}),
        ],
        "GET /v1/sandboxes?cursor=a": (200, {}, {"sandboxes": [], "next_cursor": "a"}),
    }
    found = list(Sandbox.list(server=fake.url, metadata={"a": "b&c", "n": 1}, status="ready"))
    assert [(info.id, info.processes, info.metadata) for info in found] == [("s", 2, {"a": "b"}), ("t", 2, {"a": "b"})]
    sandbox = Sandbox.connect("n", server=fake.url)
    assert (sandbox.id, sandbox.get_info().name) == ("s", "n")
    assert sandbox.set_timeout(1.5).expires_at == "3"
    assert json.loads(fake.asked[-1].body) == {"ttl_ms": 1500}
    assert [sandbox.pause().status, sandbox.resume().status] == ["paused", "ready"]
    by_name = [
        Sandbox.get_info("n", server=fake.url),
        Sandbox.set_timeout("n", 2.5, server=fake.url),
        Sandbox.pause("n", server=fake.url),
        Sandbox.resume("n", server=fake.url),
    ]
    assert [info.status for info in by_name] == ["ready", "ready", "paused", "ready"]
    with pytest.raises(NotFound):
        Sandbox.connect("/", server=fake.url)
    assert not Sandbox.kill("/", server=fake.url)
    assert Sandbox.kill("s", server=fake.url)
    with pytest.raises(SandboxError, match="the same again"):
        list(Sandbox.list(server=fake.url))


WATCH = "GET /v1/sandboxes/s/watch?path=d%2F%FF&recursive=true"


def change(seq: int, name: str, **more: str) -> dict[str, Any]:
    return {"seq": seq, "event": "change", "change": "create", "name": name, **more}


def test_watch_gives_what_changes_and_what_is_missing(fake: Fake) -> None:
    fake.answers[WATCH] = events(
        change(1, "a", type="directory"),
        {"seq": 2, "event": "of another version"},
        change(3, "b", change="of another version"),
        {"seq": 4, "event": "omitted", "events": 5},
        change(9, "f\ufffd", name_b64="Zv8=", change="write"),
    )
    with Sandbox.create(server=fake.url) as sandbox:
        with sandbox.files.watch(b"d/\xff", recursive=True) as changes:
            assert len(fake.heard(WATCH)) == 1
            found = list(changes)
        assert [(it.change, it.name, it.type, it.seq, it.omitted) for it in found] == [
            ("create", "a", "directory", 1, 0),
            ("omitted", "", None, 0, 5),
            ("write", "f\ufffd", None, 9, 0),
        ]
        assert [it.name_bytes for it in found] == [b"a", b"", b"f\xff"]
        # Each of those that are left early gives its connection back: more than there may be at once.
        for _ in range(70):
            with sandbox.files.watch(b"d/\xff", recursive=True) as changes:
                assert next(changes).name == "a"


async def test_watch_that_is_refused_or_breaks_off_is_an_error_and_is_not_made_again(fake: Fake) -> None:
    piece = f"data: {json.dumps(change(1, 'a'))}\n\n".encode()
    cut = b"%x\r\n%s\r\n" % (len(piece), piece)
    async with await AsyncSandbox.create(server=fake.url) as sandbox:
        watch = lambda: sandbox.files.watch(b"d/\xff", recursive=True)  # noqa: E731
        fake.answers[WATCH] = (200, {"Connection": "close", "Transfer-Encoding": "chunked"}, cut)
        async with watch() as changes:
            assert (await anext(changes)).name == "a"
            with pytest.raises(ServerBusy):
                await anext(changes)
        assert len(fake.heard(WATCH)) == 1
        for there, error in ((CREATED, NotFound), (problem(404, "not_found"), SandboxGone)):
            fake.answers |= {WATCH: problem(404, "not_found"), "GET /v1/sandboxes/s": there}
            with pytest.raises(error):
                await watch().__aenter__()


def test_forwarded_port_passes_on_what_comes_and_its_end(fake: Fake) -> None:
    upgrade = {"Connection": "upgrade", "Upgrade": "sandboxctl-tcp"}
    fake.answers |= {
        "POST /v1/sandboxes/s/ports/5432/connect": (101, upgrade, b"greeting"),
        "POST /v1/sandboxes/s/ports/22/connect": problem(502, "port_closed"),
    }
    with Sandbox.create(server=fake.url, token="t", ports=[5432]) as sandbox:
        assert json.loads(fake.asked[0].body)["spec"]["ports"] == [5432]
        with sandbox.ports.forward(5432) as forward:
            with socket.create_connection((forward.host, forward.port), 10) as connection:
                assert connection.makefile("rb").read() == b"greeting"
            asked = fake.heard("POST /v1/sandboxes/s/ports/5432/connect")[0].headers
            assert (asked["upgrade"], asked["authorization"]) == ("sandboxctl-tcp", "Bearer t")
            with pytest.raises(SandboxError, match="cannot be listened at"):
                sandbox.ports.forward(5432, local_port=forward.port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((forward.host, forward.port), 10)
        with sandbox.ports.forward(22) as refused, socket.create_connection((refused.host, refused.port), 10) as it:
            assert it.makefile("rb").read() == b""
        for wrong in (0, 65536, True):
            with pytest.raises(ValueError, match="a number from 1 to 65535"):
                sandbox.ports.forward(wrong)


def test_preview_has_the_headers_of_its_requests_and_a_host(fake: Fake) -> None:
    view = {"url": "https://8080-s.preview.example.org/", "expires_at": "2026-11-29T12:00:00.000Z"}

    def answer(asked: Asked) -> Any:
        token = None if json.loads(asked.body)["public"] else "secret"
        return 201, {}, {**view, "token": token}

    fake.answers["POST /v1/sandboxes/s/ports/8080/previews"] = answer
    fake.answers["GET /v1/sandboxes/s/ports"] = (200, {}, {"ports": [{"port": 8080, "address": "::"}]})

    async def use() -> None:
        async with await AsyncSandbox.create(server=fake.url, ports="any") as sandbox:
            preview = await sandbox.ports.preview(8080, timeout=1.5)
            assert preview.headers == {"Sandbox-Port-Token": "secret"}
            assert await sandbox.ports.url(8080) == view["url"]
            assert await sandbox.get_host(8080) == "8080-s.preview.example.org"
            assert [(it.port, it.address) for it in await sandbox.ports.list()] == [(8080, "::")]

    asyncio.run(use())
    asked = [json.loads(it.body) for it in fake.heard("POST /v1/sandboxes/s/ports/8080/previews")]
    assert asked == [{"public": False, "ttl_ms": 1500}, {"public": True}, {"public": True}]
