/** Processes, terminals and the list of sandboxes, at a server that answers as the test says. */
import assert from "node:assert/strict";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { type TestContext, test } from "node:test";
import { NotFound, type ProcessEvent, Sandbox, SandboxError, SandboxGone, ServerBusy } from "../src/index.js";

const VIEW = {
  id: 3,
  pid: 17,
  generation: 2,
  command: "serve",
  tag: "web",
  state: "running",
  pty: false,
  started_at: "2026-01-01T00:00:00Z",
  exited_at: null,
  exit_code: null,
  signal: null,
  stopped: null,
  out_of_memory: null,
  cpu_ms: null,
  peak_memory_bytes: null,
  first_event: 1,
  last_event: 1,
};
const EXITED = { ...VIEW, state: "left", exit_code: 3 };
const PROCESSES = "POST /v1/sandboxes/s/processes";
const EXECUTIONS = "POST /v1/sandboxes/s/executions?wait=60";
const PROCESS = "/v1/sandboxes/s/processes/3";
const EVENTS = `GET ${PROCESS}/events?generation=2&after=0&mode=lossy`;

type Asked = { headers: IncomingMessage["headers"]; body: Buffer };
/** An answer with a status and JSON, events whose connection breaks off after them, or no answer at all. */
type Answer = [number, unknown?] | { events: object[] } | "lost";

