import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fromBase64 } from "../src/core/answers.js";
import { encoded, pathSegment, toContent } from "../src/core/bytes.js";
import {
  errorOf,
  LimitExceeded,
  lineError,
  NotFound,
  PolicyDenied,
  problemError,
  SandboxError,
  SandboxGone,
  ServerBusy,
  Timeout,
} from "../src/core/errors.js";
import { commandRequest, commandResult, failureOf, outputReader, scriptRequest } from "../src/core/executions.js";
import { OPERATIONS } from "../src/core/generated.js";
import { Limiter } from "../src/core/limiter.js";
import { LineSplitter } from "../src/core/lines.js";
import { camel, snake } from "../src/core/names.js";
import { EventParser } from "../src/core/sse.js";
import { VERSION } from "../src/core/version.js";
import { Files } from "../src/files.js";
import type { Transport } from "../src/transport/transport.js";

const INVALID = new Uint8Array([0x66, 0xff]);

test("the version is that of the package", () => {
  // The compiled test is one directory deeper than its source.
  const manifest = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8"));
  assert.equal(VERSION, manifest.version);
});

test("hints of the command line are in the words of the package", () => {
  for (const [hint, words] of [
    [
      "--image (--rootfs or --image-archive on x) selects an image with programs",
      "`image` selects an image with programs",
    ],
    ["--timeout raises the limit", "`timeoutMs` raises the limit"],
    ["SANDBOXCTL_A_B, or a.b in ~/.config/sandboxctl/config.toml, raises the limit", "`limits` raises the limit"],
    ['start it with `"stdin": true`', "start it with `stdin: true`"],
    ["create another one", "create another one"],
  ]) {
    assert.equal(errorOf({ kind: "limit", message: "", hint }).hint, words);
  }
});

test("bytes that are not UTF-8 are sent as base64, and others as text", () => {
  assert.equal(toContent("a"), "a");
  assert.equal(toContent(new Uint8Array([0x61])), "a");
  assert.deepEqual(toContent(INVALID), { b64: "Zv8=" });
});

test("a path is one segment of a URL, whose dots no parser resolves", () => {
  assert.equal(pathSegment("/io/ä b"), "%2Fio%2F%C3%A4%20b");
  assert.equal(pathSegment(INVALID), "f%FF");
  for (const path of [".", "..", "../x", "a/../../b", "%2e%2e"]) {
    const url = new URL(`http://example.org/files/${pathSegment(path)}`);
    assert.ok(url.pathname.startsWith("/files/") && url.pathname.length > 7, url.href);
  }
});

test("a kind has one class, and says whether a retry may succeed", () => {
  const classes = [
    ["not_found", NotFound, false],
    ["timeout", Timeout, false],
    ["write_limit", LimitExceeded, false],
    ["out_of_memory", LimitExceeded, false],
    ["path_escape", PolicyDenied, false],
    ["network_refused", PolicyDenied, false],
    ["gone", SandboxGone, false],
    ["agent_lost", SandboxGone, true],
    ["busy", ServerBusy, true],
    ["rate_limited", ServerBusy, true],
    ["symlink", SandboxError, false],
  ] as const;
  for (const [kind, type, retryable] of classes) {
    const error = errorOf({ kind, message: "m" });
    assert.equal(error.constructor, type, kind);
    assert.equal(error.retryable, retryable, kind);
    assert.equal(error.name, type.name);
  }
});

test("a problem document becomes its error, and what a proxy says an error too", () => {
  const problem = { kind: "rate_limited", detail: "slower", hint: "wait", status: 429 };
  const error = problemError(429, JSON.stringify(problem));
  assert.ok(error instanceof ServerBusy && error.retryable);
  assert.deepEqual([error.message, error.hint, error.status], ["slower", "wait", 429]);
  assert.equal(problemError(502, "<html>").kind, "unavailable");
  assert.equal(problemError(404, "").constructor, NotFound);
  assert.equal(problemError(418, "{}").kind, "invalid_request");
});

test("an error of a line has its kind, and an unknown sandbox is gone", () => {
  const line = { error: "too slow", metadata: { kind: "timeout", retryable: false, hint: "h" } };
  const error = lineError(line);
  assert.ok(error instanceof Timeout && error.owner === "operation" && error.hint === "h");
  const unknown = { error: "Container 'x' not registered", metadata: { kind: "invalid_request" } };
  assert.ok(lineError(unknown) instanceof SandboxGone);
  const ended = { error: "Container 'x' has ended: killed", metadata: { kind: "timeout" } };
  assert.ok(lineError(ended) instanceof SandboxGone);
  assert.equal(lineError({}).kind, "internal");
});

