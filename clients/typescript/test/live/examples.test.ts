import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { type Place, places } from "./places.js";

const all = await places();

/** Runs a program as its users do, in an empty directory, and returns what it prints. */
async function run(file: string, place: Place, args: string[], cwd: string): Promise<string> {
  const { server = "", token = "", image = "", binary, engine } = place.options;
  const env = {
    ...process.env,
    SERVER: server,
    SANDBOXCTL_TOKEN: token,
    IMAGE: image,
    ...(binary ? { SANDBOXCTL_BINARY: binary } : {}),
    ...(engine ? { SANDBOXCTL_ENGINE_KIND: engine } : {}),
  };
  return (await promisify(execFile)(process.execPath, [file, ...args], { cwd, env })).stdout;
}

const example = (name: string) => fileURLToPath(new URL(`../../examples/${name}.js`, import.meta.url));

/** The code of a page, without that of files. Node 20 does not know `await using`. */
function snippets(page: string): string {
  const text = readFileSync(new URL(`../../../../../${page}`, import.meta.url), "utf8");
  const blocks = [...text.matchAll(/(?<!-->\n)^```ts\n(.*?)^```/gms)];
  return blocks.map(([, code]) => code?.replace("await using", "const")).join("");
}

const PACKAGE = new URL("../../src/index.js", import.meta.url).href;

/** Runs the code of a page as one program, after what it takes for granted. */
async function runPage(page: string, place: Place, before: string): Promise<string> {
  const cwd = mkdtempSync(join(tmpdir(), "sandboxctl-page-"));
  try {
    const file = join(cwd, "page.mjs");
    writeFileSync(file, before + snippets(page).replace('from "sandboxctl"', `from "${PACKAGE}"`));
    return await run(file, place, [], cwd);
  } finally {
    rmSync(cwd, { recursive: true });
  }
}

const here = all.find(({ name }) => name === "local, embedded");
test("the snippets of the guide and of the READMEs do what they say", { skip: !here }, async () => {
  const place = here as Place;
  const before = `
    import { createReadStream, writeFileSync } from "node:fs";
    import { Sandbox } from "${PACKAGE}";
    writeFileSync("big", Buffer.alloc(10));
    const s = await Sandbox.create({ rootfs: ${JSON.stringify(place.options.rootfs)}, processes: "kept" });
  `;
  const said = "10\ncreate src\ncreate src/new.txt\n2\n1\nok 0 2\n1\n\ngot one\ngot two\n0\ntrue\ntrue\nbuild\ntrue\n";
  assert.equal(await runPage("docs/src/guides/typescript.md", place, before), said);
  for (const page of ["README.md", "clients/typescript/README.md"]) {
    assert.equal(await runPage(page, place, ""), "ok hi\n");
  }
});

for (const place of all) {
  test(`the examples of the guide do what they say: ${place.name}`, async () => {
    const cwd = mkdtempSync(join(tmpdir(), "sandboxctl-example-"));
    // It names no rootfs.
    if (place !== here) {
      const answer = "{ exitCode: 0, stdout: '42\\n', stderr: '' }\nIt is 42.\n";
      assert.equal(await run(example("ai"), place, [], cwd), answer);
    }
    // A server uses no directory of this machine.
    if (place.options.server === undefined) {
      const said = await run(example("quick-start"), place, place.options.image ? [place.options.image] : [], cwd);
      assert.match(said, /^ok \{ sum: 7, unit: 'EUR' \} \[ 'summed' \]\nnot_found missing\.txt: /);
      if (place.options.image) assert.match(said, /\n0 3\n$/);
      assert.deepEqual(readdirSync(join(cwd, "out")), ["data.csv"]);
    }
    rmSync(cwd, { recursive: true });
  });
}
