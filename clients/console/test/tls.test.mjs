/** A session over TLS, at a host that is not this machine's: its cookie is one that no other host can set. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { asPage, browser, certificate, openTerminal, Service, Visitor } from "./harness.mjs";

const HOST = "sandbox.example";

test("a session over TLS is of its host alone, and serves the pages of it", async () => {
  const { cert, key, digest } = certificate(HOST);
  process.env.SANDBOXCTL_SERVER_ALLOWED_HOSTS = JSON.stringify([HOST]);
  const service = await Service.start("--tls-cert", cert, "--tls-key", key);
  const { port } = new URL(service.url);
  const url = `https://${HOST}:${port}`;
  await browser(`--ignore-certificate-errors-spki-list=${digest}`, `--host-resolver-rules=MAP ${HOST} 127.0.0.1`);
  const visitor = await Visitor.come(url);
  const page = await visitor.signIn(await service.token("ada"), "playground");
  const [cookie, ...others] = await visitor.context.cookies();
  const { name, httpOnly, secure, sameSite, path, domain } = cookie;
  assert.deepEqual(
    { name, httpOnly, secure, sameSite, path, domain, others },
    {
      name: "__Host-sandboxctl_session",
      httpOnly: true,
      secure: true,
      sameSite: "Strict",
      path: "/",
      domain: HOST,
      others: [],
    },
  );
  await page.locator(".cm-content").fill('return "over " .. "TLS"');
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.getByRole("tab", { name: /result/i }).click();
  await page.getByText("over TLS").first().waitFor();
  // A WebSocket has the session too.
  const { body: sandbox } = await asPage(page, "/v1/sandboxes", {
    method: "POST",
    body: JSON.stringify({ spec: { processes: "kept" } }),
  });
  await page.goto(`${url}/#/sandboxes/${sandbox.id}`);
  await openTerminal(page);
  assert.equal((await asPage(page, `/v1/sandboxes/${sandbox.id}`, { method: "DELETE" })).status, 204);
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Token").waitFor();
  assert.deepEqual(await visitor.context.cookies(), []);
  visitor.assertInnocent();
  await visitor.leave();
});
