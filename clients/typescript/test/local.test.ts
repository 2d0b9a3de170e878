import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Worker } from "node:worker_threads";
import { NotFound, PolicyDenied, Sandbox, SandboxError, SandboxGone } from "../src/index.js";
import { Tools } from "../src/tools.js";

/** The stand-in for the binary; the compiled tests are one directory deeper than their sources. */
const FAKE = fileURLToPath(new URL("../../../conformance/fake_sandboxctl.py", import.meta.url));
const INDEX = new URL("../src/index.js", import.meta.url).href;

/** A copy of the stand-in: a process of its own. */
function fake(t: TestContext, mode = "", bits = 0o755): string {
  const directory = mkdtempSync(join(tmpdir(), "sandboxctl-ts-"));
  const path = join(directory, "sandboxctl");
  writeFileSync(path, `#!/bin/sh\nFAKE=${mode} FAKE_LOCAL="$0.local" exec python3 "${FAKE}" "$@"\n`);
  chmodSync(path, bits);
  t.after(() => {
    if (existsSync(`${path}.local`)) execFileSync(path, ["local", "stop"]);
    rmSync(directory, { recursive: true });
  });
  return path;
}

const forever = () => new Promise<never>(() => {});

test("sandboxes share a process, and their files do not mix", async (t) => {
  const binary = fake(t);
  await using one = await Sandbox.create({ binary, ioDir: "out", limits: { memoryBytes: 5 } });
  await using two = await Sandbox.create({ binary, network: { allow: ["example.org"] } });
  await one.files.write("a", "1");
  assert.equal(await one.files.read("a"), "1");
  await assert.rejects(two.files.read("a"), NotFound);
  const request = async (sandbox: Sandbox) => JSON.parse(await sandbox.files.read("init")).request as { spec: object };
  assert.deepEqual((await request(one)).spec, { host_dir: join(process.cwd(), "out"), limits: { memory_bytes: 5 } });
  assert.deepEqual((await request(two)).spec, { network: { allow: ["example.org"] } });
});

test("a sandbox with a name is of the local service, where others find it", async (t) => {
  const binary = fake(t);
  const first = await Sandbox.create({
    binary,
    name: "web",
    ioDir: "out",
    metadata: { teamName: "a" },
    envs: { A: "1", B: new Uint8Array([255]) },
    timeoutMs: 1500,
    idle: "freeze",
    processes: "kept",
  });
  const received = async (sandbox: Sandbox) => JSON.parse(await sandbox.files.read("init"));
  assert.deepEqual((await received(first)).request, {
    name: "web",
    spec: { host_dir: join(process.cwd(), "out"), env: { A: "1", B: { b64: "/w==" } }, processes: "kept" },
    metadata: { teamName: "a" },
    ttl_ms: 1500,
    idle: "freeze",
  });
  assert.deepEqual((await received(first)).arguments, ["local", "socket"]);
  for (const which of ["web", first.id]) {
    const found = await Sandbox.connect(which, { binary });
    await found.files.write("a", which);
    assert.deepEqual([found.id, await first.files.read("a")], [first.id, which]);
  }
  const second = await Sandbox.create({ binary, name: "other" });
  const names = async (options: object) => {
    const found: (string | null)[] = [];
    for await (const { name } of Sandbox.list({ binary, ...options })) found.push(name);
    return found;
  };
  assert.deepEqual(await names({}), ["web", "other"]);
  assert.deepEqual(await names({ name: "web" }), ["web"]);
  const { status, generation, metadata } = await (await Sandbox.connect("web", { binary })).getInfo();
  assert.deepEqual([status, generation, metadata], ["ready", 7, { teamName: "a" }]);
  assert.deepEqual([await Sandbox.kill("web", { binary }), await Sandbox.kill("web", { binary })], [true, false]);
  await second.kill();
  assert.deepEqual(await names({}), []);
  await assert.rejects(Sandbox.connect("web", { binary }), { name: "NotFound", message: "there is no sandbox 'web'" });
});