test("every operation has a method, but the one for people", async () => {
  const asked: string[] = [];
  const operation = async (_: string, { operation }: { operation: string }) => {
    asked.push(operation);
    const named = {
      path: "",
      from: "",
      to: "",
      target: "",
      content: "",
      type: "file",
      permissions: "",
      mode: "",
      owner: "",
      group: "",
    };
    const counted = { bytes_written: 0, replacements: 0, matches: 0, files: 0, size: 0, uid: 0, gid: 0, bytes: 0 };
    const flags = { created: true, removed: true, exists: true, truncated: false };
    const found = { entries: operation === "list" ? [] : 0, lines: [] };
    const matches = operation === "glob" ? { matches: [] } : {};
    const times = operation === "stat" ? { created: null } : {};
    return { success: true, data: { ...named, ...counted, ...flags, ...found, ...matches, ...times }, error: null };
  };
  const files = new Files(() => ({ operation }) as unknown as Transport, "id");
  await files.read("a");
  await files.write("a", "");
  await files.edit("a", "b", "c");
  await files.list();
  await files.glob("*");
  await files.grep("a");
  await files.mkdir("a");
  await files.touch("a");
  await files.remove("a");
  await files.exists("a");
  await files.stat("a");
  await files.move("a", "b");
  await files.copy("a", "b");
  await files.chmod("a", 0o600);
  await files.symlink("a", "b");
  await files.readLink("a");
  await files.setMetadata("a", {});
  assert.deepEqual([...asked, "view"].sort(), [...OPERATIONS].sort());
});

test("a command with arguments is a program, and one without is a line for the shell", () => {
  assert.deepEqual(commandRequest("ls -l", {}), { command: { shell: "ls -l" } });
  assert.deepEqual(commandRequest("ls", { args: [], cwd: "d", env: { A: "1" }, stdin: INVALID, timeoutMs: 5 }), {
    command: { program: "ls", args: [], cwd: "d", env: { A: "1" }, stdin: { b64: "Zv8=" } },
    limits: { timeout_ms: 5 },
  });
});

test("a script has its arguments, its secrets and its limits", () => {
  const request = scriptRequest("return 1", { args: { aB: 1 }, secrets: { T: "x" }, limits: { memoryBytes: 7 } });
  assert.deepEqual(request, {
    script: "return 1",
    args: { aB: 1 },
    secrets: { T: "x" },
    limits: { memory_bytes: 7 },
  });
});

const DOCUMENT = {
  schema: "sandboxctl.exec/1",
  id: "x",
  status: "exit",
  exit_code: 3,
  signal: null,
  stdout: "aP8=",
  stdout_encoding: "base64",
  stdout_truncated: false,
  stderr: "one\ntwo\n",
  stderr_encoding: "utf-8",
  stderr_truncated: false,
  files_touched: [{ name: "f\ufffd", name_b64: "Zv8=", op: "write", bytes: 1 }],
  files_touched_truncated: false,
  error: null,
  engine: "docker",
  network: null,
  limits: null,
  usage: { wall_ms: 1, cpu_ms: 1, peak_memory_bytes: null, written_bytes: null },
};

test("the document of a command becomes its result, with the bytes of its output", () => {
  const result = commandResult(DOCUMENT);
  assert.deepEqual([...result.stdoutBytes], [0x68, 0xff]);
  assert.equal(result.stdout, "h\ufffd");
  assert.equal(result.usage?.wallMs, 1);
  assert.deepEqual(result.filesTouched[0]?.nameBytes, INVALID);
  assert.throws(() => commandResult({ schema: "sandboxctl.result/1" }), { kind: "internal" });
  assert.throws(() => commandResult(null), { kind: "internal" });
});

test("a failure says how it ended, and whose timeout it was", () => {
  const failed = failureOf(commandResult(DOCUMENT));
  assert.equal(failed?.message, "the command exited with 3: two");
  assert.equal(failed?.kind, "exit");
  const error = { kind: "timeout", message: "timed out" };
  const late = failureOf(commandResult({ ...DOCUMENT, status: "timeout", error }));
  assert.ok(late instanceof Timeout && late.owner === "execution");
  assert.equal(failureOf(commandResult({ ...DOCUMENT, status: "ok" })), undefined);
});

