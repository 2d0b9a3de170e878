#!/usr/bin/python3
"""The code interpreter of a sandbox: runs code in contexts that keep their state, and streams what comes of it.

It serves the protocol of E2B's code interpreter at port 49999 of the loopback, with Python's standard library and
Debian's `ipykernel` and `jupyter_client`. A context has one kernel: IPython for Python, and programs of this folder for
bash and JavaScript, which need `bash` and `node`. Who may call is decided outside of the sandbox.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import zmq
from jupyter_client import BlockingKernelClient, KernelManager

PORT = 49999
KEEPALIVE = 5.0
# For how long an interrupted kernel may go on, before it is replaced.
PATIENCE = 5.0
STARTUP = 60.0
MAX_BODY = 64 << 20
# The exit code when another one has the port.
IN_USE = 3
HERE = Path(__file__).parent
HOME = os.environ.get("HOME", "/home/user")
ALIASES = {"js": "javascript", "ts": "typescript", "sh": "bash", "python3": "python", "py": "python"}
FORMATS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
}

Event = dict[str, Any]


class Gone(Exception):
    """The kernel has ended."""


class Refused(Exception):
    """A request that cannot be done: a status and a sentence."""


def output(stream: str, text: str, at: datetime | None = None) -> Event:
    return {"type": stream, "text": text, "timestamp": (at or datetime.now(timezone.utc)).isoformat()}


def failure(name: str, value: str, traceback: str = "") -> Event:
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def result(data: dict[str, Any], main: bool) -> Event:
    event: Event = {"type": "result", "is_main_result": main}
    event |= {name: data[kind] for kind, name in FORMATS.items() if data.get(kind) is not None}
    event["extra"] = {kind: value for kind, value in data.items() if kind not in FORMATS}
    text = event.get("text", "")
    # The text of a string is the string.
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        event["text"] = text[1:-1]
    return event


class Python:
    """An IPython kernel."""

    def __init__(self, language: str, cwd: str) -> None:
        # Sockets of the file system: a kernel has no port that others see.
        self._files = tempfile.TemporaryDirectory(prefix="kernel-")
        self._manager = KernelManager(
            kernel_name="python3",
            transport="ipc",
            ip=f"{self._files.name}/socket",
            connection_file=f"{self._files.name}/connection.json",
        )
        self._manager.start_kernel(cwd=cwd, env={**os.environ, "IPYTHONDIR": f"{self._files.name}/ipython"})
        self._client: BlockingKernelClient = self._manager.client()
        # No message is dropped: without the last one of a cell, that would never end.
        self._client.context.setsockopt(zmq.RCVHWM, 0)
        self._client.start_channels()
        try:
            self._client.wait_for_ready(timeout=STARTUP)
            for event in self._run(HERE.joinpath("startup.py").read_text(), silent=True):
                if event and event["type"] == "error":
                    print(event["traceback"], file=sys.stderr)
        except BaseException:
            self.kill()
            raise

    def execute(self, code: str, env: dict[str, str]) -> Iterator[Event | None]:
        """Runs a cell. It yields None when nothing has happened for a second, or the caller's connection has news."""
        if env:
            yield from self._run(f"__import__('os').environ.update({env!r})", silent=True)
        yield from self._run(code, silent=False)
        if env:
            kept = {name: os.environ.get(name) for name in env}
            yield from self._run(
                f"for _name, _value in {kept!r}.items():\n"
                "    __import__('os').environ.pop(_name, None)\n"
                "    if _value is not None: __import__('os').environ[_name] = _value\n"
                "del _name, _value",
                silent=True,
            )

    def _run(self, code: str, *, silent: bool) -> Iterator[Event | None]:
        call = self._client.execute(code, silent=silent, store_history=not silent, allow_stdin=False)
        while True:
            if not self._client.iopub_channel.socket.poll(1000, zmq.POLLIN):
                if not self._manager.is_alive():
                    raise Gone
                yield None
                continue
            message = self._client.get_iopub_msg(timeout=1)
            if message["parent_header"].get("msg_id") != call:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                yield output(content["name"], content["text"], message["header"]["date"])
            elif kind in ("execute_result", "display_data"):
                yield result(content["data"], main=kind == "execute_result")
            elif kind == "error":
                yield failure(content["ename"], content["evalue"], "\n".join(content["traceback"]))
            elif kind == "execute_input" and not silent:
                yield {"type": "number_of_executions", "execution_count": content["execution_count"]}
            elif kind == "status" and content["execution_state"] == "idle":
                return

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def kill(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._files.cleanup()

    def end(self) -> None:
        """Ends the process, while another thread runs a cell."""
        self._manager.signal_kernel(signal.SIGKILL)


# What a shell does with each cell. Cells come at descriptor 3, and their status goes to 4.
BASH = r"""while IFS= read -r -d "" -u "$1" cell; do eval "$cell"; printf '{"status":%d}\n' $? >&"$2"; done"""


class Program:
    """A kernel that is a program: it reads cells from one descriptor, and says at another what has become of each."""

    def __init__(self, language: str, cwd: str) -> None:
        self._language = language
        cells, self._cells = os.pipe()
        self._replies, replies = os.pipe()
        program = ["bash", "-c", BASH, "bash"] if language == "bash" else ["node", str(HERE / "node.js"), language]
        self._count = 0
        decoder = codecs.getincrementaldecoder("utf-8")
        # A character may come in two pieces.
        self._decoders = {stream: decoder("replace") for stream in ("stdout", "stderr")}
        try:
            self._process = subprocess.Popen(
                [*program, str(cells), str(replies)],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(cells, replies),
                start_new_session=True,
            )
        except OSError as error:
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, f"there is no kernel for {language} here: {error}") from error
        finally:
            os.close(cells)
            os.close(replies)

    def execute(self, code: str, env: dict[str, str]) -> Iterator[Event | None]:
        self._count += 1
        yield {"type": "number_of_executions", "execution_count": self._count}
        if self._language == "bash":
            if env:
                self._cell("export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items()))
                yield from self._events()
            self._cell(code)
            yield from self._events()
            for name in env:
                kept = os.environ.get(name)
                self._cell(f"unset {name}" if kept is None else f"export {name}={shlex.quote(kept)}")
                yield from self._events()
        else:
            self._cell(json.dumps({"code": code, "env": env}))
            yield from self._events()

    def _cell(self, cell: str) -> None:
        data = cell.replace("\0", "").encode() + b"\0"
        try:
            while data:
                data = data[os.write(self._cells, data) :]
        except BrokenPipeError:
            raise Gone from None

    def _events(self) -> Iterator[Event | None]:
        streams = {self._process.stdout: "stdout", self._process.stderr: "stderr"}
        reply = b""
        while not reply.endswith(b"\n"):
            # What it has started may have the other ends of the pipes.
            has_ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            ready = select.select([*streams, self._replies], [], [], 0 if has_ended else 1)[0]
            if not ready:
                yield None
            if self._replies in ready:
                part = os.read(self._replies, 1 << 16)
                has_ended |= not part
                reply += part
            # What it printed last comes before its end.
            yield from self._printed(streams)
            if has_ended and not reply.endswith(b"\n"):
                raise Gone
        # What it printed is in the pipes by now, and is read at once: what it has started may print without end.
        yield from self._printed(streams)
        for stream, decoder in self._decoders.items():
            if text := decoder.decode(b"", final=True):
                yield output(stream, text)
        ended = json.loads(reply)
        if ended.get("status"):
            yield failure("ExitCode", f"exit code {ended['status']}")
        if "result" in ended:
            yield result({"text/plain": ended["result"]}, main=True)
        if "error" in ended:
            yield failure(**ended["error"])

    def _printed(self, streams: dict[Any, str]) -> Iterator[Event]:
        for source in select.select(list(streams), [], [], 0)[0]:
            # All that a pipe holds.
            data = os.read(source.fileno(), 1 << 16)
            if not data:
                del streams[source]
            elif text := self._decoders[streams[source]].decode(data):
                yield output(streams[source], text)

    def interrupt(self) -> None:
        """Has no state that an interrupt keeps."""
        self.end()

    def kill(self) -> None:
        self.end()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            stream.close()
        os.close(self._cells)
        os.close(self._replies)

    def end(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


KERNELS: dict[str, type[Python | Program]] = {
    "python": Python,
    "bash": Program,
    "javascript": Program,
    "typescript": Program,
}


class Context:
    """Code of one language, one cell at a time. Its kernel starts with the first, or when it is prepared."""

    def __init__(self, language: str, cwd: str) -> None:
        if language not in KERNELS:
            raise Refused(
                HTTPStatus.NOT_IMPLEMENTED, f"there is no kernel for {language}: there are {', '.join(KERNELS)}"
            )
        if not os.path.isdir(cwd):
            raise Refused(HTTPStatus.BAD_REQUEST, f"the directory {cwd} does not exist")
        self.id = str(uuid.uuid4())
        self.language = language
        self.cwd = cwd
        self._kernel: Python | Program | None = None
        self._lock = threading.Lock()
        # How often it was ended or restarted: cells that waited then never run.
        self._ends = 0

    def view(self) -> dict[str, str]:
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    def prepare(self) -> None:
        with self._lock:
            self._ready()

    def execute(self, code: str, env: dict[str, str], send: Callable[[Event], None], here: Callable[[], bool]) -> None:
        """Runs a cell after those before it. A caller that is not there any more has it interrupted, or not begun."""
        ends = self._ends
        while not self._lock.acquire(timeout=KEEPALIVE):
            send({"type": "keepalive"})
            if not here():
                raise ConnectionError
        try:
            if ends != self._ends:
                send(failure("ContextRestarting", "the context was ended before the code began"))
                return
            try:
                kernel = self._ready()
            except (Refused, RuntimeError) as error:
                send(failure("KernelNotStarted", str(error.args[-1])))
                return
            if not here():
                raise ConnectionError
            self._run(kernel, kernel.execute(code, env), send, here)
        finally:
            self._lock.release()

    def _run(
        self,
        kernel: Python | Program,
        events: Iterator[Event | None],
        send: Callable[[Event], None],
        here: Callable[[], bool],
    ) -> None:
        try:
            last = time.monotonic()
            for event in events:
                if event is not None:
                    send(event)
                    last = time.monotonic()
                elif time.monotonic() - last >= KEEPALIVE:
                    send({"type": "keepalive"})
                    last = time.monotonic()
                if not here():
                    raise ConnectionError
        except (Gone, RuntimeError):
            self._stop()
            send(failure("ContextRestarting", "the kernel has ended, and with it all that was defined in it"))
        except OSError:
            # The caller has gone. What is left of the cell must not hold up the next one.
            self._interrupt(kernel, events)

    def _interrupt(self, kernel: Python | Program, events: Iterator[Event | None]) -> None:
        until = time.monotonic() + PATIENCE
        try:
            kernel.interrupt()
            for _ in events:
                if time.monotonic() > until:
                    raise Gone
        except Gone:
            self._stop()

    def restart(self) -> None:
        self.end()
        with self._lock:
            self._stop()
            self._ready()

    def close(self) -> None:
        self.end()
        with self._lock:
            self._stop()

    def end(self) -> None:
        """Ends the kernel, the cell that it runs, and those that wait."""
        self._ends += 1
        kernel = self._kernel
        if kernel is not None:
            kernel.end()

    def _ready(self) -> Python | Program:
        if self._kernel is None:
            try:
                self._kernel = KERNELS[self.language](self.language, self.cwd)
            except OSError as error:
                # No process or no memory is left, for instance.
                raise RuntimeError(f"the kernel does not start: {error.strerror}") from error
            except Gone as error:
                raise RuntimeError("the kernel does not start: it has ended") from error
        return self._kernel

    def _stop(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.kill()


class Contexts:
    """All contexts, with one for each language that is used without naming any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[str, Context] = {}
        self._defaults: dict[str, Context] = {}

    def create(self, language: str | None, cwd: str | None) -> Context:
        context = Context(normal(language), cwd or HOME)
        context.prepare()
        with self._lock:
            self._all[context.id] = context
        return context

    def default(self, language: str | None) -> Context:
        language = normal(language)
        with self._lock:
            if language not in self._defaults:
                self._defaults[language] = context = Context(language, HOME)
                self._all[context.id] = context
            return self._defaults[language]

    def find(self, which: str) -> Context:
        with self._lock:
            if which in self._all:
                return self._all[which]
        raise Refused(HTTPStatus.NOT_FOUND, f"Context {which} not found")

    def remove(self, which: str) -> None:
        context = self.find(which)
        with self._lock:
            self._all.pop(which, None)
            if self._defaults.get(context.language) is context:
                del self._defaults[context.language]
        context.close()

    def views(self) -> list[dict[str, str]]:
        with self._lock:
            return [context.view() for context in self._all.values()]


def normal(language: str | None) -> str:
    language = (language or "python").strip().lower()
    return ALIASES.get(language, language)


CONTEXTS = Contexts()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = 640
    server_version = "sandboxctl"
    sys_version = ""

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def do_OPTIONS(self) -> None:
        self._answer(HTTPStatus.NO_CONTENT, None)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the proxy in front has a log of the requests."""

    def _serve(self, method: str) -> None:
        try:
            body = self._body()
            self._route(f"{method} {self.path.partition('?')[0]}", body)
        except Refused as refused:
            self._answer(refused.args[0], str(refused.args[1]))
        except RuntimeError as error:
            # A kernel that does not start.
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except (OSError, ValueError):
            # The caller has gone, or does not speak HTTP.
            self.close_connection = True

    def _route(self, request: str, body: Any) -> None:
        context = re.fullmatch(r"(POST|DELETE) /contexts/([^/]+)(/restart)?", request)
        if request == "GET /health":
            self._answer(HTTPStatus.OK, "OK")
        elif request == "GET /contexts":
            self._answer(HTTPStatus.OK, CONTEXTS.views())
        elif request == "POST /contexts":
            created = CONTEXTS.create(text_of(body, "language"), text_of(body, "cwd"))
            self._answer(HTTPStatus.OK, created.view())
        elif request == "POST /execute":
            self._execute(body)
        elif context and context[1] == "POST" and context[3]:
            CONTEXTS.find(context[2]).restart()
            self._answer(HTTPStatus.OK, None)
        elif context and context[1] == "DELETE" and not context[3]:
            CONTEXTS.remove(context[2])
            self._answer(HTTPStatus.OK, None)
        else:
            raise Refused(HTTPStatus.NOT_FOUND, f"there is no {request}")

    def _execute(self, body: Any) -> None:
        code, which, language = (text_of(body, name) for name in ("code", "context_id", "language"))
        if code is None:
            raise Refused(HTTPStatus.BAD_REQUEST, "`code` is missing")
        if which and language:
            raise Refused(HTTPStatus.BAD_REQUEST, "a context has its language: give `context_id` or `language`")
        env = body.get("env_vars") or {}
        named = isinstance(env, dict) and all(re.fullmatch(r"\w+", name, re.ASCII) for name in env)
        if not named or not all(isinstance(value, str) for value in env.values()):
            raise Refused(HTTPStatus.BAD_REQUEST, "`env_vars` has names of letters, digits and _, and values of text")
        context = CONTEXTS.find(which) if which else CONTEXTS.default(language)
        # The caller hears of its cell while that waits for another one. What fails from here on is an event.
        self._head(HTTPStatus.OK, "application/x-ndjson", {"Transfer-Encoding": "chunked"})
        context.execute(code, env, self._send, self._here)
        self._send({"type": "end_of_execution"})
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, event: Event) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _here(self) -> bool:
        """Whether the caller is still there: it sends nothing until the end, so what can be read is its going."""
        return not select.select([self.connection], [], [], 0)[0]

    def _body(self) -> Any:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            data = b"".join(self._chunks())
        else:
            length = int(self.headers.get("Content-Length") or 0)
            data = self.rfile.read(length) if length <= MAX_BODY else self._too_large()
        try:
            body = json.loads(data or b"{}")
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "the body is not an object of JSON")
        return body

    def _chunks(self) -> Iterator[bytes]:
        left = MAX_BODY
        while size := int(self.rfile.readline(32).partition(b";")[0], 16):
            left -= size
            yield self.rfile.read(size) if left >= 0 else self._too_large()
            self.rfile.readline(3)
        self.rfile.readline(3)

    def _too_large(self) -> bytes:
        self.close_connection = True
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {MAX_BODY} bytes")

    def _answer(self, status: HTTPStatus, value: Any) -> None:
        text = isinstance(value, str) and status != HTTPStatus.OK
        body = value.encode() if text else json.dumps(value).encode()
        if status == HTTPStatus.NO_CONTENT:
            body = b""
        kind = "text/plain; charset=utf-8" if text else "application/json"
        self._head(status, kind, {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        allowed = {f"Access-Control-Allow-{name}": "*" for name in ("Origin", "Methods", "Headers")}
        for name, value in ({"Content-Type": kind} | headers | allowed).items():
            self.send_header(name, value)
        self.end_headers()


def text_of(body: Any, name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, f"`{name}` is not text")
    return value


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    address = ("127.0.0.1", int(os.environ.get("CODE_INTERPRETER_PORT", PORT)))
    with Server(address, Handler, bind_and_activate=False) as server:
        try:
            server.server_bind()
            # The first cell finds its kernel started. That of JavaScript starts when it is used.
            CONTEXTS.default("python").prepare()
            CONTEXTS.default("javascript")
            server.server_activate()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            sys.exit(IN_USE)
        server.serve_forever()


if __name__ == "__main__":
    main()
