/** The table that the clients of all languages share: clients/conformance. */
import assert from "node:assert/strict";
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
import { bytes, type Call, call, camelName, given, isBytes, rows, snakeName } from "../table.js";
import { places } from "./places.js";

const ERRORS = new Map(
  [SandboxError, NotFound, Timeout, LimitExceeded, PolicyDenied, SandboxGone, ServerBusy].map((e) => [e.name, e]),
);

interface Step extends Call {
  gives?: unknown;
  fails?: { class: string; kind: string; [member: string]: unknown };
}
interface Case {
  name: string;
  sandbox?: object;
  steps: Step[];
}

const CASES = ["files", "errors", "executions", "processes"].flatMap((name) => rows<Case>(name));

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
    for (const { name, sandbox = {}, steps } of CASES) {
      test(name, async () => {
        await using s = await Sandbox.create({ ...options, ...(given(sandbox) as object) });
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
