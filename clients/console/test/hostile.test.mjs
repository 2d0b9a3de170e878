/** A guest that is hostile in everything that it may choose: pages show it, and do nothing else. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { ALL_SCOPES, openTerminal, Service, until, visit } from "./harness.mjs";
import { assertHarmless, ESCAPES, harmOf, MARKUP, NAMES, printing, settled, TEXTS } from "./hostile.mjs";

describe("a hostile guest", () => {
  let service;
  let token;
  before(async () => {
    service = await Service.start();
    token = await service.token("<i data-harm>mallory", ALL_SCOPES);
  });
  after(async () => {
    const { sandboxes } = await service.call(token, "GET", "/v1/sandboxes");
    for (const { id } of sandboxes) await service.call(token, "DELETE", `/v1/sandboxes/${id}`);
  });

  test("what these tests look for is found if it is there", async () => {
    await visit(service, token, {}, async (page, visitor) => {
      await page.evaluate(
        (all) => {
          document.body.innerHTML = all.map((text) => `<p>${text}</p>`).join("");
        },
        TEXTS.filter((text) => !text.includes("refresh")),
      );
      await until("its request elsewhere", () =>
        visitor.offences.some((it) => it.startsWith("policy: img-src") || it.startsWith("policy: script-src")),
      );
      const found = (await page.evaluate(harmOf)).join("\n");
      for (const what of [
        "an element: <img",
        "a handler: <img",
        "an address: <a",
        "unseen U+202e",
        "unseen U+7",
        "iframe: ",
      ]) {
        assert.ok(found.includes(what), `${what}: ${found}`);
      }
      visitor.offences.length = 0;
    });
  });

  test("a command's output, names, metadata and arguments", async () => {
    const script = [...TEXTS, ...ESCAPES].map((text) => `${printing(text)}; echo; ${printing(text)} >&2`);
    const files = NAMES.map((name, index) => `mkdir -p d${index}; ${printing(TEXTS[index])} > "$(${printing(name)})"`);
    // Longer than a line for the shell may be.
    const inputs = { "attack.sh": [...script, ...files, `printf '\\a'; ${printing(MARKUP[0])}`, "exit 7"].join("\n") };
    const command = { shell: "sh /in/attack.sh", env: { X: MARKUP[0] } };
    const ran = await service.execute(token, { command, inputs, metadata: { [MARKUP[1]]: TEXTS, list: MARKUP } });
    assert.equal(ran.status, "exit", JSON.stringify(ran.error));
    await visit(service, token, { hash: `executions/${ran.id}` }, async (page) => {
      await assertHarmless(page, { output: MARKUP[0], files: NAMES[0], changes: NAMES[0] });
      await page.goto(`${service.url}/#/executions`);
      await page.getByRole("main").locator(`a[href*="${ran.id}"]`).first().waitFor();
      await assertHarmless(page);
    });
  });

  test("a script's log, error, traceback, value and result", async () => {
    const quoted = (text) =>
      `"${[...new TextEncoder().encode(text)].map((byte) => `\\${byte.toString().padStart(3, "0")}`).join("")}"`;
    const prints = [...TEXTS, ...ESCAPES].map((text) => `print(${quoted(text)}) warn(${quoted(text)})`).join("\n");
    const members = MARKUP.map((text) => `[${quoted(text)}] = ${quoted(text)}`);
    const value = `{ __proto__ = { polluted = true }, constructor = 1, toString = 2, ${members.join(", ")} }`;
    const scripts = [
      `${prints}\nreturn ${value}`,
      `${prints}\nerror(${value})`,
      `error(${quoted(TEXTS.join(" "))})`,
      `local function ${"f".repeat(200)}() error(${quoted(MARKUP[0])}) end ${"f".repeat(200)}()`,
      `this is no script ${MARKUP[0]}`,
    ];
    for (const script of scripts) {
      const ran = await service.execute(token, { script });
      await visit(service, token, { hash: `executions/${ran.id}` }, async (page) => {
        await page.getByRole("heading", { level: 1 }).waitFor();
        await assertHarmless(page);
        assert.equal(await page.evaluate(() => ({}).polluted), undefined);
      });
    }
  });

  test("previews of files that are pages, pictures and neither", async () => {
    const svg =
      '<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><script>alert(2)</script><a href="javascript:alert(3)"><text>svg-text</text></a></svg>';
    const files = {
      "page.html": `<!doctype html><script>alert(1)</script>${MARKUP.join("")}html-text`,
      "drawing.svg": svg,
      "polyglot.png": "\u0089PNG\r\n\u001a\n<script>alert(1)</script>",
      "liar.png": svg,
      "page.xhtml": `<html xmlns="http://www.w3.org/1999/xhtml"><script>alert(1)</script></html>`,
      "code.js": "alert(1)",
      "text.txt": TEXTS.join("\n"),
      "..%2f..%2fescape": "escape",
      "#fragment?query=1&x": "fragment-text",
    };
    const shown = { "page.html": /html-text/, "drawing.svg": /svg-text/, "#fragment?query=1&x": "fragment-text" };
    const writes = Object.entries(files).map(([name, text]) => `${printing(text)} > "$(${printing(name)})"`);
    const ran = await service.execute(token, { command: { shell: writes.join("\n") } });
    assert.equal(ran.status, "ok", JSON.stringify(ran));
    await visit(service, token, { hash: `executions/${ran.id}` }, async (page) => {
      await page.getByRole("tab", { name: /files/i }).click();
      for (const name of Object.keys(files)) {
        await page.getByRole("main").getByRole("button", { name, exact: true }).click();
        const dialog = page.getByRole("dialog");
        if (shown[name]) await dialog.getByText(shown[name]).first().waitFor();
        await settled(page);
        assert.deepEqual(await page.evaluate(harmOf), [], name);
        const pictures = await page.evaluate(() =>
          [...document.images].filter((it) => it.src.startsWith("blob:")).map((it) => it.naturalWidth),
        );
        assert.ok(
          pictures.every((width) => width === 0),
          `${name} is a picture`,
        );
        await page.keyboard.press("Escape");
        await dialog.waitFor({ state: "detached" });
      }
    });
  });

  test("a sandbox with hostile files, processes and metadata", async () => {
    const spec = { processes: "kept", ports: "any", env: { A: MARKUP[0] } };
    const sandbox = await service.call(token, "POST", "/v1/sandboxes", { spec, metadata: { [MARKUP[2]]: TEXTS } });
    const at = `/v1/sandboxes/${sandbox.id}`;
    const files = NAMES.map((name) => `mkdir -p "dir-$(${printing(name)})"; : > "$(${printing(name)})"`);
    await service.call(token, "POST", `${at}/executions?wait=60`, { command: { shell: files.join("\n") } });
    for (const [index, text] of MARKUP.entries()) {
      const shell = `# ${text}\n${printing(text)}; ${printing(ESCAPES[index % ESCAPES.length])}; exec sleep 600`;
      await service.call(token, "POST", `${at}/processes`, { command: { shell }, tag: `t${index}` });
    }
    await visit(service, token, { hash: `sandboxes/${sandbox.id}` }, async (page) => {
      await page.getByRole("heading", { level: 1 }).waitFor();
      await assertHarmless(page, { overview: MARKUP[2], processes: MARKUP[0], files: NAMES[0] });
      await page.goto(`${service.url}/#/sandboxes`);
      await page.getByRole("main").locator(`a[href*="${sandbox.id}"]`).first().waitFor();
      await assertHarmless(page);
      await page.goto(`${service.url}/#/service`);
      await page.getByRole("heading", { level: 1 }).waitFor();
      await assertHarmless(page);
    });
  });

  test("a terminal obeys no sequence that reaches beyond it", async () => {
    const sandbox = await service.call(token, "POST", "/v1/sandboxes", { spec: { processes: "kept" } });
    const escapes = [...ESCAPES, ...TEXTS].map((text) => `${printing(text)}; echo`);
    await service.call(token, "PUT", `/v1/sandboxes/${sandbox.id}/files/attack.sh`, `${escapes.join("\n")}\n`);
    await visit(service, token, { hash: `sandboxes/${sandbox.id}` }, async (page, visitor) => {
      await visitor.context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: service.url });
      await page.evaluate(() => navigator.clipboard.writeText("mine"));
      await openTerminal(page);
      const title = await page.title();
      await page.keyboard.type("sh attack.sh; printf '\\033c'; echo sur-$((1+1))-vived\n");
      await until("the end of the attack", async () =>
        (await page.locator(".xterm-rows").textContent()).includes("sur-2-vived"),
      );
      assert.equal(await page.title(), title);
      assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "mine");
      assert.deepEqual(await page.evaluate(harmOf), []);
      // Links of a guest are not followed.
      for (const link of await page
        .locator(".xterm-rows")
        .getByText(/link|other/)
        .all())
        await link.click({ force: true });
    });
  });

  test("what the service answers to hostile input is text too", async () => {
    await visit(service, token, { hash: `executions/${encodeURIComponent(MARKUP[0])}` }, async (page) => {
      await page.getByRole("alert").first().waitFor();
      await assertHarmless(page);
      for (const hash of [
        `sandboxes/${encodeURIComponent(MARKUP[2])}`,
        `${encodeURIComponent(MARKUP[1])}`,
        `executions?status=${encodeURIComponent(MARKUP[0])}&image=${encodeURIComponent(MARKUP[3])}`,
        `sign-in?return=${encodeURIComponent("javascript:alert(1)")}`,
        "sign-in?return=//evil.example",
        "%",
        "executions/%ff",
      ]) {
        await page.goto(`${service.url}/#/${hash}`);
        await page.getByRole("heading", { level: 1 }).or(page.getByRole("alert")).first().waitFor();
        await assertHarmless(page);
        assert.ok(page.url().startsWith(`${service.url}/#`), page.url());
      }
    });
  });
});
