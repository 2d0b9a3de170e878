import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { createServer as createTlsServer } from "node:https";
import { type AddressInfo, connect, Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import {
  type FileChange,
  type Forward,
  LimitExceeded,
  NotFound,
  Sandbox,
  SandboxError,
  SandboxGone,
  ServerBusy,
} from "../src/index.js";

test("a forwarded port passes on what comes and its end, and a preview has headers", async (t) => {
  const server = createServer((request, response) => {
    const body = request.url === "/v1/sandboxes" ? { id: "s1" } : { ports: [{ port: 8080, address: "::" }] };
    if (request.url !== "/v1/sandboxes/s1/ports/8080/previews") return json(response, 200, body);
    let text = "";
    request.on("data", (piece) => {
      text += piece;
    });
    request.on("end", () => {
      const token = JSON.parse(text).public ? null : "secret";
      json(response, 201, {
        url: "https://8080-s1.preview.example.org/",
        token,
        expires_at: "2026-11-29T12:00:00.000Z",
      });
    });
  });
  server.on("upgrade", (request, socket) => {
    assert.equal(request.headers.upgrade, "sandboxctl-tcp");
    const port = /ports\/([0-9]+)\/connect/.exec(request.url ?? "")?.[1];
    if (port !== "5432") return socket.end("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n");
    socket.write("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: sandboxctl-tcp\r\n\r\nhello ");
    socket.pipe(socket);
    return undefined;
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const sandbox = await Sandbox.create({ server: url, ports: [5432] });
  const read = (port: number, sent: string) =>
    new Promise<string>((resolve) => {
      let text = "";
      const socket = connect(port, "127.0.0.1", () => socket.end(sent));
      socket.on("data", (piece) => {
        text += piece;
      });
      socket.on("error", () => {});
      socket.on("close", () => resolve(text));
    });
  const forward = await sandbox.ports.forward(5432);
  assert.equal(await read(forward.port, "echo"), "hello echo");
  await assert.rejects(sandbox.ports.forward(5432, { localPort: forward.port }), { kind: "usage" });
  await forward.close();
  const refused = await sandbox.ports.forward(22);
  assert.equal(await read(refused.port, "echo"), "");
  await refused.close();
  await assert.rejects(sandbox.ports.forward(0), TypeError);
  assert.deepEqual(await sandbox.ports.list(), [{ port: 8080, address: "::" }]);
  const preview = await sandbox.ports.preview(8080, { timeoutMs: 1500 });
  assert.deepEqual(preview.headers, { "sandbox-port-token": "secret" });
  assert.equal(await sandbox.getHost(8080), "8080-s1.preview.example.org");
  await sandbox.close();
  server.closeAllConnections();
});

test("each direction of a forwarded connection ends by itself, and a slow reader gets the tail", {
  timeout: 120_000,
}, async (t) => {
  // What is written to a connection that the client has accepted takes its time, as with a reader that is slow.
  const slow = (message: unknown) => {
    const { socket } = message as { socket: Socket };
    if (socket.localPort !== forward?.port) return;
    const write = Socket.prototype._write;
    Object.assign(socket, { _writev: null });
    socket._write = (...given) => void setTimeout(() => write.apply(socket, given), 100);
  };
  subscribe("net.server.socket", slow);
  t.after(() => unsubscribe("net.server.socket", slow));
  let forward: Forward | undefined;
  let heard = "";
  const server = createServer((_, response) => json(response, 200, { id: "s1" }));
  const ended = new Promise<void>((resolve) => {
    server.on("upgrade", (_, socket) => {
      // It ends its direction first, and reads on.
      socket.end("HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: sandboxctl-tcp\r\n\r\nthe tail");
      socket.on("data", (piece: Buffer) => {
        heard += piece;
      });
      socket.on("end", resolve);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const sandbox = await Sandbox.create({ server: url, ports: [5432] });
  forward = await sandbox.ports.forward(5432);
  const read = async (half: (socket: Socket) => void) => {
    const socket = connect({ port: forward?.port as number, host: "127.0.0.1", allowHalfOpen: true });
    half(socket);
    let text = "";
    socket.on("data", (piece) => {
      text += piece;
    });
    await once(socket, "end");
    return text;
  };
  assert.equal(
    await read((socket) => socket.on("end", () => setTimeout(() => socket.end("after it"), 50))),
    "the tail",
  );
  await ended;
  assert.equal(heard, "after it");
  // Both directions have ended at the server long before the tail is written.
  assert.equal(await read((socket) => socket.end("before it")), "the tail");
  await forward.close();
  await sandbox.close();
  server.closeAllConnections();
});

type Handler = (request: IncomingMessage & { text: string }, response: ServerResponse) => void;

const OK = {
  schema: "sandboxctl.result/1",
  id: "e1",
  status: "ok",
  result: 7,
  logs: [],
  logs_truncated: false,
  exit_code: 0,
  error: null,
  engine: "embedded",
  files_touched: [],
  files_touched_truncated: false,
  network: null,
  limits: null,
  usage: null,
};

function json(response: ServerResponse, status: number, body: unknown, headers: Record<string, string> = {}) {
  response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(body));
}

/** A server that answers as the test says, after it has created a sandbox. */
async function sandboxAt(t: TestContext, handler: Handler): Promise<{ s: Sandbox; seen: string[]; end: () => void }> {
  const seen: string[] = [];
  const server = createServer((request, response) => {
    const pieces: Buffer[] = [];
    request
      .on("data", (piece: Buffer) => pieces.push(piece))
      .on("end", () => {
        seen.push(`${request.method} ${request.url}`);
        if (request.url === "/v1/sandboxes") return json(response, 201, { id: "s1" });
        if (request.method === "DELETE" && request.url === "/v1/sandboxes/s1") return response.writeHead(204).end();
        return handler(Object.assign(request, { text: Buffer.concat(pieces).toString() }), response);
      });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const s = await Sandbox.create({ server: `http://127.0.0.1:${port}`, token: "secret" });
  const end = () => {
    server.close();
    server.closeAllConnections();
  };
  t.after(end);
  return { s, seen, end };
}

const envelope = (data: unknown) => ({ success: true, data, error: null, metadata: { duration_ms: 0 } });

const change = (seq: number, name: string, more: object = {}) =>
  `data: ${JSON.stringify({ seq, event: "change", change: "create", name, ...more })}\n\n`;

test("a watch gives what changes and what is missing, and ends where it is left", { timeout: 120_000 }, async (t) => {
  let closed = 0;
  const { s, seen } = await sandboxAt(t, (_, response) => {
    response.on("close", () => {
      closed += 1;
    });
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(change(1, "a", { type: "directory" }));
    response.write('data: {"event":"of another version"}\n\n');
    response.write(change(3, "b", { change: "of another version" }));
    response.write('data: {"event":"omitted","events":5}\n\n');
    response.write(change(9, "f\ufffd", { name_b64: "Zv8=", change: "write" }));
  });
  const watch = (options = {}) => s.files.watch("d/\u00e4", { recursive: true, ...options });
  const found: FileChange[] = [];
  for await (const each of await watch()) {
    found.push(each);
    if (each.seq === 9) break;
  }
  assert.deepEqual(found, [
    { seq: 1, change: "create", name: "a", type: "directory" },
    { change: "omitted", name: "", omitted: 5 },
    { seq: 9, change: "write", name: "f\ufffd", nameBytes: new Uint8Array([102, 255]) },
  ]);
  assert.equal(seen.at(-1), "GET /v1/sandboxes/s1/watch?path=d%2F%C3%A4&recursive=true");
  // So does one of which nothing was read: these are more than there may be at once.
  for (let i = 0; i < 70; i += 1) await (await watch()).return();
  const stop = new AbortController();
  const changes = await watch({ signal: stop.signal });
  await changes.next();
  stop.abort(new Error("enough"));
  await assert.rejects(async () => {
    for await (const _ of changes);
  }, /enough/);
  while (closed < 72) await new Promise((resolve) => setTimeout(resolve, 5));
});

test("a watch that is refused or breaks off is an error, and is not made again", async (t) => {
  const { s, seen } = await sandboxAt(t, (request, response) => {
    if (request.url?.includes("path=none")) return json(response, 404, { kind: "not_found", detail: "none" });
    response.writeHead(200, { "content-type": "text/event-stream" });
    return response.write(change(1, "a"), () => response.destroy());
  });
  const changes = await s.files.watch();
  assert.equal((await changes.next()).value?.name, "a");
  await assert.rejects(changes.next(), { kind: "unavailable" });
  assert.equal(seen.length, 2);
  await assert.rejects(s.files.watch("none"), NotFound);
});

test("a request that is refused for now is made again after the time that the server asks for", async (t) => {
  let calls = 0;
  const { s } = await sandboxAt(t, (request, response) => {
    assert.equal(request.headers.authorization, "Bearer secret");
    calls += 1;
    if (calls === 1) return json(response, 429, { kind: "rate_limited", detail: "slower" }, { "retry-after": "0" });
    return json(response, 200, envelope({ path: "/io/a", bytes_written: 1, created: true }));
  });
  assert.equal((await s.files.write("a", "x")).bytesWritten, 1);
  assert.equal(calls, 2);
});

test("a server that asks for too long a pause is not waited for", async (t) => {
  const { s } = await sandboxAt(t, (_, response) =>
    json(response, 429, { kind: "quota_exceeded", detail: "enough" }, { "retry-after": "86400" }),
  );
  await assert.rejects(s.files.write("a", "x"), (error) => error instanceof LimitExceeded && error.status === 429);
});

test("an execution whose connection is lost is asked for again with the same key", async (t) => {
  const keys: unknown[] = [];
  const { s } = await sandboxAt(t, (request, response) => {
    keys.push(request.headers["idempotency-key"]);
    if (keys.length === 1) return void request.socket.destroy();
    return json(response, 200, OK);
  });
  assert.equal((await s.runScript("return 7")).result, 7);
  assert.equal(keys.length, 2);
  assert.ok(keys[0] && keys[0] === keys[1]);
});

test("a change whose connection is lost is not made twice, and reading is", async (t) => {
  const operations: string[] = [];
  const { s } = await sandboxAt(t, (request, response) => {
    const { operation } = JSON.parse(request.text) as { operation: string };
    operations.push(operation);
    if (operations.filter((one) => one === operation).length === 1) return void request.socket.destroy();
    return json(response, 200, envelope({ path: "a", content: "x" }));
  });
  await assert.rejects(s.files.write("a", "x"), (error) => error instanceof ServerBusy && error.kind === "unavailable");
  assert.equal(await s.files.read("a"), "x");
  assert.deepEqual(operations, ["write", "read", "read"]);
});

test("events that break off are resumed after the last one, each is delivered once, and omissions are reported", async (t) => {
  const after: unknown[] = [];
  const event = (seq: number, rest: object) => `id: ${seq}\ndata: ${JSON.stringify({ seq, time: "", ...rest })}\n\n`;
  const { s } = await sandboxAt(t, (request, response) => {
    if (request.method === "POST") return json(response, 202, { id: "e1", status: "queued" });
    after.push(request.headers["last-event-id"]);
    response.writeHead(200, { "content-type": "text/event-stream" });
    const log = (seq: number) => event(seq, { event: "log", level: "print", text: String(seq) });
    if (after.length === 1) {
      response.write(log(1) + log(2));
      return void setImmediate(() => request.socket.destroy());
    }
    return response.end(log(2) + log(3) + event(4, { event: "omitted" }) + event(5, { event: "end", document: OK }));
  });
  const logs: string[] = [];
  const result = await s.runScript("return 7", { onLog: (text) => logs.push(text) });
  assert.equal(result.result, 7);
  assert.deepEqual(logs, ["1", "2", "3"]);
  assert.deepEqual(after, ["0", "2"]);
  assert.equal(result.missed, true);
});

test("a call that is aborted cancels its execution, though its id had not come yet", async (t) => {
  const abort = new AbortController();
  const keys = new Set<unknown>();
  const { s, seen } = await sandboxAt(t, (request, response) => {
    if (request.method === "DELETE") return json(response, 200, { ...OK, status: "cancelled" });
    keys.add(request.headers["idempotency-key"]);
    // The first answer never comes; the second has the id.
    if (request.url?.includes("wait")) return abort.abort(new Error("enough"));
    return json(response, 202, { id: "e1", status: "running" });
  });
  await assert.rejects(s.runScript("while true do end", { signal: abort.signal }), /enough/);
  assert.equal(keys.size, 1);
  assert.equal(seen.at(-1), "DELETE /v1/executions/e1");
});

test("what a listener throws ends the execution, and is thrown", async (t) => {
  const { s, seen } = await sandboxAt(t, (request, response) => {
    if (request.method === "POST") return json(response, 202, { id: "e1", status: "queued" });
    if (request.method === "DELETE") return json(response, 200, { ...OK, status: "cancelled" });
    response.writeHead(200, { "content-type": "text/event-stream" });
    return void response.write(`data: ${JSON.stringify({ seq: 1, time: "", event: "log", text: "x" })}\n\n`);
  });
  const onLog = () => {
    throw new Error("no more");
  };
  await assert.rejects(s.runScript("print(1)", { onLog }), /no more/);
  assert.equal(seen.at(-1), "DELETE /v1/executions/e1");
});

test("a wrong token, a sandbox that is gone and an answer of something else have their names", async (t) => {
  const { s } = await sandboxAt(t, (request, response) => {
    const { path } = JSON.parse(request.text) as { path: string };
    if (path === "token") return json(response, 401, { kind: "unauthenticated", detail: "no such token" });
    if (path === "gone") return json(response, 410, { kind: "gone", detail: "it is gone" });
    if (path === "short") return response.writeHead(200).end("{");
    return response.writeHead(500).end("<html>");
  });
  const kinds = { token: "unauthenticated", gone: "gone", short: "internal", proxy: "internal" };
  for (const [path, kind] of Object.entries(kinds)) {
    await assert.rejects(s.files.write(path, "x"), (error) => {
      assert.ok(error instanceof SandboxError);
      assert.ok(!error.message.includes("secret"));
      assert.equal(error.kind, kind, path);
      assert.equal(error instanceof SandboxGone, path === "gone");
      return true;
    });
  }
});

test("what the content of an upload throws is thrown", async (t) => {
  const { s } = await sandboxAt(t, (_, response) =>
    json(response, 200, { path: "a", bytes_written: 1, created: true }),
  );
  async function* content() {
    yield new Uint8Array(10);
    throw new Error("source");
  }
  await assert.rejects(s.files.write("a", content()), /source/);
});

test("a server that is gone is named", async () => {
  // A port that is never assigned: one that was just closed may be another test's by now.
  const created = Sandbox.create({ server: "http://127.0.0.1:2" });
  await assert.rejects(created, (error) => {
    assert.ok(error instanceof ServerBusy && error.retryable);
    assert.match(error.message, /no connection to http:\/\/127\.0\.0\.1:2: ECONNREFUSED/);
    return true;
  });
});

test("a server that ends in the middle of calls ends them", async (t) => {
  let waiting = 0;
  const { s, seen, end } = await sandboxAt(t, () => {
    waiting += 1;
    if (waiting === 2) end();
  });
  const calls = await Promise.allSettled([s.runScript("return 1"), s.files.write("a", "x")]);
  for (const each of calls) assert.ok(each.status === "rejected" && each.reason instanceof ServerBusy);
  assert.equal(seen.length, 3);
});

test("a server that the environment names is used, unless something of this machine is named", async (t) => {
  t.after(() => delete process.env.SANDBOXCTL_SERVER);
  process.env.SANDBOXCTL_SERVER = "nonsense";
  await assert.rejects(Sandbox.create(), /server: "nonsense" is not a URL/);
  await assert.rejects(Sandbox.create({ binary: "/nonexistent" }), /does not exist/);
});

test("options that a server cannot have are refused", async () => {
  const server = "http://127.0.0.1:1";
  await assert.rejects(Sandbox.create({ server, ioDir: "out" }), { kind: "usage" });
  await assert.rejects(Sandbox.create({ server, engine: "docker" }), { kind: "usage" });
  await assert.rejects(Sandbox.create({ server: "unix:" }), { kind: "config" });
  await assert.rejects(Sandbox.create({ server: "unix:/nonexistent" }), { kind: "unavailable", message: /ENOENT/ });
  await assert.rejects(Sandbox.create({ server: "nonsense" }), { kind: "config" });
  await assert.rejects(Sandbox.create({ server, token: "a b" }), { kind: "config" });
  await assert.rejects(Sandbox.create({ token: "t" }), { kind: "usage" });
});

test("a certificate that is not trusted is an error that names the variable, at once", async (t) => {
  const place = mkdtempSync(join(tmpdir(), "sandboxctl-tls-"));
  t.after(() => rmSync(place, { recursive: true }));
  const [key, cert] = [join(place, "key.pem"), join(place, "cert.pem")];
  const made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test";
  const named = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert];
  execFileSync("openssl", [...made.split(" "), ...named], { stdio: "ignore" });
  let connections = 0;
  const server = createTlsServer({ key: readFileSync(key), cert: readFileSync(cert) });
  server.on("connection", () => (connections += 1)).listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  t.after(() => server.close());
  const url = `https://127.0.0.1:${(server.address() as AddressInfo).port}`;
  await assert.rejects(Sandbox.create({ server: url }), (error: SandboxError) => {
    assert.match(error.message, /is not trusted: DEPTH_ZERO_SELF_SIGNED_CERT/);
    assert.match(error.hint ?? "", /NODE_EXTRA_CA_CERTS/);
    assert.equal(error.retryable, false);
    return true;
  });
  assert.equal(connections, 1);
});