/** A server with answers by method and path: several are given one after another, and the last one again. */
async function serverOf(t: TestContext, answers: Record<string, Answer[]>) {
  const asked = new Map<string, Asked[]>();
  const server = createServer((request, response) => {
    const pieces: Buffer[] = [];
    request
      .on("data", (piece: Buffer) => pieces.push(piece))
      .on("end", () => {
        const what = `${request.method} ${request.url}`;
        const before = asked.get(what) ?? [];
        asked.set(what, [...before, { headers: request.headers, body: Buffer.concat(pieces) }]);
        answer(request, response, answers[what]?.[before.length] ?? answers[what]?.at(-1) ?? [599]);
      });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  answers["POST /v1/sandboxes"] ??= [[201, { id: "s" }]];
  answers["DELETE /v1/sandboxes/s"] ??= [[204]];
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return { url, bodies: (what: string) => (asked.get(what) ?? []).map(({ body }) => body.toString()), asked };
}

function answer(request: IncomingMessage, response: ServerResponse, given: Answer): void {
  if (given === "lost") return void request.socket.destroy();
  if (Array.isArray(given)) {
    const [status, body] = given;
    return void response
      .writeHead(status, status === 409 ? { "retry-after": "0" } : {})
      .end(body === undefined ? undefined : JSON.stringify(body));
  }
  response.writeHead(200, { "content-type": "text/event-stream" });
  response.write(given.events.map((event) => `data: ${JSON.stringify({ time: "", ...event })}\n\n`).join(""), () =>
    setImmediate(() => request.socket.destroy()),
  );
}

const output = (seq: number, text: string, more = {}) => ({ seq, event: "output", stream: "stdout", text, ...more });
const inFlight: Answer = [409, { kind: "in_flight", detail: "it is in flight" }];

test("a process is started once, and its request has what was asked for", async (t) => {
  const { url, asked, bodies } = await serverOf(t, {
    [PROCESSES]: ["lost", inFlight, [201, VIEW]],
    [EXECUTIONS]: [[422, { kind: "invalid_request", detail: "it is refused" }]],
  });
  const s = await Sandbox.create({ server: url });
  const options = { args: ["-p"], env: { camelCase: "1" }, stdin: true, timeoutMs: 2000, tag: "web", merge: true };
  const process = await s.commands.run("serve", { ...options, background: true });
  assert.deepEqual([process.id, process.pid, process.tag], [3, 17, "web"]);
  const keys = asked.get(PROCESSES)?.map(({ headers }) => headers["idempotency-key"]);
  assert.deepEqual([keys?.length, new Set(keys).size], [3, 1]);
  assert.deepEqual(JSON.parse(bodies(PROCESSES)[2] ?? ""), {
    command: { program: "serve", args: ["-p"], env: { camelCase: "1" } },
    stdin: true,
    timeout_ms: 2000,
    tag: "web",
    merge: true,
  });
  await s.commands.run("cat", { stdin: "in", secrets: { B: "2" }, background: true });
  assert.deepEqual(JSON.parse(bodies(PROCESSES)[3] ?? ""), {
    command: { shell: "cat", stdin: "in" },
    secrets: { B: "2" },
  });
  await s.commands.run("cat", { stopSignal: "SIGINT", stopTimeoutMs: 0, background: true });
  assert.deepEqual(JSON.parse(bodies(PROCESSES)[4] ?? ""), {
    command: { shell: "cat" },
    stop_signal: "INT",
    stop_timeout_ms: 0,
  });
  const own = { stopSignal: 2, stopTimeoutMs: 1500, timeoutMs: 3000, limits: { outputBytes: 5 } };
  await assert.rejects(s.commands.run("x", own), SandboxError);
  assert.deepEqual(JSON.parse(bodies(EXECUTIONS)[0] ?? ""), {
    command: { shell: "x" },
    limits: { output_bytes: 5, timeout_ms: 3000, stop_timeout_ms: 1500 },
    stop_signal: "INT",
  });
  // @ts-expect-error: no option of a process
  await assert.rejects(s.commands.run("cat", { background: true, check: true }), /no option 'check'/);
  // @ts-expect-error: the name of another product
  await assert.rejects(s.commands.run("cat", { detach: true }), /it is 'background'/);
  await s.close();
  await assert.rejects(process.getInfo(), SandboxGone);
});

test("events of a process are resumed, and its text is of whole characters", async (t) => {
  const { url, asked } = await serverOf(t, {
    [PROCESSES]: [[201, VIEW]],
    [EVENTS]: [
      { events: [{ seq: 1, event: "start" }, output(2, "4pw=", { encoding: "base64" })] },
      {
        events: [
          output(2, "x"),
          output(3, "k+I=", { encoding: "base64" }),
          { seq: 7, event: "omitted" },
          { seq: 8, event: "later" },
          output(9, "b"),
          { seq: 10, event: "exit", exit_code: 3 },
          { seq: 11, event: "end", exit_code: 3, document: EXITED },
        ],
      },
    ],
    [`GET ${PROCESS}/events?generation=2&after=now&mode=wait`]: [{ events: [output(12, "c")] }],
  });
  const s = await Sandbox.create({ server: url });
  const process = await s.commands.run("serve", { background: true });
  const found: ProcessEvent[] = [];
  for await (const event of process) found.push(event);
  const types = found.map(({ type }) => type);
  assert.deepEqual(types, ["start", "stdout", "stdout", "omitted", "stdout", "exit", "end"]);
  assert.deepEqual(
    found.map(({ text }) => text),
    ["", "", "\u2713", "\ufffd", "b", "", ""],
  );
  assert.equal(Buffer.concat(found.map(({ bytes }) => bytes)).toString("hex"), "e29c93e262");
  assert.deepEqual(
    found.slice(-2).map(({ exitCode }) => exitCode),
    [3, 3],
  );
  assert.deepEqual(
    asked.get(EVENTS)?.map(({ headers }) => headers["last-event-id"]),
    ["0", "2"],
  );
  for await (const { text } of process.events({ after: "now", mode: "wait" })) {
    assert.equal(text, "c");
    break;
  }
  const [now] = asked.get(`GET ${PROCESS}/events?generation=2&after=now&mode=wait`) ?? [];
  assert.equal(now?.headers["last-event-id"], undefined);
});

test("a process is waited for, written to, signalled and found", async (t) => {
  const ended: Answer = [409, { kind: "process_ended", detail: "it has ended" }];
  const of = (what: string) => `POST ${PROCESS}/${what}?generation=2`;
  const { url, bodies } = await serverOf(t, {
    [PROCESSES]: [[201, VIEW]],
    [`GET ${PROCESS}?generation=2`]: [[200, VIEW]],
    [`GET ${PROCESS}?generation=2&wait=60`]: [[200, VIEW], "lost", [200, EXITED]],
    [of("stdin")]: [[204], [204], "lost"],
    [of("stdin/close")]: ["lost", [204]],
    [of("signal")]: [[204], [410, { kind: "gone", detail: "gone" }], ended],
    [of("resize")]: [[204]],
    [`DELETE ${PROCESS}?generation=2`]: [[202, VIEW]],
    [`GET ${PROCESS}`]: [[200, VIEW]],
    "GET /v1/sandboxes/s/processes": [[200, { processes: [VIEW, { ...EXITED, id: 2 }] }]],
    "GET /v1/sandboxes/s/processes?tag=web": [[200, { processes: [VIEW] }]],
    "GET /v1/sandboxes/s/processes?tag=a%20b": [[200, { processes: [] }]],
    "GET /v1/sandboxes/s/processes/4": [[404, { kind: "not_found", detail: "there is none" }]],
  });
  const s = await Sandbox.create({ server: url });
  const process = await s.commands.run("serve", { background: true });
  assert.equal((await process.getInfo()).state, "running");
  assert.equal((await process.wait()).exitCode, 3);
  await assert.rejects(process.wait({ check: true }), { kind: "exit", message: "the process exited with 3" });
  await process.sendStdin("x".repeat(70_000));
  await assert.rejects(process.sendStdin(new Uint8Array(4)), ServerBusy);
  // What a process has read is not sent again.
  assert.deepEqual(
    bodies(of("stdin")).map((body) => body.length),
    [65_536, 4_464, 4],
  );
  await process.closeStdin();
  await process.signal("SIGINT", "foreground");
  await assert.rejects(process.signal(15), SandboxGone);
  await process.kill();
  assert.deepEqual(
    bodies(of("signal"))
      .slice(0, 3)
      .map((body) => Object.values(JSON.parse(body))),
    [
      ["INT", "foreground"],
      ["TERM", "group"],
      ["KILL", "tree"],
    ],
  );
  await process.resize(120, 40);
  await process.stop();
  assert.deepEqual(
    (await s.commands.list()).map(({ id }) => id),
    [3, 2],
  );
  for (const which of [3, "web"]) assert.equal((await s.commands.connect(which)).id, 3);
  for (const which of [4, "a b"]) await assert.rejects(s.commands.connect(which), NotFound);
});

test("a terminal hands its output on as it comes", async (t) => {
  const end = { seq: 3, event: "end", document: EXITED };
  const { url, bodies } = await serverOf(t, {
    [PROCESSES]: [[201, { ...VIEW, pty: true }]],
    [EVENTS]: [{ events: [output(1, "$ ")] }, { events: [output(2, "bye"), end] }],
    [`GET ${PROCESS}?generation=2&wait=60`]: [[200, EXITED]],
    [`POST ${PROCESS}/stdin?generation=2`]: [[204]],
  });
  const s = await Sandbox.create({ server: url });
  let heard = "";
  let arrive = () => {};
  const arrived = new Promise<void>((resolve) => {
    arrive = resolve;
  });
  const onData = (data: Uint8Array) => {
    heard += Buffer.from(data).toString();
    arrive();
  };
  const terminal = await s.pty.create({ cols: 100, rows: 30, onData, env: { A: "1" } });
  await arrived;
  await terminal.send("exit\n");
  assert.equal((await terminal.wait()).exitCode, 3);
  assert.equal(heard, "$ bye");
  const request = JSON.parse(bodies(PROCESSES)[0] ?? "");
  assert.deepEqual([request.pty, request.stdin], [{ cols: 100, rows: 30 }, true]);
  assert.match(request.command.shell, /bash/);
  const refuse = () => {
    throw new RangeError("refused");
  };
  await assert.rejects((await s.pty.create({ onData: refuse, command: "top", args: [] })).wait(), RangeError);
  // @ts-expect-error: the name of another product
  await assert.rejects(s.pty.create({ size: 1 }), /it is 'cols'/);
});

test("a start that is aborted is made up for: what it started is stopped", async (t) => {
  const abort = new AbortController();
  const answers: Record<string, Answer[]> = {
    [PROCESSES]: ["lost", [201, VIEW]],
    [`DELETE ${PROCESS}`]: [[202, VIEW]],
  };
  const { url, bodies } = await serverOf(t, answers);
  const s = await Sandbox.create({ server: url });
  const started = s.commands.run("serve", { background: true, signal: abort.signal });
  while (bodies(PROCESSES).length === 0) await new Promise((resolve) => setImmediate(resolve));
  abort.abort(new RangeError("enough"));
  await assert.rejects(started, /enough/);
  assert.equal(bodies(`DELETE ${PROCESS}`).length, 1);
});

test("sandboxes are listed, found, ended and changed", async (t) => {
  const times = { created_at: "1", last_used_at: "2", expires_at: "3", idle_at: null };
  const metadata = { teamName: "b" };
  const view = { id: "s", name: "n", status: "ready", generation: 1, processes: 2, metadata, ...times };
  const base = "GET /v1/sandboxes?metadata.a=b%26c&metadata.n=1&status=ready";
  const page = (sandboxes: unknown[], next_cursor: string | null): Answer => [200, { sandboxes, next_cursor }];
  const { url, bodies } = await serverOf(t, {
    [base]: [page([view], "x/y")],
    [`${base}&cursor=x%2Fy`]: [page([{ ...view, id: "t" }], null)],
    "GET /v1/sandboxes/s": [[200, view]],
    "GET /v1/sandboxes/n": [[404, { kind: "not_found", detail: "there is none" }]],
    "GET /v1/sandboxes?name=n": [page([view], null)],
    "GET /v1/sandboxes?name=%2F": [page([], null)],
    "PATCH /v1/sandboxes/s": [[200, view]],
    "POST /v1/sandboxes/s/pause": [[200, { ...view, status: "paused" }]],
    "POST /v1/sandboxes/s/resume": [[200, view]],
    "GET /v1/sandboxes": [page([], "a")],
    "GET /v1/sandboxes?cursor=a": [page([], "a")],
  });
  const at = { server: url };
  const found: unknown[] = [];
  for await (const info of Sandbox.list({ ...at, metadata: { a: "b&c", n: 1 }, status: "ready" })) {
    found.push([info.id, info.processes, info.metadata]);
  }
  assert.deepEqual(found, [
    ["s", 2, metadata],
    ["t", 2, metadata],
  ]);
  const s = await Sandbox.connect("n", at);
  assert.deepEqual([s.id, (await s.getInfo()).name], ["s", "n"]);
  assert.equal((await s.setTimeout(1500)).expiresAt, "3");
  assert.deepEqual(bodies("PATCH /v1/sandboxes/s"), ['{"ttl_ms":1500}']);
  assert.deepEqual([(await s.pause()).status, (await s.resume()).status], ["paused", "ready"]);
  const byName = [
    Sandbox.getInfo("n", at),
    Sandbox.setTimeout("n", 2500, at),
    Sandbox.pause("n", at),
    Sandbox.resume("n", at),
  ];
  const statuses = (await Promise.all(byName)).map(({ status }) => status);
  assert.deepEqual(statuses, ["ready", "ready", "paused", "ready"]);
  await assert.rejects(Sandbox.connect("/", at), NotFound);
  assert.deepEqual([await Sandbox.kill("/", at), await Sandbox.kill("s", at)], [false, true]);
  await assert.rejects(async () => {
    for await (const _ of Sandbox.list(at));
  }, /the same again/);
  // @ts-expect-error: another name
  await assert.rejects(Sandbox.create({ envVars: {} }), /it is 'env'/);
});