test("output that splits a character stays whole as text", () => {
  const { read, end } = outputReader();
  const piece = (b64: string) =>
    read({ seq: 1, time: "", event: "output", stream: "stdout", encoding: "base64", text: b64 });
  const texts = ["w6", "pA=="].map((_, i) => piece(Buffer.from([i === 0 ? 0xc3 : 0xa4]).toString("base64")));
  assert.deepEqual(
    texts.map((event) => event?.type === "stdout" && event.text),
    ["", "ä"],
  );
  // A character that is never whole is one that is not UTF-8.
  assert.equal((piece(Buffer.from([0x61, 0xe2]).toString("base64")) as { text: string }).text, "a");
  assert.deepEqual(end(), [{ type: "stdout", text: "\ufffd", bytes: new Uint8Array() }]);
  assert.deepEqual(end(), []);
});

test("text with half of a character is the error encoding, and one with its escape is not", () => {
  for (const value of ["\ud83d", { a: ["x\ude00"] }, { "\ud800": 1 }, { a: "\\ud83d\ud83d" }]) {
    assert.throws(() => encoded(value), { kind: "encoding" });
  }
  for (const value of ["\\ud83d", { "\\ud800": "😀" }, ["\\\\udfff"]]) {
    assert.deepEqual(JSON.parse(encoded(value)), value);
  }
  assert.throws(() => pathSegment("a\ud800"), { kind: "encoding" });
});

test("base64 is read strictly", () => {
  for (const text of ["x", "eA", "eA=", "e A=", "eA==eA==", "e\n==", "\u00e9A=="]) {
    assert.throws(() => fromBase64(text), { kind: "internal" }, text);
  }
  for (const bytes of [[], [1], [1, 2], [1, 2, 3], [255, 254, 253, 252]]) {
    assert.deepEqual([...fromBase64(Buffer.from(bytes).toString("base64"))], bytes);
  }
});

test("names of the wire are snake_case, and those of this package camelCase", () => {
  assert.deepEqual(camel({ bytes_written: 1, entries: [{ path_b64: "Zv8=" }] }), {
    bytesWritten: 1,
    entries: [{ pathBytes: INVALID }],
  });
  assert.deepEqual(snake({ maxDepth: 1, ignoreCase: undefined }), { max_depth: 1 });
});

test("lines come whole, however the pieces are cut", () => {
  const bytes = Buffer.from("eins\nzwö\n\ndrei");
  for (let size = 1; size <= bytes.length; size += 1) {
    const splitter = new LineSplitter();
    const lines: string[] = [];
    for (let at = 0; at < bytes.length; at += size) lines.push(...splitter.push(bytes.subarray(at, at + size)));
    assert.deepEqual(lines, ["eins", "zwö", ""]);
  }
});

test("server-sent events come whole, however the pieces are cut", () => {
  const text = ": hi\r\nid: 1\r\nevent: log\r\ndata: a\r\ndata: b\r\n\r\nid: 2\ndata:c\n\ndata: lost";
  for (let size = 1; size <= text.length; size += 1) {
    const parser = new EventParser();
    const events = [];
    for (let at = 0; at < text.length; at += size) events.push(...parser.push(text.slice(at, at + size)));
    assert.deepEqual(events, [
      { id: "1", data: "a\nb" },
      { id: "2", data: "c" },
    ]);
  }
});

test("an event of many small pieces takes time in proportion to its length", () => {
  // Processor time: other programs run too.
  const took = (pieces: number) => {
    const parser = new EventParser();
    const start = process.cpuUsage();
    parser.push("data: ");
    for (let sent = 0; sent < pieces; sent += 1) assert.deepEqual(parser.push("x".repeat(1024)), []);
    assert.equal(parser.push("\n\n")[0]?.data.length, pieces * 1024);
    const { user, system } = process.cpuUsage(start);
    return (user + system) / 1000;
  };
  took(1000);
  // 20 MB: each piece split all that was there, which took half a minute.
  const ms = took(20_000);
  assert.ok(ms < 3000, `${ms} ms`);
});

test("a limiter lets in as many as it has slots, in order, and a waiter that leaves frees its place", async () => {
  const limiter = new Limiter(1);
  const first = await limiter.acquire();
  const order: number[] = [];
  const leaving = new AbortController();
  const second = limiter.acquire(leaving.signal);
  const third = limiter.acquire().then((release) => {
    order.push(3);
    return release;
  });
  leaving.abort(new Error("left"));
  await assert.rejects(second, /left/);
  first();
  first();
  const release = await third;
  const fourth = limiter.acquire().then(() => order.push(4));
  assert.deepEqual(order, [3]);
  release();
  await fourth;
  assert.deepEqual(order, [3, 4]);
});
