/**
 * A server that answers anything: what is malformed is a `SandboxError`, and nothing else is thrown.
 * Each route of the table `hostile.json` is answered wrongly in every way.
 */
import assert from "node:assert/strict";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { after, before, test } from "node:test";
import { inspect } from "node:util";
import { gzipSync } from "node:zlib";
import { Sandbox, SandboxError } from "../src/index.js";
import { type Call, call, rows } from "./table.js";

interface Case extends Call {
  of: string;
  answer: Record<string, unknown>;
  reads: string[];
}

const CASES = rows<Case>("hostile");
const documentOf = (name: string) => CASES.find((each) => each.of === "document" && each.call === name)?.answer;
const SCRIPT = documentOf("run_script");
const COMMAND = documentOf("commands.run");

/** What is sent, or what sends it. A `reply` leaves its connection to be used again. */
type Answer = { reply: Buffer } | { last: Buffer } | ((socket: Socket) => void);

const reply = (body: string | Buffer, status = "200 OK", headers = ""): Answer => {
  const head = `HTTP/1.1 ${status}\r\nContent-Length: ${Buffer.byteLength(body)}\r\n${headers}\r\n`;
  return { reply: Buffer.concat([Buffer.from(head, "latin1"), Buffer.from(body)]) };
};
const last = (text: string | Buffer): Answer => ({ last: Buffer.from(text) });
const cut = (body: string, length: number) =>
  last(`HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: ${length}\r\n\r\n${body}`);
const json = (value: unknown) => JSON.stringify(value);
const STREAM = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
const event = (data: string) => `data: ${data}\n\n`;
const END = event(json({ seq: 9, time: "", event: "end" }));
const PROCESS = CASES.find((each) => each.of === "process")?.answer;
const PROCESS_END = event(json({ seq: 9, time: "", event: "end", document: PROCESS }));
/** The routes of events, and their last one. */
const EVENTS = new Map([
  ["log", ["events", END]],
  ["output", ["events", END]],
  ["process_output", ["process_events", PROCESS_END]],
  ["change", ["changes", END]],
] as const);

/** What never ends by itself. */
function flood(head: string, piece: string): Answer {
  return (socket) => {
    const send = () => {
      while (socket.writable && socket.write(piece)) {}
    };
    socket.on("drain", send);
    socket.write(head);
    send();
  };
}

const ROUTES: [RegExp, string][] = [
  [/^POST \/v1\/sandboxes$/, "sandbox"],
  [/^DELETE \/v1\/sandboxes\/[\w-]+$/, "removal"],
  [/^POST \/v1\/sandboxes\/[\w-]+\/operations$/, "operation"],
  [/^POST \/v1\/sandboxes\/[\w-]+\/executions(\?wait=60)?$/, "execution"],
  [/^GET \/v1\/executions\/[\w-]+\?wait=60$/, "document"],
  [/^GET \/v1\/executions\/[\w-]+\/events$/, "events"],
  [/^DELETE \/v1\/executions\/[\w-]+$/, "cancel"],
  [/^PUT \/v1\/sandboxes\/[\w-]+\/files\/a$/, "written"],
  [/^GET \/v1\/sandboxes\/[\w-]+\/files\/a$/, "content"],
  [/^GET \/v1\/sandboxes\/[\w-]+$/, "info"],
  [/^POST \/v1\/sandboxes\/[\w-]+\/processes$/, "process"],
  [/^GET \/v1\/sandboxes\/[\w-]+\/processes$/, "processes"],
  [/^GET \/v1\/sandboxes\/[\w-]+\/processes\/3\/events\?generation=2&after=0&mode=lossy$/, "process_events"],
  [/^GET \/v1\/sandboxes\/[\w-]+\/watch\?path=\.&recursive=false$/, "changes"],
];

/** What each route answers, if nothing else is asked of it. */
const USUAL: Record<string, Answer> = {
  sandbox: reply(json({ id: "s" })),
  removal: reply("{}"),
  execution: reply(json({ id: "e", status: "queued" })),
  operation: reply(json({ success: true, data: { path: "/io/a", content: "x" }, error: null })),
  events: last(STREAM + END),
  cancel: reply("{}"),
  written: reply(json({ path: "/io/a", bytes_written: 1, created: true })),
  content: reply("content"),
  info: reply(json({ id: "s" })),
  process: reply(json(PROCESS)),
  processes: reply(json({ processes: [] })),
  process_events: last(STREAM + PROCESS_END),
  changes: last(STREAM + END),
};

