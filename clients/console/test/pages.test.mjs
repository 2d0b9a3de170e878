/** The main job of each page, at a real service. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { before, describe, test } from "node:test";
import { ALL_SCOPES, openTerminal, Service, until, visit } from "./harness.mjs";

describe("pages", () => {
  let service;
  let token;
  before(async () => {
    service = await Service.start();
    token = await service.token("ada", ALL_SCOPES);
  });
  const main = (page) => page.getByRole("main");
  const tab = (page, name) => main(page).getByRole("tab", { name }).click();
  const row = (page, id) => main(page).locator(`a[href*="${id}"]`).first();
  /** The text of a file that the page gives to be saved. */
  async function saved(page, act) {
    const [download] = await Promise.all([page.waitForEvent("download"), act()]);
    return { name: download.suggestedFilename(), text: readFileSync(await download.path(), "utf8") };
  }

  test("executions: the list is live, filters, and leads to a page", async () => {
    const failed = await service.execute(token, { command: { shell: "exit 3" } });
    await visit(service, token, {}, async (page) => {
      await row(page, failed.id).waitFor();
      const later = await service.execute(token, { script: "return 1" });
      await row(page, later.id).waitFor();
      await page.getByLabel("Kind").selectOption("command");
      await row(page, later.id).waitFor({ state: "detached" });
      await row(page, failed.id).waitFor();
      await page.getByLabel("Status").selectOption("ok");
      await row(page, failed.id).waitFor({ state: "detached" });
      // A filter is a part of the address.
      await page.reload();
      await page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
      assert.equal(await page.getByLabel("Kind").inputValue(), "command");
      await page.getByLabel("Kind").selectOption({ label: "any" });
      await row(page, later.id).click();
      await page.waitForURL(new RegExp(later.id));
    });
  });

  test("an execution: evidence, output, result, files, changes, limits, refused hosts and the same request", async () => {
    const shell = `printf '\\033[31mred\\033[0m\\n'; echo err >&2; echo content-7 > kept.txt
      printf 'GET http://refused.example.net/ HTTP/1.0\\r\\n\\r\\n' | nc 127.0.0.1 3128 >/dev/null; exit 4`;
    const request = { command: { shell }, network: { allow: ["example.org"] }, metadata: { branch: "main" } };
    const ran = await service.execute(token, request);
    await visit(service, token, { hash: `executions/${ran.id}` }, async (page) => {
      await page
        .getByText(/code 4/)
        .first()
        .waitFor();
      const red = page.getByText("red", { exact: true }).first();
      await red.waitFor();
      const colour = await red.evaluate((it) => getComputedStyle(it).color);
      assert.notEqual(colour, await page.evaluate(() => getComputedStyle(document.body).color));
      await page.getByText("err", { exact: true }).first().waitFor();
      await tab(page, "Files");
      await page.getByText("kept.txt").first().click();
      await page.getByText("content-7").first().waitFor();
      const { name, text } = await saved(page, () =>
        page.getByRole("button", { name: "Download", exact: true }).last().click(),
      );
      assert.deepEqual([name, text], ["kept.txt", "content-7\n"]);
      await page.keyboard.press("Escape");
      await tab(page, "Changes");
      await main(page).getByText("kept.txt").first().waitFor();
      await tab(page, /limits/i);
      await main(page)
        .getByText(/memory/i)
        .first()
        .waitFor();
      assert.ok((await main(page).locator("meter, progress, [role=meter], [role=progressbar]").count()) > 2);
      await tab(page, /network/i);
      await main(page).getByText("refused.example.net").first().waitFor();
      await tab(page, /details/i);
      for (const line of ["curl", "sandboxctl"]) await main(page).getByText(new RegExp(line)).first().waitFor();
    });
    const returned = await service.execute(token, { script: "return { tree = { leaf = 'leaf-' .. 42 } }" });
    await visit(service, token, { hash: `executions/${returned.id}` }, async (page) => {
      await tab(page, "Result");
      await main(page).getByText("leaf-42").first().waitFor();
    });
  });

  test("an execution that runs: its output as it comes, and its cancellation", async () => {
    const command = { shell: "echo begun-$((3+4)); sleep 600" };
    const { id } = await service.call(token, "POST", "/v1/executions", { command });
    await visit(service, token, { hash: `executions/${id}` }, async (page) => {
      await page.getByText("begun-7").first().waitFor();
      await page.getByRole("button", { name: /^cancel/i }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Cancel execution" }).click();
      await until(
        "the end",
        async () => (await service.call(token, "GET", `/v1/executions/${id}`)).status === "cancelled",
      );
      await page.getByText("cancelled").first().waitFor();
    });
  });

  test("the playground: an error is shown in its place, a command has an input, and a run is repeated", async () => {
    await visit(service, token, { hash: "playground" }, async (page) => {
      await page.locator(".cm-content").fill("local x = 1\nlocal = 2");
      await page.locator(".cm-lintRange-error, .cm-lint-marker-error").first().waitFor();
      await page.locator(".cm-content").fill("return 'value-' .. (args.n + 1)");
      await page.getByLabel("Arguments (JSON)").fill('{"n": 41}');
      await page.getByRole("button", { name: "Run", exact: true }).click();
      await tab(page, "Result");
      await page.getByText("value-42").first().waitFor();
      await tab(page, "Command");
      await page.getByLabel(/command line/i).fill("wc -c < /in/input.txt; cat /in/input.txt");
      await page
        .locator("input[type=file]")
        .setInputFiles({ name: "input.txt", mimeType: "text/plain", buffer: Buffer.from("input-text") });
      await page.getByRole("button", { name: "Run", exact: true }).click();
      await page.getByText("input-text").first().waitFor();
      await page.getByRole("link", { name: "Open its page" }).click();
      const first = page.url();
      await page.getByRole("button", { name: "Run again" }).click();
      await until("another execution", () => page.url() !== first);
      await page.getByText("input-text").first().waitFor();
    });
  });

  test("what others sent is run again too, unless it had a secret", async () => {
    const { id: sandbox } = await service.call(token, "POST", "/v1/sandboxes", { spec: {} });
    const script = "return { sent = args.by }";
    const sent = await service.execute(token, { script, args: { by: "another" } });
    const inside = await service.call(token, "POST", `/v1/sandboxes/${sandbox}/executions`, { script });
    const secret = { script: "return 1", secrets: { KEY: "tajomstvo" } };
    const { id: hidden } = await service.execute(token, secret);
    await visit(service, token, { hash: `executions/${sent.id}/` }, async (page) => {
      const again = page.getByRole("button", { name: "Run again" });
      for (const [id, place] of [
        [sent.id, "/v1/executions?wait=60"],
        [inside.id, `/v1/sandboxes/${sandbox}/executions?wait=60`],
      ]) {
        await page.goto(`${service.url}/#/executions/${id}?tab=details`);
        await page.getByText(place).first().waitFor();
        await again.click();
        await until("another execution", () => !page.url().includes(id));
        await page.getByText("script returned").or(page.getByText("ok")).first().waitFor();
        const { executions } = await service.call(token, "GET", "/v1/executions?limit=1");
        assert.equal(executions[0].sandbox, id === sent.id ? null : sandbox);
      }
      await page.goto(`${service.url}/#/executions/${hidden}`);
      await page.getByRole("button", { name: "Open in the playground" }).waitFor();
      assert.equal(await again.count(), 0);
    });
    const document = JSON.stringify(await service.call(token, "GET", `/v1/executions/${hidden}`));
    assert.ok(!document.includes("tajomstvo") && !document.includes('"request"'), document);
    await service.call(token, "DELETE", `/v1/sandboxes/${sandbox}`);
  });

  test("a sandbox: created, entered, filled, paused, extended and deleted", async () => {
    await visit(service, token, { hash: "sandboxes" }, async (page) => {
      await page.getByRole("main").getByText("New sandbox").first().click();
      await page.getByLabel("Name", { exact: true }).fill("made-here");
      await page.getByRole("button", { name: "Create", exact: true }).click();
      await page.getByRole("heading", { level: 1, name: "made-here" }).waitFor();
      const { sandboxes } = await service.call(token, "GET", "/v1/sandboxes?name=made-here");
      const at = `/v1/sandboxes/${sandboxes[0].id}`;

      await openTerminal(page);
      await page.keyboard.type("echo typed-$((40+2)) | tee typed.txt; stty size\n");
      const screen = page.locator(".xterm-rows");
      await until("what was typed", async () => (await screen.textContent()).includes("typed-42"));
      const size = async () =>
        /(\d+) (\d+)\s*~ #\s*$/
          .exec((await screen.textContent()).replaceAll("\u00a0", " "))
          ?.slice(1)
          .join();
      const before = await until("the size", size);
      await page.setViewportSize({ width: 800, height: 700 });
      await until("another size", async () => {
        await page.keyboard.type("clear; stty size\n");
        // The prompt is back when it has answered: what is read before that is half of a line.
        return (await until("its answer", size)) !== before;
      });
      await page.setViewportSize({ width: 1280, height: 800 });

      await tab(page, "Files");
      await page.getByText("typed.txt").first().click();
      await page.getByText("typed-42").first().waitFor();
      const { text } = await saved(page, () =>
        page
          .getByRole("main")
          .getByRole("link", { name: /^download/i })
          .or(page.getByRole("main").getByRole("button", { name: /^download/i }))
          .first()
          .click(),
      );
      assert.equal(text, "typed-42\n");
      await page.getByText("/io/").first().click();
      await page
        .locator("input[type=file]")
        .first()
        .setInputFiles({ name: "up.txt", mimeType: "text/plain", buffer: Buffer.from("uploaded") });
      await until(
        "the upload",
        async () => (await service.call(token, "GET", `${at}/files/up.txt`).catch(() => "")) === "uploaded",
      );
      await page.getByText("up.txt").first().waitFor();

      await tab(page, "Processes");
      await page.getByRole("button", { name: "Start a process" }).click();
      const form = page.getByRole("dialog").or(main(page).locator("form")).last();
      await form
        .getByLabel(/command|shell line/i)
        .first()
        .fill("echo pro-$((6*7)); sleep 600");
      await form.getByRole("button", { name: /start/i }).last().click();
      await page.getByText("pro-42").first().waitFor();
      await page.getByRole("button", { name: "End process" }).click();
      await page.getByText("ended").first().waitFor();

      await page.getByRole("button", { name: "Pause" }).click();
      await page.getByText("paused").first().waitFor();
      await page.getByRole("button", { name: "Resume", exact: true }).click();
      await until("the sandbox", async () => (await service.call(token, "GET", at)).status === "ready");
      const { expires_at: end } = await service.call(token, "GET", at);
      await page.getByRole("button", { name: "Extend" }).click();
      await page
        .getByRole("dialog")
        .getByLabel(/lifetime/i)
        .fill("3h");
      await page.getByRole("dialog").getByRole("button", { name: "Extend" }).click();
      await until("a later end", async () => (await service.call(token, "GET", at)).expires_at > end);
      await page.getByRole("button", { name: "Delete", exact: true }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
      await page.getByRole("heading", { level: 1, name: "Sandboxes" }).waitFor();
      assert.deepEqual((await service.call(token, "GET", "/v1/sandboxes?name=made-here")).sandboxes, []);
    });
  });

  test("ports and files are followed, and wake no sandbox that is paused meanwhile", async () => {
    const spec = { processes: "kept", ports: "any" };
    const { id } = await service.call(token, "POST", "/v1/sandboxes", { spec });
    const at = `/v1/sandboxes/${id}`;
    await service.call(token, "PUT", `${at}/files/first.txt`, "first");
    await visit(service, token, { hash: `sandboxes/${id}/ports` }, async (page) => {
      await page.getByText("Nothing listens").waitFor();
      const command = { shell: "httpd -f -p 8123 -h /" };
      await service.call(token, "POST", `${at}/processes`, { command });
      await page.getByText("8123").first().waitFor();
      await tab(page, "Files");
      await page.getByText("first.txt").first().click();
      await page.getByText("first", { exact: true }).first().waitFor();
      await service.call(token, "PUT", `${at}/files/later.txt`, "later");
      await page.getByText("later.txt").first().waitFor();
      await service.call(token, "PUT", `${at}/files/first.txt`, "another");
      await page.getByText("another").first().waitFor();
      await page.getByRole("button", { name: "Pause" }).click();
      await page.getByText("paused").first().waitFor();
      await page.waitForTimeout(7000);
      assert.equal((await service.call(token, "GET", at)).status, "paused");
    });
    await service.call(token, "DELETE", at);
  });

  test("the service: what it does now, by subject", async () => {
    const other = await service.token("grace");
    await service.execute(other, { script: "return 1" });
    await visit(service, token, { hash: "service" }, async (page) => {
      for (const text of ["embedded", "grace", "Queue", "Running"]) await main(page).getByText(text).first().waitFor();
    });
    await visit(service, other, { hash: "service" }, async (page) => {
      await main(page)
        .getByText(/scope admin/)
        .waitFor();
    });
  });

  test("the API: every route is there and is found by its words", async () => {
    const document = await service.call(token, "GET", "/v1/openapi.json");
    const count = Object.values(document.paths).flatMap(Object.keys).length;
    await visit(service, token, { hash: "reference" }, async (page) => {
      await main(page).getByText(`${count} routes`).waitFor();
      await page.getByLabel("Filter").fill("resize");
      await main(page)
        .getByText(/^\d+ of \d+ routes/)
        .waitFor();
      await main(page).getByText("/v1/sandboxes/{id}/processes/{process}/resize").first().click();
      await main(page).getByText("cols").first().waitFor();
    });
    const moved = await fetch(`${service.url}/docs`, { redirect: "manual" });
    assert.deepEqual([moved.status, moved.headers.get("location")], [308, "/#/reference"]);
  });

  test("the theme is chosen, and kept", async () => {
    await visit(service, token, {}, async (page) => {
      const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      const light = await background();
      await page.getByLabel("Theme").selectOption("dark");
      await until("the dark theme", async () => (await background()) !== light);
      await page.reload();
      await page.getByRole("heading", { level: 1 }).waitFor();
      assert.notEqual(await background(), light);
    });
  });
});
