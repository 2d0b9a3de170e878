import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import { Worker } from "node:worker_threads";
import {
  exec,
  LimitExceeded,
  NotFound,
  PolicyDenied,
  runScript,
  Sandbox,
  SandboxError,
  SandboxGone,
  Timeout,
} from "../../src/index.js";
import { places } from "./places.js";

const INVALID = new Uint8Array([0x66, 0xff, 0x2e]);

for (const { name, options } of await places()) {
  describe(name, { concurrency: 4 }, () => {
    test("files are written, read, edited, listed, moved, copied and removed", async () => {
      await using s = await Sandbox.create(options);
      const written = await s.files.write("d/a.txt", "hello\nworld\n");
      assert.deepEqual(written, { path: "/io/d/a.txt", bytesWritten: 12, created: true });
      assert.equal(await s.files.read("/io/d/a.txt", { offset: 6, limit: 5 }), "world");
      assert.equal((await s.files.edit("d/a.txt", "world", "there")).replacements, 1);
      await s.files.write("d/a.txt", "!", { mode: "append" });
      assert.deepEqual((await s.files.grep("th.re", { path: "d" })).lines[0]?.text, "there");
      await s.files.mkdir("e/f");
      await s.files.copy("d", "e/d", { recursive: true });
      await s.files.move("e/d/a.txt", "e/b.txt");
      assert.deepEqual(
        (await s.files.glob("**/*.txt")).matches.map((match) => match.name),
        ["d/a.txt", "e/b.txt"],
      );
      const listing = await s.files.list(".", { recursive: true, maxDepth: 2 });
      assert.deepEqual(
        listing.entries.map((entry) => entry.path),
        ["/io/d", "/io/d/a.txt", "/io/e", "/io/e/b.txt", "/io/e/d", "/io/e/f"],
      );
      assert.equal((await s.files.stat("d/a.txt")).size, 13);
      assert.equal((await s.files.remove("e", { recursive: true })).removed, true);
      assert.deepEqual([await s.files.exists("e"), await s.files.exists("d/a.txt")], [false, true]);
    });

    test("a name is found by another program", async () => {
      await using s = await Sandbox.create({ ...options, name: "of-two-threads" });
      await s.files.write("a", "found");
      const source = `
        const { parentPort, workerData } = require("node:worker_threads");
        import(workerData.index).then(async ({ Sandbox }) => {
          const other = await Sandbox.create(workerData.options).catch((error) => error);
          parentPort.postMessage(other.kind ?? (await other.files.read("a")));
        });`;
      const index = new URL("../../src/index.js", import.meta.url).href;
      const workerData = { index, options: { ...options, name: "of-two-threads" } };
      const [said] = await once(new Worker(source, { eval: true, workerData }), "message");
      assert.equal(said, "found");
    });

    test("what would be ignored is a type error, and is thrown", async () => {
      await using s = await Sandbox.create(options);
      // @ts-expect-error: there is no third argument
      await assert.rejects(s.commands.run("true", undefined, { timeoutMs: 5 }), /argument 2 .* must be the last/);
      // @ts-expect-error: nor is a list a command
      await assert.rejects(s.commands.run(["ls", "-l"]), /`args`/);
      // @ts-expect-error: the name of another product
      await assert.rejects(s.commands.run("true", { envVars: {} }), /there is no option 'envVars': it is 'env'/);
      // @ts-expect-error: nor are its options a list
      await assert.rejects(s.commands.run("ls", ["-l"]), /an object is expected/);
      // @ts-expect-error: no option of this method
      await assert.rejects(s.files.exists("a", { depth: 1 }), /there is no option 'depth'/);
      // @ts-expect-error: the name of another product
      await assert.rejects(Sandbox.create({ ...options, template: "base" }), /it is 'image'/);
    });

    test("names and content that are not UTF-8 come back as bytes", async () => {
      await using s = await Sandbox.create(options);
      const content = new Uint8Array([0, 255, 1]);
      await s.files.write(INVALID, content);
      assert.deepEqual(await s.files.readBytes(INVALID), content);
      const [entry] = (await s.files.list()).entries;
      assert.deepEqual(entry?.nameBytes, INVALID);
      const pieces: number[] = [];
      for await (const piece of s.files.readStream(entry?.pathBytes as Uint8Array)) pieces.push(...piece);
      assert.deepEqual(pieces, [...content]);
      async function* again() {
        yield content;
      }
      assert.equal((await s.files.write(INVALID, again())).bytesWritten, 3);
      await assert.rejects(s.files.read(INVALID), { kind: "encoding" });
    });

    test("large files are streamed, and what fails in the middle leaves nothing", async () => {
      await using s = await Sandbox.create({ ...options, limits: { fileBytes: 32 << 20 } });
      const piece = new Uint8Array(1 << 20).fill(65);
      async function* content(fails: boolean) {
        for (let i = 0; i < 24; i += 1) yield piece;
        if (fails) throw new Error("source");
      }
      assert.equal((await s.files.write("big", content(false))).bytesWritten, 24 << 20);
      let bytes = 0;
      for await (const part of s.files.readStream("big")) bytes += part.byteLength;
      assert.equal(bytes, 24 << 20);
      await assert.rejects(s.files.write("broken", content(true)), /source/);
      assert.equal(await s.files.exists("broken"), false);
      for await (const _ of s.files.readStream("big")) break;
    });

    test("an error of a file has the class of its kind", async () => {
      await using s = await Sandbox.create(options);
      await assert.rejects(s.files.read("none"), NotFound);
      await assert.rejects(s.files.read("../../etc/passwd"), PolicyDenied);
      await assert.rejects(s.files.write("/etc/x", "x"), PolicyDenied);
      await assert.rejects(s.files.write("x", new Uint8Array(11 << 20)), LimitExceeded);
      await assert.rejects(async () => {
        for await (const _ of s.files.readStream("none")) assert.fail();
      }, NotFound);
      await assert.rejects(s.files.edit("none", "a", "b"), (error) => error instanceof SandboxError);
    });

    test("a script has its arguments, its log and its result, and its failure is a result", async () => {
      await using s = await Sandbox.create(options);
      await s.files.write("a.txt", "hi");
      const logs: string[] = [];
      const script = "print(args.name) warn('w') return { a_b = fs.read('a.txt') }";
      const run = await s.runScript(script, { args: { name: "n" }, onLog: (text) => logs.push(text) });
      assert.deepEqual([run.status, run.result, run.logs], ["ok", { a_b: "hi" }, ["n", "[warn] w"]]);
      assert.deepEqual(logs, ["n", "w"]);
      const failed = await s.runScript("error('no')");
      assert.deepEqual([failed.status, failed.error?.kind, failed.error?.line], ["script_error", "runtime", 1]);
      await assert.rejects(s.runScript("error('no')", { check: true }), { kind: "runtime" });
      const late = s.runScript("while true do end", { timeoutMs: 200, check: true });
      await assert.rejects(late, (error) => error instanceof Timeout && error.owner === "execution");
    });

    test("a command has its output, its code and its input", async () => {
      await using s = await Sandbox.create(options);
      const out: string[] = [];
      const err: string[] = [];
      const run = await s.commands.run("cat; echo $A >&2; exit 3", {
        stdin: "in",
        env: { A: "e" },
        onStdout: (text) => out.push(text),
        onStderr: (text) => err.push(text),
      });
      assert.deepEqual([run.status, run.exitCode, run.stdout, run.stderr], ["exit", 3, "in", "e\n"]);
      assert.deepEqual([out.join(""), err.join("")], ["in", "e\n"]);
      const program = await s.commands.run("echo", { args: ["a b", "$A"] });
      assert.equal(program.stdout, "a b $A\n");
      const bytes = await s.commands.run("printf 'a\\377'");
      assert.deepEqual([...bytes.stdoutBytes], [0x61, 0xff]);
      const none = await s.commands.run("nonexistent", { args: [] });
      assert.deepEqual([none.status, none.error?.kind], ["error", "command_not_found"]);
      const late = await s.commands.run("sleep 60", { timeoutMs: 200 });
      assert.equal(late.status, "timeout");
    });

    test("a command that was started is read while it runs, and cancelled", async () => {
      await using s = await Sandbox.create(options);
      const handle = s.commands.start("echo up; sleep 60");
      for await (const event of handle) if (event.type === "stdout" && event.text.includes("up")) break;
      const end = await handle.cancel();
      assert.deepEqual([end.status, end.stdout], ["cancelled", "up\n"]);
      const done = s.commands.start("echo one; echo two >&2");
      assert.equal((await done.wait({ check: true })).exitCode, 0);
      const said: string[] = [];
      for await (const event of done) if (event.type !== "start" && "text" in event) said.push(event.type + event.text);
      assert.deepEqual(said.sort(), ["stderrtwo\n", "stdoutone\n"]);
    });

    test("an execution that is aborted ends, and the sandbox stays", async () => {
      await using s = await Sandbox.create(options);
      const abort = new AbortController();
      const onStdout = () => abort.abort(new Error("enough"));
      await assert.rejects(s.commands.run("echo up; sleep 60", { signal: abort.signal, onStdout }), /enough/);
      assert.equal((await s.commands.run("echo still")).stdout, "still\n");
    });

    test("a sandbox of one call returns what it did", async () => {
      const script = await runScript("return args.n + 1", { ...options, args: { n: 1 } });
      assert.equal(script.result, 2);
      const command = await exec("echo", { ...options, args: ["hi"], limits: { timeoutMs: 5_000 } });
      assert.deepEqual([command.status, command.stdout], ["ok", "hi\n"]);
    });

    test("limits hold, and one that is unknown is refused", async () => {
      await using s = await Sandbox.create({ ...options, limits: { writeBytes: 1000, timeoutMs: 9_000 } });
      assert.equal((await s.runScript("return 1")).limits?.timeoutMs, 9_000);
      await assert.rejects(s.files.write("a", "x".repeat(2000)), LimitExceeded);
      const unknown = { wrongName: 1 } as object;
      await assert.rejects(Sandbox.create({ ...options, limits: unknown }), { kind: "invalid_request" });
    });

    test("a named sandbox is found again, and after its end it is gone for everyone", async () => {
      const named = { ...options, name: `named-${process.pid}` };
      await using one = await Sandbox.create(named);
      await using two = await Sandbox.create(named);
      await one.files.write("a", "1");
      assert.equal(await two.files.read("a"), "1");
      await one.close();
      await assert.rejects(two.files.read("a"), SandboxGone);
      await assert.rejects(one.files.read("a"), SandboxGone);
    });

    test("a thousand concurrent calls are answered", async () => {
      await using s = await Sandbox.create(options);
      const writes = Array.from({ length: 1000 }, (_, i) => s.files.write(`m/${i % 100}`, `${i}`));
      assert.equal((await Promise.all(writes)).length, 1000);
      assert.equal((await s.files.list("m")).entries.length, 100);
    });

    if (options.server !== undefined) {
      test("a wrong token is refused, and is not in the error", async () => {
        const token = `${options.token?.slice(0, -1)}x`;
        await assert.rejects(Sandbox.create({ ...options, token }), (error) => {
          assert.ok(error instanceof SandboxError && error.kind === "unauthenticated" && error.status === 401);
          assert.ok(!`${error.stack}${error.hint}`.includes(token));
          return true;
        });
      });
    }

    if (options.server === undefined) {
      test("an io dir outlives its sandbox", async () => {
        const ioDir = mkdtempSync(join(tmpdir(), "sandboxctl-io-"));
        {
          await using s = await Sandbox.create({ ...options, ioDir });
          await s.files.write("a.txt", "kept");
        }
        assert.equal(readFileSync(join(ioDir, "a.txt"), "utf8"), "kept");
        rmSync(ioDir, { recursive: true });
      });
    }
  });
}
