"""The figures of the E2B protocol, as a program with E2B's Python SDK sees them. A row has the SDK's time, and that of
the same requests on one bare connection: the difference is the client's own share.

    scripts/e2b-suite --bench [--engine embedded]
"""

import base64
import http.client
import json
import os
import statistics
import struct
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from e2b import Sandbox

COUNT = int(os.environ.get("BENCH_COUNT", "50"))
KIB = "x" * 1024
MIB = 1 << 20
TRANSFER = 256 * MIB
# Answers "ok", or as many bytes as the path says.
SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        size = int(self.path[1:] or 2)
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        block = bytes(1 << 20)
        while size:
            size -= self.wfile.write(block[:size])
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


class Bare:
    """One connection to the service."""

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self.url = urlsplit(os.environ["E2B_API_URL" if sandbox is None else "E2B_SANDBOX_URL"])
        self.connection = http.client.HTTPConnection(self.url.netloc, timeout=60)
        self.headers = {"X-API-KEY": os.environ["E2B_API_KEY"]}
        if sandbox is not None:
            token = sandbox.connection_config.sandbox_headers.get("X-Access-Token", "")
            token = token or getattr(sandbox, "_envd_access_token", None) or ""
            self.headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983", "X-Access-Token": token}

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
        extra = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, self.url.path + path, body, {**self.headers, **extra})
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:200]!r}")
        return content


def times(action: Callable[[], object], count: int = COUNT) -> list[float]:
    """Milliseconds of each."""
    action()
    taken = []
    for _ in range(count):
        since = time.perf_counter()
        action()
        taken.append((time.perf_counter() - since) * 1000)
    return taken


def row(name: str, target: str, sdk: list[float], bare: list[float] | None = None) -> None:
    sdk.sort()
    share = "" if bare is None else f"{statistics.median(bare):.2f} ms"
    p95 = sdk[min(len(sdk) - 1, len(sdk) * 95 // 100)]
    print(f"| {name} | {statistics.median(sdk):.2f} ms | {p95:.2f} ms | {share} | {len(sdk)} | {target} |", flush=True)


def created(template: str) -> list[float]:
    """Creates, each followed by a pause in which the pool is filled again."""
    taken = []
    for _ in range(COUNT):
        since = time.perf_counter()
        sandbox = Sandbox.create(template, timeout=60)
        taken.append((time.perf_counter() - since) * 1000)
        sandbox.kill()
        time.sleep(0.5)
    return taken


def created_bare(template: str) -> list[float]:
    api, taken = Bare(), []
    for _ in range(COUNT):
        body = json.dumps({"templateID": template, "timeout": 60}).encode()
        since = time.perf_counter()
        made = json.loads(api.ask("POST", "/v2/sandboxes", body, Content_Type="application/json"))
        taken.append((time.perf_counter() - since) * 1000)
        api.ask("DELETE", f"/sandboxes/{made['sandboxID']}")
        time.sleep(0.5)
    return taken


def main() -> None:
    print("| | p50 | p95 | bare requests, p50 | samples | target |\n|---|---:|---:|---:|---:|---|")
    row("`Sandbox.create()` from the pool", "15 ms", created("base"), created_bare("base"))
    row("`Sandbox.create()` cold", "120 ms", created("cold"), created_bare("cold"))
    with Sandbox.create(timeout=600) as sandbox:
        envd = Bare(sandbox)
        message = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", "true"]}, "stdin": False}).encode()
        start = struct.pack(">BI", 0, len(message)) + message
        connect = {"Content_Type": "application/connect+json", "Connect_Protocol_Version": "1"}
        run = "/process.Process/Start"
        bare = times(lambda: envd.ask("POST", run, start, **connect))
        row('`commands.run("true")`', "6 ms", times(lambda: sandbox.commands.run("true")), bare)
        write = times(
            lambda: envd.ask("POST", "/files?path=kib", KIB.encode(), Content_Type="application/octet-stream")
        )
        row("`files.write` of 1 KiB", "4 ms", times(lambda: sandbox.files.write("kib", KIB)), write)
        read = times(lambda: envd.ask("GET", "/files?path=kib"))
        row("`files.read` of 1 KiB", "4 ms", times(lambda: sandbox.files.read("kib")), read)
        program = base64.b64encode(SERVER.encode()).decode()
        sandbox.commands.run(f"echo {program} | base64 -d | exec python3 -u -", background=True)
        port = Bare(sandbox)
        port.headers["E2b-Sandbox-Port"] = "8000"
        for _ in range(100):
            try:
                port.ask("GET", "/")
                break
            except RuntimeError:
                time.sleep(0.1)
        row("HTTP request to a port", "2 ms", times(lambda: port.ask("GET", "/")))
        rates = [TRANSFER / MIB / took * 1000 for took in times(lambda: port.ask("GET", f"/{TRANSFER}"), 5)]
        print(f"| {TRANSFER // MIB} MiB from a port | {statistics.median(rates):.0f} MiB/s | | | 5 | 100 MB/s |")


main()
