// What programs with E2B's code interpreter do, at sandboxctl serve: scripts/e2b-suite --code-interpreter --lang js.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";

let sandbox;
before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 900_000 });
});
after(() => sandbox?.kill());

test("names are kept and the last value is the result", async () => {
  await sandbox.runCode("x = 40");
  const ran = await sandbox.runCode("print('counted'); x + 2");
  assert.deepEqual([ran.text, ran.logs.stdout], ["42", ["counted\n"]]);
  assert.equal((await sandbox.runCode("1 / 0")).error.name, "ZeroDivisionError");
});

test("a figure is a PNG", async () => {
  const ran = await sandbox.runCode("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()");
  assert.equal(Buffer.from(ran.results[0].png, "base64").subarray(1, 4).toString(), "PNG");
});