test("a local service that has ended is started again, and one that does not start says why", async (t) => {
  const binary = fake(t);
  const s = await Sandbox.create({ binary, name: "a" });
  await s.files.write("a", "1");
  execFileSync(binary, ["local", "stop"]);
  // The real one has its sandboxes still; the stand-in has forgotten them.
  await assert.rejects(s.files.read("a"), SandboxGone);
  assert.ok(await (await Sandbox.create({ binary, name: "a" })).files.read("init"));
  const refusing = fake(t);
  for (const [code, kind] of [
    [2, "config"],
    [1, "engine"],
  ]) {
    writeFileSync(refusing, `#!/bin/sh\necho 'error: another engine: sandboxctl local stop' >&2; exit ${code}\n`);
    const message = "another engine: sandboxctl local stop";
    await assert.rejects(Sandbox.create({ binary: refusing, name: "a" }), { kind, message });
  }
  await assert.rejects(Sandbox.list({ binary: fake(t, "older") }).next(), /needs protocol 1/);
});

test("a directory and an archive for commands are of the process", async (t) => {
  const binary = fake(t);
  process.env.SANDBOXCTL_SERVER = "http://127.0.0.1:1";
  t.after(() => {
    delete process.env.SANDBOXCTL_SERVER;
  });
  await using one = await Sandbox.create({ binary, engine: "embedded", rootfs: "root" });
  await using two = await Sandbox.create({ binary, engine: "embedded", rootfs: join(process.cwd(), "root") });
  await using three = await Sandbox.create({ binary, imageArchive: "x.tar" });
  const received = async (sandbox: Sandbox) => JSON.parse(await sandbox.files.read("init"));
  const own = ["serve", "--private"];
  const args = ["--engine", "embedded", ...own, "--rootfs", join(process.cwd(), "root")];
  assert.deepEqual((await received(one)).arguments, args);
  assert.equal((await received(one)).pid, (await received(two)).pid);
  assert.deepEqual((await received(three)).arguments, [...own, "--image-archive", join(process.cwd(), "x.tar")]);
  assert.deepEqual(Object.keys((await received(three)).request.spec), []);
  const server = "http://127.0.0.1:1";
  for (const [options, message] of [
    [{ image: "a", rootfs: "b" }, /^image and rootfs are both given/],
    [{ rootfs: "a", imageArchive: "b" }, /^rootfs and imageArchive are both given/],
    [{ rootfs: "a", server }, /^rootfs is of this machine/],
    [{ imageArchive: "a", server }, /^imageArchive is of this machine/],
  ] as const) {
    await assert.rejects(Sandbox.create(options), { kind: "usage", message });
  }
});

