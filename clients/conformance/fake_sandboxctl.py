#!/usr/bin/env python3
"""Stands in for `sandboxctl serve --private`, and for the local service: their first line, their end, and files in
memory. `local stop` ends the local service that `local socket` has started; FAKE_LOCAL is the file that it is noted in.

What the tests need and the real one does not do is selected by the names of files and scripts, and by the environment.
"""

import base64
import json
import os
import select
import shutil
import signal
import socketserver
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote

if "--version" in sys.argv:
    print("sandboxctl 0.0.9 (fake)")
    sys.exit(0)
MODE = os.environ.get("FAKE", "")
if MODE == "silent-death":
    sys.exit("error: no engine answers")
if MODE == "older":
    print("error: unexpected argument '--private' found", file=sys.stderr)
    sys.exit(2)
LOCAL = os.environ["FAKE_LOCAL"] if "local" in sys.argv else ""

sandboxes: dict = {}
executions: dict = {}
pending: set = set()
GONE = 410, {"kind": "gone", "detail": "the sandbox is gone"}


def view(identifier: str) -> dict:
    request = json.loads(sandboxes[identifier]["init"])["request"]
    times = dict.fromkeys(["created_at", "last_used_at", "expires_at", "max_expires_at"], "2026-01-01T00:00:00Z")
    rest = {"status": "ready", "generation": 7, "processes": 0, "idle_at": None, "node_away": False}
    return {"id": identifier, "metadata": {}, **request, **times, **rest}


