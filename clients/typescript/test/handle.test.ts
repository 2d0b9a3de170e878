import assert from "node:assert/strict";
import { test } from "node:test";
import type * as wire from "../src/core/wire.js";
import { CommandHandle } from "../src/sandbox.js";

const DOCUMENT = {
  schema: "sandboxctl.exec/1",
  status: "ok",
  exit_code: 0,
  stdout: "",
  stdout_truncated: false,
  stderr: "",
  stderr_truncated: false,
  files_touched: [],
  files_touched_truncated: false,
  error: null,
} as unknown as wire.ExecutionDocument;

/** A handle, and what its transport does to it. */
function started() {
  let end = (_: wire.ExecutionDocument) => {};
  let fail = (_: unknown) => {};
  let event = (_: wire.ExecutionEvent) => {};
  const handle = new CommandHandle(
    (_, options) => {
      event = options.onEvent as typeof event;
      return new Promise((resolve, reject) => {
        end = resolve;
        fail = reject;
        options.cancel?.addEventListener("abort", () => resolve({ ...DOCUMENT, status: "cancelled" }));
      });
    },
    "x",
    {},
  );
  let seq = 0;
  const say = (text: string) => {
    seq += 1;
    event({ seq, time: "", event: "output", stream: "stdout", text, encoding: "utf-8" });
  };
  return { handle, say, end: () => end(DOCUMENT), fail: (error: unknown) => fail(error) };
}

test("each reader of a handle gets all of its output, early or late", async () => {
  const { handle, say, end } = started();
  const read = async () => {
    const texts: string[] = [];
    for await (const event of handle) if (event.type === "stdout") texts.push(event.text);
    return texts;
  };
  const early = read();
  say("a");
  say("b");
  const middle = read();
  say("c");
  end();
  await handle.wait();
  assert.deepEqual(
    [await early, await middle, await read()],
    [
      ["a", "b", "c"],
      ["a", "b", "c"],
      ["a", "b", "c"],
    ],
  );
});

test("a handle keeps a bounded amount of output, and says where some is left out", async () => {
  const { handle, say, end } = started();
  const piece = "x".repeat(1 << 20);
  for (let i = 0; i < 200; i += 1) say(piece);
  end();
  let [heard, omitted, gaps] = [0, 0, 0];
  for await (const event of handle) {
    if (event.type === "stdout") heard += event.bytes.length;
    if (event.type !== "omitted") continue;
    gaps += 1;
    omitted += event.bytes ?? 0;
  }
  assert.equal(gaps, 1);
  assert.equal(heard + omitted, 200 << 20);
  assert.ok(heard > 10 << 20 && heard < 40 << 20, `${heard} bytes`);
});

test("a reader that falls behind in the middle learns how much it missed, and one that keeps up misses nothing", async () => {
  const { handle, say, end } = started();
  const piece = "x".repeat(1 << 20);
  const slow = handle[Symbol.asyncIterator]();
  say(piece);
  assert.equal((await slow.next()).value?.type, "stdout");
  const prompt = handle[Symbol.asyncIterator]();
  for (let i = 1; i < 50; i += 1) {
    say(piece);
    assert.equal((await prompt.next()).value?.type, "stdout");
  }
  end();
  let [heard, omitted] = [1, 0];
  for await (const event of slow) {
    if (event.type === "stdout") heard += 1;
    else if (event.type === "omitted") omitted += (event.bytes ?? 0) >> 20;
  }
  assert.ok(omitted > 0);
  assert.equal(heard + omitted, 50);
  assert.equal((await handle.wait()).missed, false);
});

test("a failure of the sandbox reaches waiters and readers, and needs neither", async () => {
  const { handle, fail } = started();
  fail(new Error("gone"));
  await assert.rejects(handle.wait(), /gone/);
  await assert.rejects(async () => {
    for await (const _ of handle) assert.fail();
  }, /gone/);
});

test("a handle that is cancelled has the result that says so", async () => {
  const { handle } = started();
  assert.equal((await handle.cancel()).status, "cancelled");
  assert.equal((await handle.cancel()).status, "cancelled");
});
