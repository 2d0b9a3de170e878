/** What a commit must not break: sign-in, the list, a run in the playground, and a guest whose names are markup. */
import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { Service, visit } from "./harness.mjs";
import { harmOf, MARKUP, NAMES, printing, TEXTS } from "./hostile.mjs";

describe("the console", () => {
  let service;
  let token;
  before(async () => {
    service = await Service.start();
    token = await service.token("ada");
  });

  test("a token signs in, stays out of reach of scripts, and lists what ran", async () => {
    await service.execute(token, { script: "return 1", metadata: { step: "first" } });
    await visit(service, token, {}, async (page, visitor) => {
      await page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
      await page.getByRole("main").getByText("ok").first().waitFor();
      const kept = await page.evaluate(() =>
        JSON.stringify([document.cookie, { ...localStorage }, { ...sessionStorage }]),
      );
      assert.ok(!kept.includes(token.slice(-20)) && !kept.includes("sandboxctl_session"), kept);
      const cookies = await visitor.context.cookies();
      assert.deepEqual(
        cookies.map(({ name, httpOnly, sameSite, path }) => ({ name, httpOnly, sameSite, path })),
        [{ name: "sandboxctl_session", httpOnly: true, sameSite: "Strict", path: "/" }],
      );
      assert.ok(!cookies[0].value.includes(token.slice(-20)), "the cookie shows the token");
      await page.reload();
      await page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
      await page.getByRole("button", { name: "Sign out" }).click();
      await page.getByLabel("Token").waitFor();
      assert.deepEqual(await visitor.context.cookies(), []);
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
      await editor.fill(
        'print("hello from the page")\nio.open("/io/made.txt", "w"):write("text of the file"):close()\nreturn { answer = 6 * 7 }',
      );
      await page.getByRole("button", { name: /^run/i }).click();
      await page.getByText("hello from the page").first().waitFor();
      await page.getByText("answer").first().waitFor();
      await page.getByText("42").first().waitFor();
      await page.getByText("made.txt").first().waitFor();
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
      await page.getByText(MARKUP[0]).first().waitFor();
      const tabs = page.getByRole("tab");
      for (let index = 0; index < (await tabs.count()); index += 1) {
        await tabs.nth(index).click();
        assert.deepEqual(await page.evaluate(harmOf), []);
      }
      await page.goto(`${service.url}/#/executions`);
      await page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
      assert.deepEqual(await page.evaluate(harmOf), []);
    });
  });
});
