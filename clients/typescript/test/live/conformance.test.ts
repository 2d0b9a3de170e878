/** The table that the clients of all languages share: clients/conformance. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";
import {
  LimitExceeded,
  NotFound,
  PolicyDenied,
  Sandbox,
  SandboxError,
  SandboxGone,
  ServerBusy,
  Timeout,
} from "../../src/index.js";
import { places } from "./places.js";

const ERRORS = new Map(
  [SandboxError, NotFound, Timeout, LimitExceeded, PolicyDenied, SandboxGone, ServerBusy].map((e) => [e.name, e]),
);

interface Step {
  call: string;
  with: Record<string, unknown>;
  gives?: unknown;
  fails?: { class: string; kind: string; [member: string]: unknown };
}
interface Case {
  name: string;
  steps: Step[];
}

const CASES = ["files", "errors", "executions"].flatMap(
  (name) =>
    JSON.parse(readFileSync(new URL(`../../../../conformance/${name}.json`, import.meta.url), "utf8")) as Case[],
);

const camelName = (name: string) => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
const snakeName = (name: string) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const isBytes = (value: unknown): value is { b64: string } =>
  typeof value === "object" && value !== null && Object.keys(value).join() === "b64";
const bytes = (value: { b64: string }) => new Uint8Array(Buffer.from(value.b64, "base64"));

/** Arguments of the table as this client has them. What a script or a command is given keeps its names. */
function given(value: unknown, renamed = true): unknown {
  if (isBytes(value)) return bytes(value);
  if (Array.isArray(value)) return value.map((each) => given(each, renamed));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, member]) => [
      renamed ? camelName(name) : name,
      given(member, renamed && !["args", "env", "secrets"].includes(name)),
    ]),
  );
}

/** Calls a method with the arguments of the table. */
async function call(s: Sandbox, step: Step): Promise<unknown> {
  const args = given(step.with) as Record<string, never>;
  const { path, from, to, content, old, new: replacement, pattern, pieces, script, command, ...options } = args;
  const { files } = s;
  switch (step.call) {
    case "files.write":
      return files.write(path as never, content as never, options);
    case "files.write_stream":
      return files.write(path as never, pieces as never);
    case "files.read_stream": {
      const read: Uint8Array[] = [];
      for await (const piece of files.readStream(path as never)) read.push(piece);
      return new Uint8Array(Buffer.concat(read));
    }
    case "files.edit":
      return files.edit(path as never, old as never, replacement as never, options);
    case "files.move":
      return files.move(from as never, to as never, options);
    case "files.copy":
      return files.copy(from as never, to as never, options);
    case "files.glob":
      return files.glob(pattern as never, { ...options, ...(path === undefined ? {} : { path }) });
    case "files.grep":
      return files.grep(pattern as never, { ...options, ...(path === undefined ? {} : { path }) });
    case "files.list":
      return files.list(path ?? ".", options);
    case "files.read":
    case "files.read_bytes":
    case "files.mkdir":
    case "files.remove":
    case "files.exists":
    case "files.stat": {
      const method = camelName(step.call.slice("files.".length)) as "read";
      return files[method](path as never, options);
    }
    case "run_script":
      return s.runScript(script as never, options);
    case "commands.run":
      return s.commands.run(command as never, options);
    case "close":
      return s.close();
    default:
      throw new Error(`the table has the call ${step.call}, which this client does not know`);
  }
}

/** Whether data has at least what is expected; a script's own result is compared as it is. */
function compare(actual: unknown, expected: unknown, at: string): void {
  if (isBytes(expected)) {
    assert.deepEqual(actual, bytes(expected), at);
  } else if (Array.isArray(expected)) {
    assert.ok(Array.isArray(actual), at);
    assert.equal(actual.length, expected.length, `${at}: ${JSON.stringify(actual)}`);
    for (const [i, each] of expected.entries()) compare(actual[i], each, `${at}[${i}]`);
  } else if (typeof expected === "object" && expected !== null) {
    assert.ok(typeof actual === "object" && actual !== null, at);
    const members = actual as Record<string, unknown>;
    for (const [name, member] of Object.entries(expected)) {
      const key = name in members ? name : camelName(name);
      assert.ok(key in members, `${at}: no ${snakeName(key)}`);
      compare(members[key], member, `${at}.${name}`);
    }
  } else {
    assert.deepEqual(actual ?? null, expected, at);
  }
}

for (const { name, options } of await places()) {
  describe(`conformance: ${name}`, { concurrency: 4 }, () => {
    for (const { name, steps } of CASES) {
      test(name, async () => {
        await using s = await Sandbox.create(options);
        for (const [i, step] of steps.entries()) {
          const at = `step ${i + 1}, ${step.call} ${JSON.stringify(step.with)}`;
          if (!step.fails) {
            compare(await call(s, step), step.gives, at);
            continue;
          }
          const { class: name, ...members } = step.fails;
          await assert.rejects(call(s, step), (error: Error) => {
            assert.equal(error.constructor, ERRORS.get(name), `${at}: ${error}`);
            compare(error, members, at);
            return true;
          });
        }
      });
    }
  });
}
