import "reflect-metadata";
import assert from "node:assert/strict";
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, type TestContext, test } from "node:test";
import { type INestApplicationContext, Module, type Type } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import {
  ContainerManagerService,
  SandboxCommand,
  SandboxCreateDirectory,
  SandboxDelete,
  SandboxDestroy,
  SandboxExecuteScript,
  SandboxExists,
  SandboxFileInfo,
  SandboxFilesystem,
  SandboxFilesystemModule,
  SandboxInit,
  SandboxListDirectory,
  SandboxReadFile,
  SandboxToolModule,
  SandboxWriteFile,
} from "sandboxctl-loopstack";
import * as block from "sandboxctl-loopstack/block";
import { ReportWorkflow } from "../examples/report.workflow.js";
import { ENGINES, type Place, place } from "./place.js";

/** An application of the platform that imports the modules. */
async function application(t: TestContext | undefined, at: Place, module: Type<unknown> = SandboxFilesystemModule) {
  @Module({ imports: [SandboxToolModule.forRoot(at.options), module] })
  class Application {}
  const app = await NestFactory.createApplicationContext(Application, { logger: false });
  t?.after(() => app.close());
  return app;
}

for (const engine of ENGINES) {
  describe(`on the ${engine} engine`, () => {
    let at: Place;
    let app: INestApplicationContext;
    let manager: ContainerManagerService;
    before(async () => {
      at = place(engine);
      app = await application(undefined, at);
      manager = app.get(ContainerManagerService);
    });
    after(async () => {
      await app?.close();
      at?.remove();
    });

    /** A sandbox of its own for a test: registered, and not yet made. */
    function register(t: TestContext, containerId: string) {
      const projectOutPath = at.directory();
      manager.registerContainer(containerId, { imageName: at.imageName, projectOutPath, rootPath: "workspace" });
      t.after(async () => {
        await manager.removeContainer(containerId);
        manager.unregisterContainer(containerId);
      });
      return projectOutPath;
    }

    const sh = (containerId: string, script: string, timeout?: number) =>
      manager.executeCommand({ containerId, executable: "sh", args: ["-c", script], timeout });

    test("a step that is written as the platform shows runs a script and collects its artifacts", async (t) => {
      @Module({
        imports: [SandboxToolModule.forRoot(at.options), SandboxFilesystemModule],
        providers: [ReportWorkflow],
      })
      class Application {}
      const step = await NestFactory.createApplicationContext(Application, { logger: false });
      t.after(() => step.close());
      const outputDir = at.directory();
      const state = await step.get(ReportWorkflow).run({ outputDir, imageName: at.imageName });
      assert.deepEqual(state, {
        containerId: "report",
        artifacts: ["/workspace/report/lines.txt", "/workspace/report/total.txt"],
      });
      assert.equal(readFileSync(join(outputDir, "report/total.txt"), "utf8"), "total: 5\n");
      assert.deepEqual(step.get(ContainerManagerService).getRegisteredContainerIds(), []);
    });

    test("every tool works on one sandbox, with the data that Loopstack publishes", async () => {
      const projectOutPath = at.directory();
      const containerId = "files";
      const made = await app
        .get(SandboxInit)
        .call({ containerId, imageName: at.imageName, projectOutPath, rootPath: "workspace" });
      assert.equal(made.data.containerId, containerId);
      assert.equal(made.data.dockerId, manager.getDockerContainerId(containerId));

      const path = "/workspace/src/a.txt";
      const directory = { containerId, path: "/workspace/src" };
      const encoding = "utf8" as const;
      assert.deepEqual((await app.get(SandboxCreateDirectory).call({ ...directory, recursive: true })).data, {
        path: "/workspace/src",
        created: true,
      });
      const write = app.get(SandboxWriteFile);
      const written = await write.call({ containerId, path, content: " ä\n", encoding, createParentDirs: true });
      assert.deepEqual(written.data, { path, bytesWritten: 4 });
      assert.equal(readFileSync(join(projectOutPath, "src/a.txt"), "utf8"), " ä\n");
      const read = app.get(SandboxReadFile);
      assert.deepEqual((await read.call({ containerId, path, encoding })).data, { content: " ä\n", encoding });
      assert.equal((await read.call({ containerId, path, encoding: "base64" })).data.content, "IMOkCg==");
      assert.deepEqual((await app.get(SandboxListDirectory).call({ ...directory, recursive: false })).data, {
        path: "/workspace/src",
        entries: [{ name: "a.txt", type: "file", size: 4, path }],
      });
      assert.deepEqual((await app.get(SandboxExists).call({ containerId, path })).data, {
        path,
        exists: true,
        type: "file",
      });
      const { data: info } = await app.get(SandboxFileInfo).call({ containerId, path });
      assert.deepEqual([info.path, info.name, info.type, info.size], [path, "a.txt", "file", 4]);
      assert.match(info.permissions, /^-rw/);
      assert.deepEqual(
        (await app.get(SandboxDelete).call({ containerId, path, recursive: false, force: false })).data,
        {
          path,
          deleted: true,
        },
      );
      assert.deepEqual((await app.get(SandboxExists).call({ containerId, path })).data, {
        path,
        exists: false,
        type: null,
      });
      const script = await app.get(SandboxExecuteScript).call({ containerId, script: "print(1) return { a = 2 }" });
      assert.deepEqual(script.data.result, { a: 2 });

      const destroy = app.get(SandboxDestroy);
      assert.deepEqual((await destroy.call({ containerId, removeContainer: true })).data, {
        containerId,
        removed: true,
      });
      assert.deepEqual(
        (await destroy.call({ containerId, removeContainer: true })).data,
        { containerId, removed: true },
        "a second time",
      );
      await assert.rejects(app.get(SandboxExists).call({ containerId, path }), {
        message: "Container 'files' not registered. Call registerContainer() first.",
      });
    });

    test("a path without a slash begins at the root, as Loopstack's does", async (t) => {
      const out = register(t, "root");
      const file = { containerId: "root", content: "x", encoding: "utf8", createParentDirs: true } as const;
      const { data } = await app.get(SandboxWriteFile).call({ ...file, path: "workspace/a" });
      assert.equal(data.path, "/workspace/a");
      assert.deepEqual(readdirSync(out), ["a"]);
      await assert.rejects(app.get(SandboxWriteFile).call({ ...file, path: "a" }), { kind: "path_escape" });
    });

    test("an operation that fails throws, and leads nowhere outside", async (t) => {
      const out = register(t, "outside");
      symlinkSync("/etc", join(out, "link"));
      const read = (path: string) => app.get(SandboxReadFile).call({ containerId: "outside", path, encoding: "utf8" });
      await assert.rejects(read("/workspace/missing"), { kind: "not_found" });
      await assert.rejects(read("/workspace/../etc/passwd"), { kind: "path_escape" });
      await assert.rejects(read("/etc/passwd"), { kind: "path_escape" });
      await assert.rejects(read("/workspace/link/passwd"), { kind: "symlink" });
    });

    test("the one tool for files tells a failure as data", async (t) => {
      const out = register(t, "one");
      const containerId = "one";
      const tool = app.get(SandboxFilesystem);
      const call = async (args: Omit<Parameters<typeof tool.call>[0] & object, "containerId">) =>
        (await tool.call({ containerId, ...args })).data;
      const written = await call({ operation: "write", path: "/workspace/d/a", content: "hi", encoding: "utf-8" });
      assert.deepEqual([written.success, written.error, written.metadata.bytesWritten], [true, null, 2]);
      assert.equal(readFileSync(join(out, "d/a"), "utf8"), "hi");
      assert.deepEqual((await call({ operation: "read", path: "workspace/d/a" })).data, {
        content: "hi",
        encoding: "utf8",
      });
      const listed = await call({ operation: "list", path: "/workspace", recursive: true, force: true });
      assert.equal(listed.metadata.itemsCount, 2);
      assert.equal((await call({ operation: "createDir", path: "/workspace/e/f", recursive: true })).success, true);
      assert.equal((await call({ operation: "info", path: "/workspace/e" })).success, true);
      assert.equal((await call({ operation: "delete", path: "/workspace/e", recursive: true })).success, true);
      assert.equal((await call({ operation: "exists", path: "/workspace/e" })).success, true);
      const failed = await call({ operation: "read", path: "/workspace/../etc/passwd" });
      assert.deepEqual([failed.success, failed.data, failed.metadata.kind], [false, null, "path_escape"]);
      assert.equal(typeof failed.error, "string");
    });

    test("a command has its output without white space at both ends, and its exit code", async (t) => {
      register(t, "command");
      const ended = (data: object) => ({ stdout: "", stderr: "", exitCode: 0, timedOut: false, ...data });
      assert.deepEqual(await sh("command", "echo; echo '  a b '; echo e >&2; exit 3"), {
        stdout: "a b",
        stderr: "e",
        exitCode: 3,
        timedOut: false,
      });
      assert.deepEqual(await sh("command", "kill -9 $$"), ended({ exitCode: 137 }));
      const { data, metadata } = await app
        .get(SandboxCommand)
        .call({ containerId: "command", executable: "echo", args: ["hello"], workingDirectory: "/", timeout: 30000 });
      assert.deepEqual(data, ended({ stdout: "hello" }));
      assert.equal(metadata.stdoutTruncated, false);
    });

    test("a program that does not exist is exit code 127, and one that is no program 126", async (t) => {
      const out = register(t, "127");
      writeFileSync(join(out, "text"), "no program");
      const run = async (executable: string, workingDirectory?: string) => {
        const { exitCode, stderr, stdout } = await manager.executeCommand({
          containerId: "127",
          executable,
          workingDirectory,
        });
        assert.notEqual(stderr, "");
        assert.equal(stdout, "");
        return exitCode;
      };
      assert.equal(await run("no-such-program"), 127);
      assert.equal(await run("/workspace/text"), 126);
      assert.equal(await run("ls", "/no-such-directory"), 1);
    });

    test("arguments reach a program as they are, whatever a shell would make of them", async (t) => {
      const out = register(t, "escape");
      const args = ["hello'world", "test;rm -rf /", "$(touch a)", "`touch b`", "", "two\nlines", "ä"];
      const { stdout } = await manager.executeCommand({
        containerId: "escape",
        executable: "printf",
        args: ["[%s]", ...args],
      });
      assert.equal(stdout, args.map((arg) => `[${arg}]`).join(""));
      assert.deepEqual(readdirSync(out), []);
    });

    test("a command starts in its directory, with its variables", async (t) => {
      const out = register(t, "cwd");
      mkdirSync(join(out, "src/nested"), { recursive: true });
      const pwd = async (workingDirectory?: string) =>
        (await manager.executeCommand({ containerId: "cwd", executable: "pwd", workingDirectory })).stdout;
      assert.equal(await pwd(), "/");
      assert.equal(await pwd("/workspace//src///nested"), "/workspace/src/nested");
      assert.equal(await pwd("workspace/src"), "/workspace/src", "a relative one begins at the root");
      await assert.rejects(pwd("../../../etc"), { message: "Path traversal detected: ../../../etc" });
      const { stdout } = await manager.executeCommand({
        containerId: "cwd",
        executable: "env",
        envVars: ["FOO=bar", "BAZ=a=b"],
      });
      const variables = stdout.split("\n");
      assert.ok(variables.includes("FOO=bar") && variables.includes("BAZ=a=b"), stdout);
    });

    test("a command that is out of time is exit code -1, with what it wrote", async (t) => {
      register(t, "timeout");
      const late = await sh("timeout", "echo partial; sleep 600", 5_000);
      assert.deepEqual(late, { stdout: "partial", stderr: "", exitCode: -1, timedOut: true });
      const { stdout } = await sh("timeout", "ps | grep -c '[s]leep 600'");
      assert.equal(stdout, "0", "it is killed");
    });

    test("a name that is not registered is an error", async () => {
      const message = "Container 'nobody' not registered. Call registerContainer() first.";
      await assert.rejects(manager.ensureContainer("nobody"), { message });
      await assert.rejects(sh("nobody", "true"), { message });
      assert.deepEqual(await manager.getContainerStatus("nobody"), {
        registered: false,
        exists: false,
        running: false,
      });
      await manager.stopContainer("nobody");
      await manager.removeContainer("nobody");
      manager.unregisterContainer("nobody");
      assert.equal(manager.getDockerContainerId("nobody"), undefined);
    });

    test("concurrent calls make one sandbox of a name, and those of two names do not wait for each other", async (t) => {
      register(t, "c1");
      register(t, "c2");
      const ids = ["c1", "c1", "c2", "c1"];
      const [a, b, c, d] = await Promise.all(ids.map((id) => manager.ensureContainer(id)));
      assert.ok(a && b && c && d);
      assert.equal(a, b);
      assert.equal(a, d);
      assert.notEqual(a.id, c.id);
      const outputs = await Promise.all(
        Array.from({ length: 100 }, (_, n) =>
          manager.executeCommand({ containerId: "c1", executable: "echo", args: [`${n}`] }),
        ),
      );
      assert.deepEqual(
        outputs.map(({ stdout }) => stdout),
        outputs.map((_, n) => `${n}`),
      );
    });

    test("a sandbox that was stopped is made again, with the same files", async (t) => {
      register(t, "again");
      await sh("again", "echo kept > /workspace/a");
      const running = await manager.getContainerStatus("again");
      const dockerId = manager.getDockerContainerId("again");
      assert.deepEqual(running, { registered: true, exists: true, running: true, dockerId });
      await manager.stopContainer("again");
      assert.deepEqual(await manager.getContainerStatus("again"), { registered: true, exists: false, running: false });
      assert.equal((await sh("again", "cat /workspace/a")).stdout, "kept");
      assert.notEqual(manager.getDockerContainerId("again"), dockerId);
    });

    test("a removal ends the commands that run, and the sandbox is made again with what is registered then", async (t) => {
      register(t, "removed");
      const started = sh("removed", "touch /workspace/started; sleep 600");
      const refused = assert.rejects(started, { message: "Container 'removed' was removed" });
      await appears(manager, "removed");
      assert.equal(await manager.removeContainer("removed"), true);
      await refused;
      const other = at.directory();
      manager.registerContainer("removed", { imageName: at.imageName, projectOutPath: other, rootPath: "elsewhere" });
      await sh("removed", "touch /elsewhere/b");
      assert.deepEqual(readdirSync(other), ["b"]);
    });

    test("another registration leaves the sandbox that runs as it is", async (t) => {
      const out = register(t, "twice");
      const first = await manager.ensureContainer("twice");
      manager.registerContainer("twice", { imageName: "no-such", projectOutPath: out, rootPath: "other" });
      assert.equal(await manager.ensureContainer("twice"), first);
      assert.equal(manager.getRegisteredContainerIds().filter((id) => id === "twice").length, 1);
    });

    test("a sandbox that cannot be made is an error, and the name is free for another", async (t) => {
      register(t, "impossible");
      manager.registerContainer("impossible", { projectOutPath: "/proc/none", rootPath: "workspace" });
      await assert.rejects(manager.ensureContainer("impossible"), { name: "PolicyDenied" });
      manager.registerContainer("impossible", {
        imageName: at.imageName,
        projectOutPath: at.directory(),
        rootPath: "workspace",
      });
      assert.equal((await sh("impossible", "echo ok")).stdout, "ok");
    });

    test("a process that was killed is started again, and so is its sandbox", async (t) => {
      const killed = await application(t, { ...at, options: { ...at.options, env: { LOOPSTACK_TEST: "killed" } } });
      const service = killed.get(ContainerManagerService);
      const projectOutPath = at.directory();
      service.registerContainer("k", { imageName: at.imageName, projectOutPath, rootPath: "workspace" });
      const { id } = await service.ensureContainer("k");
      const waiting = service.executeCommand({
        containerId: "k",
        executable: "sh",
        args: ["-c", "touch /workspace/started; sleep 600"],
      });
      const gone = assert.rejects(waiting, { name: "SandboxGone" });
      await appears(service, "k");
      process.kill(processWith("LOOPSTACK_TEST=killed"), "SIGKILL");
      await gone;
      const { stdout } = await service.executeCommand({ containerId: "k", executable: "ls", args: ["/workspace"] });
      assert.equal(stdout, "started");
      assert.notEqual(service.getDockerContainerId("k"), id);
    });

    test("the end of the application ends every sandbox and the process", async (t) => {
      const ending = await application(t, { ...at, options: { ...at.options, env: { LOOPSTACK_TEST: "ending" } } });
      const service = ending.get(ContainerManagerService);
      for (const id of ["e1", "e2"]) {
        service.registerContainer(id, {
          imageName: at.imageName,
          projectOutPath: at.directory(),
          rootPath: "workspace",
        });
        await service.ensureContainer(id);
      }
      const pid = processWith("LOOPSTACK_TEST=ending");
      await ending.close();
      assert.deepEqual(service.getRegisteredContainerIds(), []);
      assert.throws(() => process.kill(pid, 0), { code: "ESRCH" });
    });

    test("the older platform's classes do the same", async (t) => {
      @Module({ imports: [block.SandboxToolModule.forRoot(at.options), block.SandboxFilesystemModule] })
      class Application {}
      const old = await NestFactory.createApplicationContext(Application, { logger: false });
      t.after(() => old.close());
      const projectOutPath = at.directory();
      const init = old.get(block.SandboxInit);
      const containerId = "old";
      await init.execute(init.validate({ containerId, imageName: at.imageName, projectOutPath }));
      const command = old.get(block.SandboxCommand);
      const { data } = await command.execute(
        command.validate({ containerId, executable: "touch", args: ["/workspace/a"] }),
      );
      assert.equal(data.exitCode, 0);
      const list = old.get(block.SandboxListDirectory);
      const listed = await list.execute(list.validate({ containerId, path: "/workspace" }));
      assert.deepEqual(
        listed.data.entries.map(({ name }) => name),
        ["a"],
      );
      const destroy = old.get(block.SandboxDestroy);
      const { data: destroyed } = await destroy.execute(destroy.validate({ containerId }));
      assert.deepEqual(destroyed, { containerId, removed: true });
    });
  });
}

/** Waits until a command has made the file `started`: file operations do not wait for commands. */
async function appears(manager: ContainerManagerService, containerId: string): Promise<void> {
  for (;;) {
    const call = { containerId, path: "/workspace/started" };
    if ((await manager.callTool<{ exists: boolean }>("sandbox_exists", call)).data.exists) return;
  }
}

/** The child of this process whose environment has this variable. */
function processWith(variable: string): number {
  const own = readFileSync(`/proc/self/task/${process.pid}/children`, "utf8").trim().split(" ");
  const found = own.find((pid) => readFileSync(`/proc/${pid}/environ`, "latin1").split("\0").includes(variable));
  assert.ok(found, `no child has ${variable}`);
  return Number(found);
}
