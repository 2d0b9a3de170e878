"""A server of HTTP over TLS, or without, that notes what it is sent, and repeats it in all the ways in which a
server can: the tests of injected secrets send it theirs.

  python3 https.py NOTES [--certificate CERT KEY] [--files DIR] [--git DIR]

It prints its port, and serves until its stdin ends. NOTES gets a line of JSON for each connection (`{"hello": ALPN}`)
and for each request (`{"head": TEXT, "body": TEXT}`, bytes as characters). What a path does stands at `answer`.
"""

import argparse
import base64
import gzip
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

lock = threading.Lock()


class Closed(Exception):
    """The client has gone."""


class Connection:
    def __init__(self, server, stream):
        self.server, self.stream, self.buffer, self.method = server, stream, b"", ""

    def more(self):
        piece = self.stream.recv(65536)
        if not piece:
            raise Closed
        self.buffer += piece
        if self.buffer.startswith(b"\x16\x03"):
            # TLS, where none is spoken.
            self.send(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            raise Closed

    def until(self, end):
        while end not in self.buffer:
            self.more()
        found, self.buffer = self.buffer.split(end, 1)
        return found + end

    def exactly(self, count):
        while len(self.buffer) < count:
            self.more()
        found, self.buffer = self.buffer[:count], self.buffer[count:]
        return found

    def body(self, headers):
        if headers.get("expect", "").lower() == "100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" not in headers.get("transfer-encoding", ""):
            return self.exactly(int(headers.get("content-length", "0")))
        body = b""
        while size := int(self.until(b"\r\n").split(b";")[0], 16):
            body += self.exactly(size)
            self.exactly(2)
        trailers = self.until(b"\r\n")
        while not trailers.endswith(b"\r\n\r\n") and trailers != b"\r\n":
            trailers += self.until(b"\r\n")
        return body + (b"" if trailers == b"\r\n" else b"|trailers|" + trailers)

    def send(self, data):
        self.stream.sendall(data)

    def serve(self):
        while True:
            head = self.until(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            method, target, version = lines[0].split(" ", 2)
            fields = [line.partition(":") for line in lines[1:] if line]
            headers = {name.lower(): value.strip() for name, _, value in fields}
            body = self.body(headers)
            self.method = method
            self.server.note(head=head.decode("latin-1"), body=body.decode("latin-1"))
            self.answer(method, target, headers, head, body)
            if headers.get("connection", "").lower() == "close" or version == "HTTP/1.0":
                raise Closed

    def reply(self, status, body, *fields):
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields]
        body = b"" if self.method == "HEAD" else body
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def chunks(self, pieces, trailer=None, extension=""):
        lines = ["HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "Content-Type: text/plain"]
        if trailer is not None:
            lines.append("Trailer: X-Echo")
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))
        for piece in pieces:
            self.send(f"{len(piece):x}{extension}\r\n".encode("latin-1") + piece + b"\r\n")
        self.send(b"0\r\n" + (b"" if trailer is None else b"X-Echo: " + trailer.encode("latin-1") + b"\r\n") + b"\r\n")

    def answer(self, method, target, headers, head, body):
        url = urllib.parse.urlsplit(target)
        path, query = url.path, dict(urllib.parse.parse_qsl(url.query))
        # What a program wants to read.
        sent = headers.get("authorization") or query.get("key") or "nothing"
        secret = sent.split(" ")[-1]
        if method == "TRACE":
            return self.reply("200 OK", head, "Content-Type: message/http")
        if path.startswith("/git/") or path.startswith("/files/"):
            # These two want to know who asks.
            if "authorization" not in headers:
                return self.reply("401 Unauthorized", b"who are you?\n", 'WWW-Authenticate: Basic realm="tests"')
            return self.git(method, url, headers, body) if path.startswith("/git/") else self.file(path)
        match path.strip("/").split("/"):
            case ["echo"]:
                self.reply("200 OK", b"you sent\n" + head + body, "Content-Type: text/plain")
            case ["echo", "json"]:
                self.reply("200 OK", json.dumps({"headers": headers, "url": target}).encode())
            case ["echo", "base64"]:
                encoded = [base64.b64encode(b"x" * count + secret.encode()) for count in range(3)]
                self.reply("200 OK", b" ".join(encoded))
            case ["echo", "percent"]:
                upper = urllib.parse.quote(secret, safe="")
                self.reply("200 OK", f"?key={upper}&lower={lower(upper)}".encode())
            case ["echo", "chunks", size]:
                text, size = b"<p>" + sent.encode() + b"</p>" * 3, int(size)
                self.chunks(text[at : at + size] for at in range(0, len(text), size))
            case ["echo", "extension"]:
                self.chunks([b"hello"], extension=";name=" + secret)
            case ["echo", "trailer"]:
                self.chunks([b"hello"], trailer=sent)
            case ["echo", "pieces"]:
                # Of a body with a length, each in a packet of its own.
                text = b"<p>" + sent.encode() + b"</p>"
                self.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n".encode())
                for at in range(len(text)):
                    self.send(text[at : at + 1])
            case ["echo", "close"]:
                self.send(b"HTTP/1.0 200 OK\r\n\r\n<p>" + sent.encode())
                raise Closed
            case ["echo", "range"]:
                # Of the page with the secret, the part that was asked for.
                first, _, last = headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
                text = b"<p>" + sent.encode() + b"</p>"
                part = text[int(first) : int(last) + 1 if last else None]
                status = "206 Partial Content" if "range" in headers else "200 OK"
                self.reply(status, part, f"Content-Range: bytes {first}-{last}/{len(text)}")
            case ["echo", "header"]:
                self.reply("200 OK", b"hello", f"X-Echo: {sent}", f"Set-Cookie: token={secret}", f"ETag: \"{secret}\"")
            case ["echo", "reason"]:
                self.reply(f"418 {sent}", b"hello")
            case ["echo", "early"]:
                self.send(f"HTTP/1.1 103 Early Hints\r\nLink: </{secret}>; rel=preload\r\n\r\n".encode("latin-1"))
                self.reply("200 OK", b"hello")
            case ["error"]:
                self.reply("500 Internal Server Error", b"<pre>cannot handle\n" + head + b"</pre>")
            case ["broken"]:
                self.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n<p>" + sent.encode())
                raise Closed
            case ["garbage"]:
                self.send(sent.encode() + b"\r\n" + head)
                raise Closed
            case ["gzip"]:
                self.reply("200 OK", gzip.compress(head * 20), "Content-Encoding: gzip")
            case ["gzip", "chunked"]:
                body = gzip.compress(head)
                self.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n")
                self.send(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
            case ["redirect"]:
                to = query["to"]
                self.reply("302 Found", b"", f"Location: {to}", f"Link: <{to}?key={secret}>")
            case ["redirect", "with"]:
                self.reply("302 Found", b"", f"Location: {query['to']}?key={urllib.parse.quote(secret, safe='')}")
            case ["upgrade"]:
                self.send(f"HTTP/1.1 101 {sent}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Echo: {sent}\r\n\r\n".encode())
                # The message in two frames, and a close.
                first, rest = sent[:4].encode(), sent[4:].encode() + b"|"
                self.send(bytes([0x01, len(first)]) + first + bytes([0x80, len(rest)]) + rest + b"\x88\x00")
                raise Closed
            case _:
                self.reply("200 OK", b"hello\n", "Content-Type: text/plain")

    def file(self, path):
        file = Path(self.server.options.files) / urllib.parse.unquote(path.removeprefix("/files/"))
        file = file / "index.html" if file.is_dir() else file
        if not file.is_file():
            return self.reply("404 Not Found", b"no such file\n")
        kind = {".html": "text/html", ".json": "application/json"}.get(file.suffix, "application/octet-stream")
        return self.reply("200 OK", file.read_bytes(), f"Content-Type: {kind}")

    def git(self, method, url, headers, body):
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        environment = {
            "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_HTTP_EXPORT_ALL": "1", "REMOTE_USER": "tests",
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
            "GIT_PROJECT_ROOT": self.server.options.git, "PATH_INFO": url.path.removeprefix("/git"),
            "QUERY_STRING": url.query, "REQUEST_METHOD": method, "CONTENT_TYPE": headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)), "HTTP_GIT_PROTOCOL": headers.get("git-protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        status = next((line.split(" ", 1)[1] for line in lines if line.startswith("Status: ")), "200 OK")
        self.reply(status, content, *(line for line in lines if not line.startswith("Status: ")))


def lower(encoded):
    return "".join(it.lower() if encoded[max(at - 2, 0) : at + 1].count("%") else it for at, it in enumerate(encoded))


class Server:
    def __init__(self, options):
        self.options = options
        self.notes = open(options.notes, "a", buffering=1)
        self.context = None
        if options.certificate:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*options.certificate)
            self.context.set_alpn_protocols(["h2", "http/1.1"])

    def note(self, **line):
        with lock:
            self.notes.write(json.dumps(line) + "\n")

    def take(self, stream):
        try:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.context is not None:
                stream = self.context.wrap_socket(stream, server_side=True)
                self.note(hello=stream.selected_alpn_protocol())
            Connection(self, stream).serve()
        except (Closed, OSError, ValueError):
            pass
        finally:
            try:
                # An end that is said: without it what came may have been cut.
                if self.context is not None:
                    stream.settimeout(5)
                    stream.unwrap()
            except (OSError, ValueError, AttributeError):
                pass
            stream.close()

    def accept(self, listener):
        while True:
            stream, _ = listener.accept()
            threading.Thread(target=self.take, args=(stream,), daemon=True).start()


parser = argparse.ArgumentParser()
parser.add_argument("notes")
parser.add_argument("--certificate", nargs=2)
parser.add_argument("--files")
parser.add_argument("--git")
server = Server(parser.parse_args())
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=server.accept, args=(listener,), daemon=True).start()
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