/** The answers of each server, by the first part of its URL, and requests that have no route. */
const servers = new Map<string, Record<string, Answer>>();
const strays: string[] = [];
let address = "";

/** A server with these answers. */
function serverOf(answers: Record<string, Answer>, document: unknown = SCRIPT): string {
  const name = String(servers.size);
  servers.set(name, { ...USUAL, document: reply(json(document)), ...answers });
  return `${address}/${name}`;
}

const sockets = new Set<Socket>();
const listener = createServer((socket) => {
  let received = Buffer.alloc(0);
  sockets.add(socket);
  socket.on("error", () => {}).on("close", () => sockets.delete(socket));
  socket.on("data", (piece) => {
    received = Buffer.concat([received, piece as Buffer]);
    for (;;) {
      const end = received.indexOf("\r\n\r\n");
      if (end < 0) return;
      const head = received.subarray(0, end).toString("latin1");
      const length = /^content-length: (\d+)/im.exec(head)?.[1];
      const chunked = /^transfer-encoding: chunked/im.test(head);
      const whole = chunked ? received.indexOf("0\r\n\r\n", end) + 5 : end + 4 + Number(length ?? 0);
      if (received.length < whole || (chunked && whole === 4)) return;
      received = received.subarray(whole);
      const [, method, name, path] = /^(\w+) \/(\d+)(\S*)/.exec(head) ?? [];
      const what = `${method} ${path}`;
      const route = ROUTES.find(([pattern]) => pattern.test(what))?.[1];
      if (!route) strays.push(what);
      const answer = servers.get(name ?? "")?.[route ?? "cancel"] ?? last("");
      if (typeof answer === "function") answer(socket);
      else if ("reply" in answer) socket.write(answer.reply);
      else socket.end(answer.last);
    }
  });
});

before(async () => {
  await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
  address = `http://127.0.0.1:${(listener.address() as AddressInfo).port}`;
});
after(() => {
  listener.close();
  for (const socket of sockets) socket.destroy();
  assert.deepEqual(strays, []);
});

/** Makes the call of a case at a server, and gives its value or its `SandboxError`: whatever else is thrown fails. */
async function outcome(server: string, step: Case): Promise<unknown> {
  const listening = { log: { onLog: () => {} }, output: { onStdout: () => {} } }[step.of] ?? {};
  try {
    const s = await Sandbox.create({ server });
    return step.call === "create" ? undefined : await call(s, step, listening);
  } catch (error) {
    assert.ok(error instanceof SandboxError, `${step.call}: ${error}\n${(error as Error).stack}`);
    assert.equal(typeof error.kind, "string");
    assert.equal(typeof error.message, "string");
    assert.ok(error.hint === undefined || typeof error.hint === "string");
    return error;
  }
}

/** The answers of a server that says this where the case belongs. */
const saying = (step: Case, body: string): Record<string, Answer> => {
  const [route, end] = EVENTS.get(step.of as "log") ?? [];
  return route ? { [route]: last(STREAM + event(body) + end) } : { [step.of]: reply(body) };
};

const serverFor = (step: Case, answers: Record<string, Answer>) =>
  serverOf(answers, step.call === "commands.run" ? COMMAND : SCRIPT);

const DEEP = 100_000;
const VALUES: unknown[] = [null, true, -1, 1.5, "x", [], {}];
/** What only a text can have: an invalid number, half of a character, more digits and brackets than one reads. */
const TEXTS = [
  "1e999",
  "NaN",
  '"\\ud800"',
  "9".repeat(5_000),
  `"${"x".repeat(100_000)}"`,
  "[".repeat(500) + "]".repeat(500),
  "[".repeat(DEEP) + "]".repeat(DEEP),
];
const MARK = "\u25a0";

type Place = (string | number)[];

/** The places of all members, and of the first item of each list. */
function* places(value: unknown): Generator<Place> {
  if (typeof value !== "object" || value === null) return;
  for (const [name, member] of Array.isArray(value) ? [...value.entries()].slice(0, 1) : Object.entries(value)) {
    yield [name];
    for (const rest of places(member)) yield [name, ...rest];
  }
}

