// What programs with E2B's JavaScript SDK do, at sandboxctl serve: scripts/e2b-suite --lang js.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { CommandExitError, NotFoundError, Sandbox, TimeoutError } from "e2b";

let sandbox;
before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 900_000, envs: { GIVEN: "to all" } });
});
after(() => sandbox?.kill());

test("a sandbox is listed, shortened and killed once", async () => {
  const metadata = { mark: String(Math.random()) };
  const other = await Sandbox.create({ timeoutMs: 600_000, metadata });
  const { endAt } = await other.getInfo();
  const [listed] = await Sandbox.list({ query: { metadata } }).nextItems();
  assert.equal(listed.sandboxId, other.sandboxId);
  await other.setTimeout(60_000);
  assert.ok((await other.getInfo()).endAt < endAt);
  assert.equal(await other.kill(), true);
  assert.equal(await other.isRunning(), false);
  assert.equal(await Sandbox.kill(other.sandboxId), false);
});

test("a command has output, environment, directory and exit code", async () => {
  const ran = await sandbox.commands.run("echo $GIVEN $OWN; pwd; echo odd >&2", { envs: { OWN: "too" }, cwd: "/tmp" });
  assert.deepEqual([ran.stdout, ran.stderr, ran.exitCode], ["to all too\n/tmp\n", "odd\n", 0]);
  await assert.rejects(sandbox.commands.run("exit 7"), (error) => {
    assert.ok(error instanceof CommandExitError);
    return error.exitCode === 7;
  });
  await assert.rejects(sandbox.commands.run("sleep 60", { timeoutMs: 1_000 }), TimeoutError);
});

test("a process in the background takes input", async () => {
  const process = await sandbox.commands.run("cat", { background: true, stdin: true });
  await sandbox.commands.sendStdin(process.pid, "a line\n");
  await sandbox.commands.closeStdin(process.pid);
  assert.equal((await process.wait()).stdout, "a line\n");
});

test("files are written, read, moved and removed", async () => {
  const content = new Uint8Array(1 << 20).map((_, index) => index);
  await sandbox.files.write("deep/data.bin", content.buffer);
  assert.deepEqual(await sandbox.files.read("/home/user/deep/data.bin", { format: "bytes" }), content);
  await sandbox.files.rename("deep/data.bin", "moved.bin");
  assert.equal(await sandbox.files.exists("deep/data.bin"), false);
  await sandbox.files.remove("moved.bin");
  await assert.rejects(sandbox.files.read("moved.bin"), NotFoundError);
});

test("a watch tells of a file as it is written", async () => {
  await sandbox.files.makeDir("watched");
  const { promise, resolve } = Promise.withResolvers?.() ?? resolvers();
  const watch = await sandbox.files.watchDir("watched", (event) => resolve(event.name));
  await sandbox.files.write("watched/new", "1");
  assert.equal(await promise, "new");
  await watch.stop();
});

test("a terminal is one", async () => {
  let seen = "";
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => (seen += Buffer.from(data)) });
  await sandbox.pty.sendInput(terminal.pid, Buffer.from("tty && exit\n"));
  await terminal.wait();
  assert.match(seen, /\/dev\/pts\//);
});

test("a signed URL is enough for its file alone", async () => {
  await sandbox.files.write("shared.txt", "for you");
  const url = await sandbox.downloadUrl("shared.txt", { useSignatureExpiration: 60_000 });
  assert.equal(await (await fetch(url)).text(), "for you");
  assert.equal((await fetch(url.replace("shared.txt", "other.txt"))).status, 401);
});

function resolvers() {
  const made = {};
  made.promise = new Promise((resolve) => {
    made.resolve = resolve;
  });
  return made;
}
