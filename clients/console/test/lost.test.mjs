/** Connections are lost and come back: pages go on where they were, and miss nothing. */
import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { openTerminal, Relay, Service, until, visit } from "./harness.mjs";

describe("lost connections", () => {
  let service;
  let token;
  before(async () => {
    service = await Service.start();
    token = await service.token("ada");
  });

  test("the output of an execution is resumed, each line once", async () => {
    const relay = await Relay.to(service.url);
    const command = { shell: "n=0; while [ $n -lt 90 ]; do n=$((n+1)); echo tick-$n.; sleep 0.1; done" };
    const { id } = await service.call(token, "POST", "/v1/executions", { command });
    await visit(service, token, { url: relay.url, hash: `executions/${id}` }, async (page, visitor) => {
      await page
        .getByText(/tick-\d+\./)
        .first()
        .waitFor();
      relay.cut();
      // It says so, and does not give up.
      await page
        .getByText(/reconnect|lost|no connection/i)
        .first()
        .waitFor();
      await service.call(token, "GET", `/v1/executions/${id}?wait=30`);
      relay.mend();
      await page.getByText("tick-90.").waitFor();
      // The page shows what is in view of it; a copy has all.
      await visitor.context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: relay.url });
      await page.getByRole("tabpanel").getByRole("button", { name: "Copy" }).click();
      const text = await until("the copy", () => page.evaluate(() => navigator.clipboard.readText()));
      const ticks = [...text.matchAll(/tick-(\d+)\./g)].map(([, number]) => Number(number));
      assert.deepEqual(
        ticks,
        Array.from({ length: 90 }, (_, index) => index + 1),
      );
      await page
        .getByText(/\bok\b/i)
        .first()
        .waitFor();
    });
  });

  test("a terminal goes on, with all that was printed meanwhile", async () => {
    const relay = await Relay.to(service.url);
    const sandbox = await service.call(token, "POST", "/v1/sandboxes", { spec: { processes: "kept" } });
    await visit(service, token, { url: relay.url, hash: `sandboxes/${sandbox.id}` }, async (page) => {
      await openTerminal(page);
      const screen = page.locator(".xterm-rows");
      await page.keyboard.type("(sleep 2; echo while-$((40+2))-away) & echo begin-$((20+1))\n");
      await until("the shell's answer", async () => (await screen.textContent()).includes("begin-21"));
      relay.cut();
      await page
        .getByText(/reconnect|lost|no connection/i)
        .first()
        .waitFor();
      await new Promise((resolve) => setTimeout(resolve, 2500));
      relay.mend();
      await until("what was printed meanwhile", async () => (await screen.textContent()).includes("while-42-away"));
      await page.keyboard.type("echo still-$((60+6))\n");
      await until("the shell after it", async () => (await screen.textContent()).includes("still-66"));
      const text = await screen.textContent();
      assert.equal(text.split("begin-21").length, 2, text);
    });
    await service.call(token, "DELETE", `/v1/sandboxes/${sandbox.id}`);
  });

  test("a service that starts again is found again", async () => {
    await visit(service, token, {}, async (page) => {
      await page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
      await service.stop();
      await page
        .getByRole("alert")
        .or(page.getByText(/reconnect|cannot be reached/i))
        .first()
        .waitFor();
      await service.resume();
      const { id } = await service.execute(token, { script: "return 'after the restart'" });
      await page.locator(`a[href*="${id}"]`).first().waitFor({ timeout: 30_000 });
    });
  });
});