/** The answer with a change at a place. */
function changed(answer: object, place: Place, change: (container: Record<string, unknown>, name: string) => void) {
  const copy = structuredClone(answer) as Record<string, unknown>;
  let container = copy;
  for (const name of place.slice(0, -1)) container = container[name] as Record<string, unknown>;
  change(container, String(place.at(-1)));
  return json(copy);
}

const kindOf = (value: unknown) =>
  value === null ? "null" : Array.isArray(value) ? "list" : Number.isInteger(value) ? "integer" : typeof value;

/** Answers with a wrong member: which, the answer, and whether it must be an error. */
function* wrong({ answer, reads }: Case): Generator<[string, string, boolean]> {
  for (const place of places(answer)) {
    const name = place.join(".");
    const mayMiss = reads.includes(`${name}?`);
    const isRead = mayMiss || reads.includes(name);
    const value = place.reduce<unknown>((it, part) => (it as Record<string, unknown>)[part], answer);
    const without = changed(answer, place, (it, at) => (Array.isArray(it) ? it.shift() : delete it[at]));
    yield [`no ${name}`, without, isRead && !mayMiss && typeof place.at(-1) === "string"];
    for (const other of isRead ? VALUES : [null, "x"]) {
      const body = changed(answer, place, (it, at) => {
        it[at] = other;
      });
      const fails = isRead && kindOf(other) !== kindOf(value) && !(mayMiss && other === null);
      yield [`${name} is ${json(other)}`, body, fails];
    }
    const marked = changed(answer, place, (it, at) => {
      it[at] = MARK;
    });
    for (const text of isRead ? TEXTS : TEXTS.slice(-1)) {
      yield [`${name} is ${text.slice(0, 20)}`, marked.replace(json(MARK), () => text), false];
    }
  }
}

/** Does it for all, some at a time. */
async function each<T>(all: Iterable<T>, work: (item: T) => Promise<void>): Promise<void> {
  const rest = all[Symbol.iterator]();
  const worker = async () => {
    for (let next = rest.next(); !next.done; next = rest.next()) await work(next.value);
  };
  await Promise.all(Array.from({ length: 16 }, worker));
}

for (const step of CASES) {
  test(`an answer with a wrong member is a SandboxError: ${step.call}, ${step.of}`, async () => {
    const right = await outcome(serverFor(step, saying(step, json(step.answer))), step);
    assert.ok(!(right instanceof SandboxError) || step.answer.success === false, String(right));
    await each(wrong(step), async ([how, body, fails]) => {
      const given = await outcome(serverFor(step, saying(step, body)), step);
      assert.ok(given instanceof SandboxError || !fails, `${how}: ${inspect(given)}`);
    });
  });
}