test("wrong arguments are refused with what is expected", async (t) => {
  const binary = fake(t);
  const odd = (options: object) => options as never;
  await assert.rejects(Sandbox.create(odd({ binary, engine: "podman" })), {
    kind: "usage",
    message: "engine: 'podman' is not one of auto, docker, embedded",
  });
  await assert.rejects(Sandbox.create(odd({ binary, io_dir: "out" })), /there is no option 'io_dir': .*ioDir/);
  await using s = await Sandbox.create({ binary });
  await assert.rejects(s.runScript("return 1", odd({ timeout: 1 })), /there is no option 'timeout': .*timeoutMs/);
  await assert.rejects(s.commands.run("true", odd({ onLog: null })), /there is no option 'onLog'/);
  assert.throws(() => s.commands.start("true", odd({ check: true })), /there is no option 'check'/);
  const more = s.commands.run as unknown as (...args: unknown[]) => Promise<unknown>;
  await assert.rejects(more.call(s.commands, "true", undefined, { timeoutMs: 5 }), /must be the last/);
  await assert.rejects(s.commands.run(odd(["ls", "-l"])), /`args`, as run\("ls"/);
  await assert.rejects(s.commands.run("ls", odd(["-l"])), /options: an object is expected/);
  await assert.rejects(s.commands.run("ls", odd({ envVars: {} })), /there is no option 'envVars': it is 'env'/);
  await assert.rejects(s.commands.run("ls", { env: odd(["A=1"]) }), /names and their values are expected/);
  await assert.rejects(s.files.exists("a", odd({ depth: 1 })), /there is no option 'depth'/);
  await assert.rejects(Sandbox.create("base" as never), /options: an object is expected/);
  await assert.rejects(Sandbox.create(odd({ template: "base" })), /it is 'image'/);
  for (const half of [
    s.files.write("a", "\ud83d"),
    s.files.read("\ud83d"),
    s.runScript("x", { args: { a: "\ud83d" } }),
  ]) {
    await assert.rejects(half, { kind: "encoding" });
  }
  await assert.rejects(s.runScript(5 as never), /text or bytes are expected, not number/);
  assert.equal((await s.files.write("a", [new Uint8Array(2), new Uint8Array(3)])).bytesWritten, 5);
  await assert.rejects(s.files.write("a", 5 as never), /content: text, bytes or pieces of bytes .* not number/);
});

test("a process that refuses its settings has lost no sandbox", async (t) => {
  const binary = fake(t);
  writeFileSync(binary, "#!/bin/sh\necho 'error: no such setting' >&2; exit 2\n");
  const error = await Sandbox.create({ binary }).catch((error: unknown) => error);
  assert.ok(error instanceof SandboxError && error.kind === "config" && error.hint === undefined);
  assert.match(error.message, /no such setting/);
});

test("large files go in pieces, both ways, and one that is left is given up", async (t) => {
  await using s = await Sandbox.create({ binary: fake(t) });
  const piece = new Uint8Array(1_000_000).fill(7);
  async function* content() {
    for (let i = 0; i < 12; i += 1) yield piece;
  }
  assert.equal((await s.files.write("big", content())).bytesWritten, 12_000_000);
  let bytes = 0;
  for await (const part of s.files.readStream("big")) bytes += part.byteLength;
  assert.equal(bytes, 12_000_000);
  // More than there are slots: each gives its slot back.
  for (let i = 0; i < 20; i += 1) for await (const _ of s.files.readStream("big")) break;
  await assert.rejects(async () => {
    for await (const _ of s.files.readStream("none")) assert.fail();
  }, NotFound);
});

test("an upload that is refused, fails at its source or is aborted leaves nothing", async (t) => {
  await using s = await Sandbox.create({ binary: fake(t) });
  async function* endless() {
    for (;;) yield new Uint8Array(100_000);
  }
  await assert.rejects(s.files.write("refused", endless()), PolicyDenied);
  async function* broken() {
    yield new Uint8Array(10);
    throw new Error("source");
  }
  await assert.rejects(s.files.write("broken", broken()), /source/);
  const abort = new AbortController();
  async function* aborted() {
    yield new Uint8Array(10);
    abort.abort(new Error("enough"));
    yield new Uint8Array(10);
  }
  await assert.rejects(s.files.write("aborted", aborted(), { signal: abort.signal }), /enough/);
  for (const path of ["refused", "broken", "aborted"]) assert.equal(await readOr(s, path), undefined);
  await assert.rejects(s.files.write("a", aborted(), { mode: "append" }), { kind: "usage" });
});

const readOr = (s: Sandbox, path: string) => s.files.read(path).catch((e) => (e instanceof NotFound ? undefined : e));

test("a call that is aborted is cancelled in the process, and gives its slot back", async (t) => {
  await using s = await Sandbox.create({ binary: fake(t) });
  for (let i = 0; i < 30; i += 1) {
    const abort = new AbortController();
    const onLog = () => abort.abort(new Error("enough"));
    await assert.rejects(s.runScript("wait", { signal: abort.signal, onLog }), /enough/);
  }
  while ((await s.files.read("count")) !== "0");
  await assert.rejects(s.files.read("x", { signal: AbortSignal.abort(new Error("before")) }), /before/);
});

test("a process that is killed ends every waiting call with SandboxGone, and the next sandbox has a new one", async (t) => {
  const binary = fake(t);
  const s = await Sandbox.create({ binary });
  const { pid } = JSON.parse(await s.files.read("init")) as { pid: number };
  const waiting = [s.files.read("pending"), s.runScript("wait"), s.files.write("up", pendingContent())];
  const settled = Promise.allSettled(waiting);
  await assert.rejects(s.files.read("die"), SandboxGone);
  for (const end of await settled) {
    assert.equal(end.status, "rejected");
    assert.ok(end.status === "rejected" && end.reason instanceof SandboxGone);
    assert.match(String(end.status === "rejected" && end.reason.message), /ended with signal SIGKILL/);
  }
  await assert.rejects(s.files.read("a"), SandboxGone);
  // It was waited for: it is no zombie.
  assert.throws(() => process.kill(pid, 0), { code: "ESRCH" });
  await s.close();
  await using next = await Sandbox.create({ binary });
  await next.files.write("a", "1");
});

async function* pendingContent() {
  yield new Uint8Array(10);
  await forever();
}

test("a sandbox that is closed is gone, and closing it again is not an error", async (t) => {
  const s = await Sandbox.create({ binary: fake(t) });
  await Promise.all([s.close(), s.close()]);
  await s.close();
  await assert.rejects(s.files.read("a"), SandboxGone);
  await assert.rejects(s.runScript("return 1"), SandboxGone);
});

test("a binary that is missing, not executable or not found is named, with how to get it", async (t) => {
  const refused = async (binary: string, how: RegExp) => {
    await assert.rejects(Sandbox.create({ binary }), (error) => {
      assert.ok(error instanceof SandboxError && error.kind === "config");
      assert.match(error.message, how);
      assert.match(error.hint ?? "", /cargo install/);
      return true;
    });
  };
  await refused("/nonexistent/sandboxctl", /does not exist/);
  await refused(tmpdir(), /is not a file/);
  // For root every file may be executed that anyone may execute.
  await refused(fake(t, "", 0o644), /is not executable/);
  const nothing = fake(t);
  writeFileSync(nothing, "#!/nonexistent/interpreter\n");
  await assert.rejects(Sandbox.create({ binary: nothing }), { kind: "config", message: /cannot be started/ });
  const path = process.env.PATH;
  const named = process.env.SANDBOXCTL_BINARY;
  process.env.PATH = "/nonexistent";
  delete process.env.SANDBOXCTL_BINARY;
  t.after(() => {
    process.env.PATH = path;
    if (named !== undefined) process.env.SANDBOXCTL_BINARY = named;
  });
  await assert.rejects(Sandbox.create(), { kind: "config", message: /no sandboxctl in PATH/ });
  process.env.SANDBOXCTL_BINARY = "/nonexistent/x";
  await assert.rejects(Sandbox.create(), /SANDBOXCTL_BINARY: \/nonexistent\/x does not exist/);
  delete process.env.SANDBOXCTL_BINARY;
});

test("a binary that speaks another protocol, or none, is refused with both versions", async (t) => {
  for (const [mode, speaks] of [
    ["older", "no protocol for clients"],
    ["newer", "protocol 2"],
  ] as const) {
    await assert.rejects(Sandbox.create({ binary: fake(t, mode) }), (error) => {
      assert.ok(error instanceof SandboxError && error.kind === "config");
      assert.match(error.message, new RegExp(`sandboxctl 0\\.0\\.9, which speaks ${speaks}; this client is 0\\.1\\.0`));
      return true;
    });
  }
});

test("a process that says nonsense is ended", async (t) => {
  const nonsense = Sandbox.create({ binary: fake(t, "garbage") });
  await assert.rejects(nonsense, { kind: "engine", message: /broke the protocol/ });
});

test("a process that cannot start says why", async (t) => {
  await assert.rejects(Sandbox.create({ binary: fake(t, "silent-death") }), (error) => {
    assert.ok(error instanceof SandboxError && error.kind === "engine");
    assert.match(error.message, /ended with exit code 1: error: no engine answers/);
    return true;
  });
});

test("a process of tools that says nonsense, or ends, fails its calls", async (t) => {
  const binary = fake(t);
  for (const said of ["x", "[]", '{"id": 1, "error": 5}', '{"id": 1, "error": "x", "metadata": {"kind": []}}']) {
    writeFileSync(binary, `#!/bin/sh\nread line; echo '${said}'; read line\n`);
    const tools = new Tools({ binary });
    await assert.rejects(tools.call("sandbox_exists", {}), (error) => error instanceof SandboxError, said);
    await tools.close();
  }
  writeFileSync(binary, "#!/bin/sh\nread line; echo enough >&2; exit 3\n");
  const ended = new Tools({ binary }).call("sandbox_exists", {});
  await assert.rejects(ended, { kind: "engine", message: /ended with exit code 3: enough/ });
});

/** Runs a program against the stand-in; it prints the pid of the process that it started. */
async function program(t: TestContext, end: string): Promise<{ child: ChildProcess; pid: number }> {
  const source = `
    import { Sandbox } from ${JSON.stringify(INDEX)};
    const s = await Sandbox.create({ binary: ${JSON.stringify(fake(t))} });
    await s.files.write("a", "1");
    const { readFileSync } = await import("node:fs");
    const children = readFileSync(\`/proc/self/task/\${process.pid}/children\`, "utf8").trim();
    process.stdout.write(children + "\\n");
    ${end}`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", source], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [first] = (await once(child.stdout, "data")) as [Buffer];
  return { child, pid: Number(first.toString().trim().split(" ")[0]) };
}

/** Waits until a process has ended, or is a zombie: its parent may never wait for it. */
async function ended(pid: number): Promise<void> {
  const running = async () => !/\) [ZX] /.test(await readFile(`/proc/${pid}/stat`, "latin1"));
  while (await running().catch(() => false)) await new Promise((resolve) => setImmediate(resolve));
}