def document(status: str) -> dict:
    return {
        "schema": "sandboxctl.result/1",
        "id": "x",
        "status": status,
        "result": None,
        "logs": [],
        "logs_truncated": False,
        "files_touched": [],
        "files_touched_truncated": False,
        "error": None,
        "engine": "embedded",
        "limits": None,
        "usage": None,
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def say(self, status: int, content: object) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def hang(self, execution: str = "") -> None:
        """Waits until the client has gone, or the execution has ended."""
        pending.add(self)
        while executions.get(execution, "running") == "running":
            if select.select([self.connection], [], [], 0.01)[0]:
                self.close_connection = True
                break
        pending.discard(self)

    def body(self) -> bytes:
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        while self.headers.get("transfer-encoding") and (size := int(self.rfile.readline(), 16)):
            content += self.rfile.read(size)
            self.rfile.readline()
        if self.headers.get("transfer-encoding"):
            self.rfile.readline()
        return content

    def handle_any(self) -> None:
        path, _, query = self.path.partition("?")
        content = b"" if self.command == "PUT" else self.body()
        match [self.command, *path.split("/")[2:]]:
            case ["POST", "sandboxes"]:
                request = json.loads(content)
                identifier = f"s-{request['name']}"
                init = {"request": request, "pid": os.getpid(), "env": sorted(os.environ), "arguments": sys.argv[1:]}
                sandboxes.setdefault(identifier, {"init": json.dumps(init).encode()})
                self.say(201, view(identifier))
            case ["GET", "sandboxes"]:
                # A page for each sandbox.
                wanted = dict(part.split("=") for part in query.split("&") if part)
                views = [view(each) for each in sandboxes]
                names = [each for each in views if wanted.get("name", each["name"]) == each["name"]]
                at = int(wanted.get("cursor", "0"))
                following = str(at + 1) if at + 1 < len(names) else None
                self.say(200, {"sandboxes": names[at : at + 1], "next_cursor": following})
            case ["DELETE", "sandboxes", identifier]:
                executions.update(dict.fromkeys(executions, "cancelled"))
                self.say(*GONE) if sandboxes.pop(identifier, None) is None else self.say(204, b"")
            case ["GET", "sandboxes", identifier]:
                missing = GONE if not LOCAL else (404, {"kind": "not_found", "detail": "there is none"})
                self.say(*missing) if identifier not in sandboxes else self.say(200, view(identifier))
            case [_, "sandboxes", identifier, *rest]:
                # Only a sandbox of a private service cannot start again.
                if (not LOCAL and "generation=7" not in query.split("&")) or identifier not in sandboxes:
                    self.say(*GONE)
                else:
                    self.in_sandbox(sandboxes[identifier], [self.command, *rest], content)
            case ["GET", "executions", identifier, "events"]:
                self.send_response(200)
                self.send_header("Connection", "close")
                self.end_headers()
                event = {"seq": 1, "event": "log", "level": "print", "text": "waiting"}
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.hang(identifier)
                self.close_connection = True
            case ["GET", "executions", identifier]:
                self.hang(identifier)
                if not self.close_connection:
                    self.say(200, document(executions[identifier]))
            case ["DELETE", "executions", identifier]:
                executions[identifier] = "cancelled"
                self.say(202, document("cancelled"))

    def in_sandbox(self, files: dict, what: list, content: bytes) -> None:
        match what:
            case ["POST", "executions"]:
                identifier = f"e-{len(executions)}"
                executions[identifier] = "running" if json.loads(content)["script"] == "wait" else "ok"
                self.say(202, {"id": identifier, "status": "running"})
            case ["GET", "files", path]:
                missing = 404, {"kind": "not_found", "detail": "No such file"}
                self.say(200, files[path]) if (path := unquote(path)) in files else self.say(*missing)
            case ["PUT", "files", "refused"]:
                self.say(403, {"kind": "not_allowed", "detail": "refused"})
                self.close_connection = True
                # As the real one: a client that still sends must be able to read the answer.
                self.body()
            case ["PUT", "files", path]:
                pending.add(self)
                try:
                    content = files[unquote(path)] = self.body()
                finally:
                    pending.discard(self)
                self.say(200, {"path": path, "bytes_written": len(content), "created": True})
            case ["POST", "operations"]:
                self.operate(files, json.loads(content))

    def operate(self, files: dict, operation: dict) -> None:
        path, encoded = operation["path"], operation.get("encoding") == "base64"
        match operation["operation"]:
            case "read" if path == "pending":
                return self.hang()
            case "read" | "exists" if path == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "read" if path == "count":
                data = {"content": str(len(pending))}
            case "write":
                content = operation["content"]
                files[path] = base64.b64decode(content) if encoded else content.encode()
                data = {"path": path, "bytes_written": len(files[path]), "created": True}
            case "read" if path in files:
                data = {"content": base64.b64encode(files[path]).decode() if encoded else files[path].decode()}
            case "exists":
                data = {"exists": path in files}
            case _:
                error = {"kind": "not_found", "message": f"{path}: No such file"}
                return self.say(200, {"success": False, "data": None, "error": error})
        return self.say(200, {"success": True, "data": data})

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def address_string(self) -> str:
        return ""

    def log_message(self, *_: object) -> None:
        pass


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128


def hello_of(path: str) -> str:
    return json.dumps({"protocol": 2 if MODE == "newer" else 1, "version": "0.0.9", "socket": path})


def local(verb: str) -> None:
    """`local socket`, and `local stop`."""
    if os.path.exists(LOCAL):
        with open(LOCAL) as file:
            note = json.load(file)
        if verb == "socket":
            print(note["hello"])
            return
        os.kill(note["pid"], signal.SIGKILL)
        shutil.rmtree(note["directory"])
        os.remove(LOCAL)
    elif verb == "socket":
        directory = tempfile.mkdtemp()
        server = Server(f"{directory}/socket", Handler)
        hello = hello_of(server.server_address)
        if pid := os.fork():
            with open(LOCAL, "w") as file:
                json.dump({"pid": pid, "directory": directory, "hello": hello}, file)
            print(hello)
            return
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        server.serve_forever(0.01)


if LOCAL:
    local(sys.argv[sys.argv.index("local") + 1])
    sys.exit()
with tempfile.TemporaryDirectory() as directory, Server(f"{directory}/socket", Handler) as server:
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    print("no JSON" if MODE == "garbage" else hello_of(server.server_address), flush=True)
    sys.stdin.buffer.read()
    server.shutdown()