/** Answers in whose place nothing of the kind can be. */
function faults(body: string): Record<string, Answer> {
  const refusals = ["kind", "detail", "hint"].flatMap((name) =>
    VALUES.map((value) => {
      const problem = { kind: "policy", detail: "no", hint: "h", [name]: value };
      return [`a refusal whose ${name} is ${json(value)}`, reply(json(problem), "400 Bad Request")];
    }),
  );
  return {
    nothing: last(""),
    "no HTTP": last("\0\xff\r\n\r\n"),
    empty: reply(""),
    "no content": last("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"),
    "cut in the middle": cut(body.slice(0, body.length / 2), Buffer.byteLength(body)),
    "cut and complete": reply(body.slice(0, body.length / 2)),
    "of a negative length": cut(body, -1),
    "cut in its head": last("HTTP/1.1 200"),
    "no UTF-8": reply(Buffer.from([0x22, 0xff, 0x22])),
    "UTF-16": reply(Buffer.from(body, "utf16le")),
    null: reply("null"),
    "a list": reply("[]"),
    "a text": reply('"x"'),
    "a number": reply("1"),
    nested: reply("[".repeat(DEEP)),
    "two answers": reply(body + body),
    compressed: reply(gzipSync(body), "200 OK", "Content-Encoding: gzip\r\n"),
    "badly compressed": reply(body, "200 OK", "Content-Encoding: br\r\n"),
    "endless headers": flood("HTTP/1.1 200 OK\r\n", "X-Y: z\r\n".repeat(1000)),
    "strange headers": reply(body, "200 OK", "Set-Cookie: \xff=\x01; Domain=;;\r\nRetry-After: \xb2\r\n"),
    elsewhere: reply("", "302 Found", "Location: http://[::1/../x\r\n"),
    switched: last("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
    "a refusal": reply(json({ kind: "policy", detail: "no" }), "403 Forbidden"),
    "a refusal for now": reply("x", "429 Too Many Requests", "Retry-After: 0\r\n"),
    "a refusal for ever": reply("x", "503 Service Unavailable", "Retry-After: 999999999\r\n"),
    "an endless refusal": flood("HTTP/1.1 500 Oh\r\nConnection: close\r\n\r\n", "x".repeat(65536)),
    ...Object.fromEntries(refusals),
  };
}

for (const step of new Map(
  CASES.filter((each) => each.answer.success !== false && each.of !== "output").map((each) => [each.of, each]),
).values()) {
  test(`an invalid answer is a SandboxError: ${step.of}`, async () => {
    const [route, end] = EVENTS.get(step.of as "log") ?? [];
    const body = route ? event(json(step.answer)) + end : json(step.answer);
    await each(Object.entries(faults(body)), async ([how, answer]) => {
      const server = serverFor(step, { ...saying(step, json(step.answer)), [route ?? step.of]: answer });
      const given = await outcome(server, step);
      // Of events only the last is missed; and headers that mean nothing are nothing.
      if (!route && how !== "strange headers") assert.ok(given instanceof SandboxError, `${how}: ${inspect(given)}`);
    });
  });
}

const RUN = { call: "run_script", with: { script: "return 1" }, answer: {}, reads: [] };

test("an answer, and an event, of more than their bounds is a SandboxError", async () => {
  const READ = { call: "files.read", with: { path: "a" }, of: "operation", answer: {}, reads: [] };
  const endless = flood("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", " ".repeat(1 << 20));
  const read = await outcome(serverOf({ operation: endless }), READ);
  assert.match(String((read as Error).message), /unexpected answer: it is too long/);
  for (const piece of [`data: ${"x".repeat(65536)}\n`, "data:\n".repeat(20_000), "x".repeat(65536)]) {
    const given = await outcome(serverOf({ events: flood(STREAM, piece) }), { ...RUN, of: "log" });
    assert.match(String((given as Error).message), /unexpected answer: an event is too long/);
  }
});

test("content that is cut or compressed is a SandboxError, and never a part", async () => {
  const READ = { call: "files.read_stream", with: { path: "a" }, of: "content", answer: {}, reads: [] };
  assert.deepEqual(await outcome(serverOf({}), READ), new Uint8Array(Buffer.from("content")));
  await each(Object.entries(faults("x".repeat(1000))), async ([how, answer]) => {
    const given = await outcome(serverOf({ content: answer }), READ);
    assert.ok(given instanceof SandboxError || given instanceof Uint8Array, how);
    if (/^(cut in|compressed|badly)/.test(how)) assert.ok(given instanceof SandboxError, how);
  });
});

test("an invalid id is never in a URL", async () => {
  const ids = ["../../../x?y#z", "..", ".", "", "a/b", "a b", "%2e%2e", "a\n", "a\0", "\x7f", "é", "x".repeat(100_000)];
  for (const of of ["sandbox", "execution"]) {
    await each(ids, async (id) => {
      const given = await outcome(serverOf({ [of]: reply(json({ id, status: "queued" })) }), { ...RUN, of });
      assert.ok(given instanceof SandboxError, inspect(id));
    });
  }
});

test("a server that always says running is asked after ever longer pauses", async (t) => {
  const pauses: number[] = [];
  const { setTimeout: real } = globalThis;
  // It answers at once, whatever else this machine does, and its pauses take no time.
  t.mock.method(performance, "now", () => 0);
  t.mock.method(globalThis, "setTimeout", ((work: () => void, ms: number, ...more: []) => {
    // Others have longer times, or arguments.
    if (ms > 5_000 || more.length > 0) return real(work, ms, ...more);
    pauses.push(ms);
    return real(work, 0);
  }) as typeof setTimeout);
  let polls = 0;
  const running = reply(json({ id: "e", status: "running" }));
  const answers = {
    get document() {
      polls += 1;
      return polls <= 1_100 ? running : reply(json(SCRIPT));
    },
  };
  const name = String(servers.size);
  servers.set(name, Object.assign(Object.create(answers), USUAL));
  const s = await Sandbox.create({ server: `${address}/${name}` });
  assert.equal((await s.runScript("return 1")).status, "ok");
  assert.ok(pauses.length >= 1_100);
  assert.ok(pauses.filter((ms) => ms >= 2_500).length >= 1_090);
});