for (const [how, end] of [
  ["never closes its sandbox", ""],
  ["exits in the middle of a call", 'void s.runScript("wait"); process.exit(0);'],
] as const) {
  test(`a program that ${how} ends, and its process with it`, { timeout: 120_000 }, async (t) => {
    const { child, pid } = await program(t, end);
    const [code] = (await once(child, "exit")) as [number];
    assert.equal(code, 0);
    await ended(pid);
  });
}

test("a program that is killed takes its process with it", { timeout: 120_000 }, async (t) => {
  const { child, pid } = await program(t, "setInterval(() => {}, 1000);");
  child.kill("SIGKILL");
  await once(child, "exit");
  await ended(pid);
});

/** A worker thread that has a sandbox, and the pid of its process. */
async function worker(t: TestContext, then: string): Promise<{ thread: Worker; pid: number }> {
  const source = `
    const { parentPort } = require("node:worker_threads");
    import(${JSON.stringify(INDEX)}).then(async ({ Sandbox }) => {
      const s = await Sandbox.create({ binary: ${JSON.stringify(fake(t))} });
      parentPort.postMessage(JSON.parse(await s.files.read("init")).pid);
      ${then}
    });`;
  const thread = new Worker(source, { eval: true });
  const [pid] = (await once(thread, "message")) as [number];
  return { thread, pid };
}

test("a worker thread has its own process, which ends with it", { timeout: 120_000 }, async (t) => {
  const { thread, pid } = await worker(t, 'await s.runScript("wait");');
  assert.match(readFileSync(`/proc/${pid}/cmdline`, "utf8"), /sandboxctl/);
  await thread.terminate();
  await ended(pid);
});

test("a worker thread that closes its sandboxes leaves no zombie", { timeout: 120_000 }, async (t) => {
  const { thread, pid } = await worker(t, "await s.close();");
  await once(thread, "exit");
  assert.equal(existsSync(`/proc/${pid}`), false);
});
