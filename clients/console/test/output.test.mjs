/** The output of a guest as rows, without a browser. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "vite";

test("lines are kept after more progress than is kept", async () => {
  const entry = fileURLToPath(new URL("../src/lib/ansi.ts", import.meta.url));
  const lib = { entry, formats: ["es"] };
  const [{ output }] = await build({ configFile: false, logLevel: "error", build: { write: false, lib } });
  const { OutputBuffer } = await import(`data:text/javascript,${encodeURIComponent(output[0].code)}`);
  globalThis.window = { setTimeout: () => 1 };
  const buffer = new OutputBuffer();
  const progress = `${"#".repeat(400)}\r`.repeat(1000);
  for (let i = 0; i < 50; i += 1) buffer.push(progress);
  for (const line of ["\n", "first\r\n", "second\r\n"]) buffer.push(line);
  assert.equal(buffer.dropped, 0);
  assert.deepEqual(
    buffer.rows.slice(1).map(({ text }) => text),
    ["first", "second"],
  );
});
