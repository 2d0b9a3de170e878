/** The code interpreter, with the server of templates/e2b-code-interpreter replaced by its answers. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { errorOf, type SandboxError, Timeout } from "../src/core/errors.js";
import { type CodeValue, Interpreter } from "../src/interpreter.js";
import type { Ask, Transport } from "../src/transport/transport.js";

const END = { type: "end_of_execution" };

/** An interpreter whose port has these answers, one a request: pieces, or undefined where it is closed. */
function interpreter(...answers: (Uint8Array[] | undefined)[]) {
  const asked: Ask[] = [];
  const transport: Partial<Transport> = {
    async *port(id, port, ask) {
      assert.deepEqual([id, port], ["box", 49999]);
      asked.push(ask);
      const answer = answers.shift();
      if (answer === undefined) throw errorOf({ kind: "port_closed", message: "nothing listens on port 49999" });
      yield* answer;
    },
    async startProcess() {
      throw errorOf({ kind: "not_found", message: "there is no such program" });
    },
  };
  return { made: new Interpreter(() => transport as Transport, "box"), asked };
}

const lines = (...events: object[]) => Buffer.from(events.map((event) => `${JSON.stringify(event)}\n`).join(""));

test("output, values and errors are read from any pieces", async () => {
  const answer = lines(
    { type: "number_of_executions", execution_count: 3 },
    { type: "stdout", text: "é\n", timestamp: "now" },
    { type: "keepalive" },
    { type: "stderr", text: "odd", timestamp: "now" },
    { type: "result", png: "iVBO", text: "<Figure>", extra: {}, is_main_result: false },
    { type: "result", text: "42", is_main_result: true, extra: {} },
    { type: "error", name: "E", value: "v", traceback: "t" },
    END,
  );
  for (const size of [1, 7, answer.length]) {
    const pieces: Uint8Array[] = [];
    for (let at = 0; at < answer.length; at += size) pieces.push(answer.subarray(at, at + size));
    const heard: CodeValue[] = [];
    const run = await interpreter(pieces).made.runCode("x", { onValue: (value) => heard.push(value) });
    assert.deepEqual([run.stdout, run.stderr, run.text, run.count], ["é\n", "odd", "42", 3]);
    assert.deepEqual(run.values, heard);
    assert.deepEqual(run.values[0]?.formats, { png: "iVBO", text: "<Figure>" });
    assert.deepEqual([run.error?.name, run.error?.value, run.error?.traceback], ["E", "v", "t"]);
  }
});

test("a request names language, context and variables", async () => {
  const { made, asked } = interpreter([Buffer.from('{"id": "c1", "language": "bash", "cwd": "/tmp"}')], [lines(END)]);
  const context = await made.createContext({ language: "bash", cwd: "/tmp" });
  await made.runCode("x", { context, envs: { A: "1" } });
  assert.deepEqual(
    asked.map(({ method, path, json }) => [method, path, JSON.parse(JSON.stringify(json))]),
    [
      ["POST", "contexts", { language: "bash", cwd: "/tmp" }],
      ["POST", "execute", { code: "x", context_id: "c1", env_vars: { A: "1" } }],
    ],
  );
});

test("output without its end is an error, and so is an image without an interpreter", async () => {
  const cut = interpreter([lines({ type: "stdout", text: "1" })]).made.runCode("x");
  await assert.rejects(cut, /breaks off/);
  await assert.rejects(interpreter(undefined).made.runCode("x"), (error: SandboxError) => {
    assert.match(error.message, /does not start/);
    return /sandboxctl-e2b-code-interpreter/.test(error.hint ?? "");
  });
});

test("code that takes too long is a timeout", async () => {
  const transport: Partial<Transport> = {
    async *port(_id, _port, _ask, { signal }) {
      yield lines({ type: "keepalive" });
      await new Promise((_, reject) => signal?.addEventListener("abort", () => reject(signal.reason)));
    },
  };
  const run = new Interpreter(() => transport as Transport, "box").runCode("x", { timeoutMs: 20 });
  await assert.rejects(run, (error) => error instanceof Timeout && error.owner === "client");
});
