import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { generateText, stepCountIs, tool } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { sandboxSession } from "../../src/ai.js";
import { Sandbox } from "../../src/index.js";
import { places } from "./places.js";

const text = (content: string) => new TextEncoder().encode(content);

async function collect(stream: ReadableStream<Uint8Array>): Promise<string> {
  return new Response(stream).text();
}

for (const { name, options } of await places()) {
  describe(`the session of the AI SDK: ${name}`, { concurrency: 4 }, () => {
    test("files are read, written, listed and deleted as the SDK says", async () => {
      await using s = await Sandbox.create(options);
      const session = sandboxSession(s);
      await session.writeTextFile({ path: "d/a.txt", content: "1\n2\n3\n4" });
      assert.equal(await session.readTextFile({ path: "d/a.txt", startLine: 2, endLine: 3 }), "2\n3");
      assert.equal(await session.readTextFile({ path: "d/a.txt", startLine: 4, endLine: 9 }), "4");
      await session.writeTextFile({ path: "u", content: "ä", encoding: "utf-16le" });
      assert.equal(await session.readTextFile({ path: "u", encoding: "utf-16le" }), "ä");
      await session.writeBinaryFile({ path: "b", content: new Uint8Array([255]) });
      assert.deepEqual(await session.readBinaryFile({ path: "b" }), new Uint8Array([255]));
      await session.writeFile({ path: "s", content: new Blob([text("stream")]).stream() });
      assert.equal(await collect((await session.readFile({ path: "s" })) as ReadableStream<Uint8Array>), "stream");
      for (const read of [session.readFile, session.readBinaryFile, session.readTextFile, session.stat]) {
        assert.equal(await read({ path: "none" }), null);
      }
      assert.deepEqual(await session.stat({ path: "b" }), { type: "file", size: 1 });
      assert.equal((await session.stat({ path: "d" }))?.type, "directory");
      assert.deepEqual(await session.listDirectory({ path: "d" }), [{ name: "a.txt", type: "file" }]);
      assert.equal(await session.listDirectory({ path: "none" }), null);
      await assert.rejects(async () => session.listDirectory({ path: "b" }), { kind: "not_a_directory" });
      assert.deepEqual(
        [await session.deleteFile({ path: "b" }), await session.deleteFile({ path: "b" })],
        [true, false],
      );
      await assert.rejects(async () => session.deleteFile({ path: "d" }), { kind: "is_directory" });
      await assert.rejects(async () => session.writeTextFile({ path: "d", content: "" }), { kind: "is_directory" });
    });

    test("commands run in the directory of the files, and a process is read and killed", async () => {
      await using s = await Sandbox.create(options);
      const session = sandboxSession(s);
      await session.writeTextFile({ path: "d/a.txt", content: "x" });
      const run = await session.run({
        command: "cat a.txt; echo $V >&2; exit 4",
        workingDirectory: "d",
        env: { V: "v" },
      });
      assert.deepEqual(run, { exitCode: 4, stdout: "x", stderr: "v\n" });
      const done = await session.spawn({ command: "echo out; echo err >&2" });
      assert.deepEqual(await Promise.all([collect(done.stdout), collect(done.stderr)]), ["out\n", "err\n"]);
      assert.deepEqual(await done.wait(), { exitCode: 0 });
      const running = await session.spawn({ command: "echo up; sleep 60" });
      const reader = running.stdout.getReader();
      assert.equal(new TextDecoder().decode((await reader.read()).value), "up\n");
      await running.kill();
      await running.kill();
      assert.deepEqual(await running.wait(), { exitCode: 143 });
      const abort = new AbortController();
      const aborted = await session.spawn({ command: "sleep 60", abortSignal: abort.signal });
      abort.abort(new Error("enough"));
      await assert.rejects(async () => aborted.wait(), /enough/);
      await assert.rejects(async () => session.spawn({ command: "cat", stdin: true }), { kind: "usage" });
    });

    test("a tool of an agent runs in the session that generateText was given", async () => {
      await using s = await Sandbox.create(options);
      const usage = {
        inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
        outputTokens: { total: 1, text: 1, reasoning: 0 },
      };
      let step = 0;
      const model = new MockLanguageModelV4({
        doGenerate: async () => {
          step += 1;
          return step === 1
            ? {
                content: [
                  {
                    type: "tool-call",
                    toolCallId: "1",
                    toolName: "shell",
                    input: JSON.stringify({ command: "echo 42" }),
                  },
                ],
                finishReason: { unified: "tool-calls", raw: undefined },
                usage,
                warnings: [],
              }
            : {
                content: [{ type: "text", text: "done" }],
                finishReason: { unified: "stop", raw: undefined },
                usage,
                warnings: [],
              };
        },
      });
      const { jsonSchema } = await import("ai");
      const shell = tool({
        inputSchema: jsonSchema<{ command: string }>({ type: "object", properties: { command: { type: "string" } } }),
        execute: async ({ command }, { experimental_sandbox: sandbox }) => sandbox?.run({ command }),
      });
      const result = await generateText({
        model,
        tools: { shell },
        prompt: "go",
        stopWhen: stepCountIs(3),
        experimental_sandbox: sandboxSession(s),
      });
      assert.equal(result.text, "done");
      const output = result.steps[0]?.toolResults[0]?.output;
      assert.deepEqual(output, { exitCode: 0, stdout: "42\n", stderr: "" });
    });
  });
}
