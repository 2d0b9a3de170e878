/** What a commit must not break: sign-in, the list, a run in the playground, and a guest whose names are markup. */
import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { proofOf, Service, visit } from "./harness.mjs";
import { assertHarmless, MARKUP, NAMES, printing, TEXTS } from "./hostile.mjs";

/** What is waited for is in none of its lines. */
const SCRIPT = `print("the sum is " .. 40 + 2)
local file = io.open("/io/made-" .. 3 + 4 .. ".txt", "w")
file:write("text")
file:close()
return { ["answer-" .. 1] = true }`;

describe("the console", { concurrency: 4 }, () => {
  let service;
  let token;
  before(async () => {
    service = await Service.start();
    token = await service.token("ada");
  });

  test("a token signs in, stays out of reach of scripts, and lists what ran", async () => {
    const ran = await service.execute(token, { script: "return 1", metadata: { step: "first" } });
    await visit(service, token, {}, async (page, visitor) => {
      await page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
      await page.locator(`main a[href*="${ran.id}"]`).first().waitFor();
      const kept = await page.evaluate(() =>
        JSON.stringify([document.cookie, { ...localStorage }, { ...sessionStorage }]),
      );
      assert.ok(!kept.includes(token.slice(-20)) && !kept.includes("sandboxctl_session"), kept);
      const cookies = await visitor.context.cookies();
      assert.deepEqual(
        cookies.map(({ name, httpOnly, sameSite, path }) => ({ name, httpOnly, sameSite, path })),
        [{ name: `sandboxctl_session_${new URL(service.url).port}`, httpOnly: true, sameSite: "Strict", path: "/" }],
      );
      assert.ok(!cookies[0].value.includes(token.slice(-20)), "the cookie shows the token");
      assert.ok(await proofOf(page));
      await page.reload();
      await page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
      await page.getByRole("button", { name: "Sign out" }).click();
      await page.getByLabel("Token").waitFor();
      assert.deepEqual(await visitor.context.cookies(), []);
      assert.equal(await proofOf(page), null);
    });
  });

  test("a wrong token is refused with a reason", async () => {
    await visit(service, undefined, {}, async (page) => {
      await page.getByLabel("Token").fill("sbx_wrong_token");
      await page.getByRole("button", { name: "Sign in" }).click();
      await page.getByRole("alert").waitFor();
      assert.match(await page.getByRole("alert").textContent(), /does not accept/);
    });
  });

  test("a script runs in the playground, and its output, result and files are shown", async () => {
    await visit(service, token, { hash: "playground" }, async (page) => {
      const editor = page.locator(".cm-content");
      await editor.waitFor();
      await editor.fill(SCRIPT);
      await page.getByRole("button", { name: "Run", exact: true }).click();
      await page.getByText("the sum is 42").first().waitFor();
      await page.getByRole("tab", { name: /result/i }).click();
      await page.getByText("answer-1").first().waitFor();
      await page.getByRole("tab", { name: /files/i }).click();
      await page.getByText("made-7.txt").first().waitFor();
    });
  });

  test("a guest's names, output and errors are text and nothing else", async () => {
    const lines = MARKUP.map((text) => `${printing(text)}; echo`);
    const names = NAMES.map((name) => `: > "$(${printing(name)})"`);
    const command = { shell: [...lines, ...names, "exit 3"].join("\n") };
    const ran = await service.execute(token, { command, metadata: { [MARKUP[0]]: TEXTS } });
    assert.equal(ran.status, "exit", JSON.stringify(ran).slice(0, 2000));
    assert.ok(ran.files_touched.length >= NAMES.length - 2, JSON.stringify(ran.files_touched));
    await visit(service, token, { hash: `executions/${ran.id}` }, async (page) => {
      await assertHarmless(page, { output: MARKUP[0], files: NAMES[0] });
      await page.goto(`${service.url}/#/executions`);
      await page.getByRole("main").locator(`a[href*="${ran.id}"]`).first().waitFor();
      await assertHarmless(page);
    });
  });
});
