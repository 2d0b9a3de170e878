/** Whose session it is, when it ends, and that no page of another origin can use it. */
import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { ALL_SCOPES, asPage, proofOf, Service, strangerAt, USER_SCOPES, until, Visitor, visit } from "./harness.mjs";

/** The session on a loopback address is named by its port: services of one machine do not sign each other out. */
const COOKIE = "sandboxctl_session";
const cookieOf = (service) => `${COOKIE}_${new URL(service.url).port}`;

describe("sessions", () => {
  let service;
  let ada;
  let bob;
  before(async () => {
    service = await Service.start();
    [ada, bob] = await Promise.all([service.token("ada"), service.token("bob", ALL_SCOPES)]);
  });

  test("a subject sees its own; an administrator sees rows of others and nothing inside", async () => {
    const secret = await service.execute(ada, { script: "return 'only-ada-sees-this'", metadata: { of: "ada" } });
    const own = await service.execute(bob, { script: "return 2" });
    await visit(service, bob, {}, async (page) => {
      const main = page.getByRole("main");
      await main.locator(`a[href*="${own.id}"]`).first().waitFor();
      assert.equal(await main.locator(`a[href*="${secret.id}"]`).count(), 0);
      await page.goto(`${service.url}/#/executions/${secret.id}`);
      await page.getByRole("alert").first().waitFor();
      assert.ok(!(await page.content()).includes("only-ada-sees-this"));
      await page.goto(`${service.url}/#/executions?subject=*`);
      await main.getByText("ada").first().waitFor();
      assert.ok(!(await page.content()).includes("only-ada-sees-this"));
    });
    // Who is no administrator is not offered it, and gets nothing by asking.
    await visit(service, ada, { hash: "executions?subject=*" }, async (page) => {
      await page.getByRole("heading", { level: 1 }).waitFor();
      assert.ok(!(await page.content()).includes(own.id));
      assert.equal(await page.getByRole("link", { name: "Service" }).count(), 0);
    });
  });

  test("two subjects in one browser follow each other without a trace", async () => {
    const run = await service.execute(ada, { script: "print('trace-of-ada') return 'trace-of-ada'" });
    await visit(service, ada, { hash: `executions/${run.id}` }, async (page) => {
      await page.getByText("trace-of-ada").first().waitFor();
      await page.getByRole("button", { name: "Sign out" }).click();
      await page.getByLabel("Token").fill(bob);
      await page.getByRole("button", { name: "Sign in" }).click();
      await page.getByRole("navigation").first().waitFor();
      await page.getByText("bob").first().waitFor();
      assert.ok(!(await page.content()).includes("trace-of-ada"));
    });
  });

  test("who signs in after a session has ended finds no draft of the one before", async () => {
    const token = await service.token("dora");
    await visit(service, token, { hash: "playground" }, async (page) => {
      await page.locator(".cm-content").fill("-- draft-of-dora");
      await service.revoke(token);
      await page.getByRole("button", { name: "Run", exact: true }).click();
      await page.getByText(/session has ended/).waitFor();
      await page.getByLabel("Token").fill(bob);
      await page.getByRole("button", { name: "Sign in" }).click();
      await page.getByText("bob").first().waitFor();
      await page.getByRole("link", { name: "Playground" }).click();
      await page.locator(".cm-content").waitFor();
      assert.ok(!(await page.content()).includes("draft-of-dora"));
    });
  });

  for (const [what, end] of [
    ["revoked", (token) => service.revoke(token)],
    ["expired", () => new Promise((resolve) => setTimeout(resolve, 12_000))],
  ]) {
    test(`a session whose token is ${what} ends at the sign-in, and goes on where it was`, async () => {
      const flags = what === "expired" ? ["--expires", "12s"] : [];
      const token = await service.token("carol", USER_SCOPES, ...flags);
      const run = await service.execute(token, { script: "return 1" });
      await visit(service, token, {}, async (page, visitor) => {
        const row = page.locator(`main a[href*="${run.id}"]`).first();
        await row.waitFor();
        const [cookie] = await visitor.context.cookies();
        const proof = await proofOf(page);
        await end(token);
        // The page finds out by itself.
        await page.getByText(/session has ended/).waitFor();
        assert.ok(!(await page.content()).includes(run.id));
        const answer = await fetch(`${service.url}/v1/executions`, {
          headers: {
            Cookie: `${cookieOf(service)}=${cookie.value}`,
            "Sec-Fetch-Site": "same-origin",
            "Session-Proof": proof,
          },
        });
        assert.equal(answer.status, 401);
        await page.getByLabel("Token").fill(await service.token("carol"));
        await page.getByRole("button", { name: "Sign in" }).click();
        await row.waitFor();
      });
    });
  }

  test("a session that others planted is none", async () => {
    const thief = await Visitor.come(service.url);
    await thief.signIn(bob);
    const [planted] = await thief.context.cookies();
    await thief.leave();
    const victim = await Visitor.come(service.url);
    // Cookies do not tell ports apart: a page at another port of this host could have set it.
    await victim.context.addCookies([planted]);
    await victim.open("executions");
    await victim.page.getByLabel("Token").fill(ada);
    await victim.page.getByRole("button", { name: "Sign in" }).click();
    await victim.page.getByText("ada").first().waitFor();
    const cookies = (await victim.context.cookies()).filter(({ name }) => name === cookieOf(service));
    assert.equal(cookies.length, 1, "two sessions");
    assert.notEqual(cookies[0].value, planted.value);
    const subject = async () => (await asPage(victim.page, "/v1/session")).body?.subject;
    assert.equal(await subject(), "ada");
    // Nor does one count that is set for a part of the paths, which browsers send first: it takes nothing away.
    await victim.context.addCookies([
      { name: cookieOf(service), value: planted.value, domain: "127.0.0.1", path: "/v1" },
    ]);
    assert.equal(await subject(), "ada");
    await victim.page.reload();
    await victim.page.getByText("ada").first().waitFor();
    // A session made up, or changed in one place, is none.
    const sealed = cookies[0].value;
    const other = (at) => sealed.slice(0, at) + (sealed[at] === "A" ? "B" : "A") + sealed.slice(at + 1);
    const forged = ["x", "", sealed.slice(0, -2), sealed + sealed, other(2), other(sealed.length >> 1)];
    for (const value of forged) {
      await victim.context.clearCookies();
      await victim.context.addCookies([{ ...cookies[0], value }]);
      const { status } = await asPage(victim.page, "/v1/session");
      assert.equal(status, 401, `a session of ${value}`);
    }
    victim.assertInnocent();
    await victim.leave();
  });

  test("the link of serve --dev signs in once, and its code leaves the address", async () => {
    const dev = await Service.start("--dev");
    const link = await until("the link", () => /http:\S+#\/sign-in\?code=\S+/.exec(dev.log)?.[0]);
    const visitor = await Visitor.come(dev.url);
    await visitor.page.goto(link);
    await visitor.page.getByRole("navigation").first().waitFor();
    assert.ok(!visitor.page.url().includes("code"), visitor.page.url());
    visitor.assertInnocent();
    const second = await Visitor.come(dev.url);
    await second.page.goto(link);
    await second.page.getByText(/has been used/).waitFor();
    assert.deepEqual(await second.context.cookies(), []);
    await second.leave();
    // A signed-in user sees that, and goes on.
    await visitor.page.goto("about:blank");
    await visitor.page.goto(link);
    await visitor.page.getByText(/has been used/).waitFor();
    await visitor.page.getByRole("link", { name: /^Go on as/ }).click();
    await visitor.page.getByRole("navigation").first().waitFor();
    await visitor.leave();
    await dev.stop();
  });
});

/** What goes over the wire for a page, answers that the browser keeps from it included. */
async function wiretap(page) {
  const session = await page.context().newCDPSession(page);
  const requests = new Map();
  const of = (id) => {
    if (!requests.has(id)) requests.set(id, {});
    return requests.get(id);
  };
  session.on("Network.requestWillBeSent", ({ requestId, request: { method, url } }) =>
    Object.assign(of(requestId), { method, url }),
  );
  session.on("Network.requestWillBeSentExtraInfo", ({ requestId, headers }) =>
    Object.assign(of(requestId), { cookie: headers.Cookie ?? headers.cookie ?? "" }),
  );
  session.on("Network.responseReceivedExtraInfo", ({ requestId, statusCode }) =>
    Object.assign(of(requestId), { status: statusCode }),
  );
  await session.send("Network.enable");
  /** Those to an address that were answered. */
  return (url) => [...requests.values()].filter((it) => it.url?.startsWith(url) && it.status !== undefined);
}

describe("pages of others", () => {
  let service;
  let token;
  let kept;
  let run;
  before(async () => {
    service = await Service.start();
    token = await service.token("ada", ALL_SCOPES);
    run = await service.execute(token, { script: "return 'booty'" });
    kept = await service.call(token, "POST", "/v1/sandboxes", {
      name: "kept",
      spec: { processes: "kept", ports: "any" },
    });
    await service.call(token, "POST", `/v1/sandboxes/${kept.id}/processes`, {
      command: { shell: "sleep 600" },
      stdin: true,
    });
    await service.call(token, "PUT", `/v1/sandboxes/${kept.id}/files/a.txt`, "as it was");
  });

  /** Every route with its methods, for this sandbox, execution and process. */
  async function routes() {
    const document = await service.call(token, "GET", "/v1/openapi.json");
    const filled = (path) =>
      path
        .replace(/(?<=executions\/)\{id\}/, run.id)
        .replace(/(?<=sandboxes\/)\{id\}/, kept.id)
        .replace("{process}", "1")
        .replace("{port}", "8000")
        .replace("{path}", "a.txt")
        .replace("{name}", "none.js");
    const all = Object.entries(document.paths).flatMap(([path, methods]) =>
      Object.keys(methods).map((method) => ({ path: filled(path), method: method.toUpperCase() })),
    );
    assert.ok(all.length > 30 && all.every(({ path }) => !path.includes("{")), JSON.stringify(all));
    return [...all, { path: "/mcp", method: "POST" }];
  }

  /** What must not change. */
  async function state() {
    const executions = await service.call(token, "GET", "/v1/executions");
    const { sandboxes } = await service.call(token, "GET", "/v1/sandboxes");
    const { processes } = await service.call(token, "GET", `/v1/sandboxes/${kept.id}/processes`);
    const file = await service.call(token, "GET", `/v1/sandboxes/${kept.id}/files/a.txt`);
    const known = sandboxes.map(({ id, name, metadata, status, generation }) => [
      id,
      name,
      metadata,
      status,
      generation,
    ]);
    return JSON.stringify([
      executions.executions.map(({ id }) => id),
      known,
      processes.map(({ id, state }) => [id, state]),
      file,
    ]);
  }

  test("no route answers to a page at another port with the visitor's session", async () => {
    const visitor = await Visitor.come(service.url);
    await visitor.signIn(token);
    const before = await state();
    const stranger = await strangerAt({ "/": "<!doctype html><title>stranger</title>" });
    const page = await visitor.context.newPage();
    await page.goto(stranger);
    const answered = await wiretap(page);
    for (const { path, method } of await routes()) {
      const read = await page.evaluate(
        async ({ url, method }) => {
          const read = [];
          const bodies =
            method === "GET" ? [undefined] : ["{}", '{"script":"return 1","token":"x","ttl_ms":1,"spec":{}}'];
          for (const body of bodies) {
            // A simple request is sent without a question; one with JSON or another method is asked for first.
            for (const init of [
              { mode: "no-cors", method: method === "GET" ? "GET" : "POST" },
              { mode: "cors", method, headers: { "Content-Type": "application/json" } },
              { mode: "cors", method, headers: { "Content-Type": "text/plain" } },
            ]) {
              const options = { ...init, credentials: "include", ...(init.method === "GET" ? {} : { body }) };
              const answer = await fetch(url, { ...options, signal: AbortSignal.timeout(2000) }).catch(() => undefined);
              if (answer && answer.type !== "opaque") read.push(`${init.method} ${await answer.text()}`);
            }
          }
          return read;
        },
        { url: service.url + path, method },
      );
      assert.deepEqual(read, [], `${method} ${path} was read by a stranger`);
    }
    const sent = answered(service.url);
    assert.ok(
      sent.length > 100 && sent.some(({ cookie }) => cookie?.includes(COOKIE)),
      "no cookie was sent: nothing was tried",
    );
    const open = ["/healthz", "/readyz", "/docs", "/v1/openapi.json", "/.well-known/oauth-protected-resource"];
    for (const { method, url, status } of sent) {
      const { pathname } = new URL(url);
      const isOpen = method === "GET" && (pathname === "/" || open.some((path) => pathname.startsWith(path)));
      assert.ok(isOpen || status >= 400 || (method === "OPTIONS" && status === 204), `${method} ${url}: ${status}`);
    }
    assert.equal(await state(), before);
    await visitor.leave();
  });

  test("a form, a link, a picture, a script and a WebSocket of a stranger get nothing either", async () => {
    const visitor = await Visitor.come(service.url);
    await visitor.signIn(token);
    const before = await state();
    const form = (path, type) =>
      `<form method=post enctype="${type}" action="${service.url}${path}" target=_blank>
       <input name='{"script":"return 1","x":"' value='"}'><button id=go>go</button></form>`;
    const forms = {};
    for (const path of ["/v1/executions", "/v1/sandboxes", `/v1/sandboxes/${kept.id}/pause`, "/v1/session", "/mcp"]) {
      for (const type of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]) {
        forms[`/${Object.keys(forms).length}`] = form(path, type);
      }
    }
    const stranger = await strangerAt({ ...forms, "/": "<!doctype html><p>stranger" });
    const page = await visitor.context.newPage();
    for (const name of Object.keys(forms)) {
      await page.goto(stranger + name);
      const [opened, answer] = await Promise.all([
        visitor.context.waitForEvent("page"),
        visitor.context.waitForEvent("response", (it) => it.request().isNavigationRequest()),
        page.click("#go"),
      ]);
      assert.ok(answer.status() >= 400, `${forms[name]}: ${answer.status()}`);
      await opened.close();
    }
    await page.goto(stranger);
    const document = `/v1/executions/${run.id}`;
    const answered = await wiretap(page);
    await page.evaluate(async (url) => {
      for (const [name, member] of [
        ["img", "src"],
        ["script", "src"],
        ["link", "href"],
        ["iframe", "src"],
        ["video", "src"],
      ]) {
        const element = document.createElement(name);
        element.rel = "stylesheet";
        element[member] = `${url}?${name}`;
        document.body.append(element);
        await new Promise((resolve) => {
          element.onload = element.onerror = resolve;
          setTimeout(resolve, 1000);
        });
      }
    }, service.url + document);
    const seen = answered(service.url + document);
    assert.ok(seen.length >= 3 && seen.every(({ status }) => status === 401), JSON.stringify(seen));
    assert.ok(
      seen.some(({ cookie }) => cookie?.includes(COOKIE)),
      "no cookie was sent: nothing was tried",
    );
    const attach = `${service.url.replace("http", "ws")}/v1/sandboxes/${kept.id}/processes/1/attach`;
    const opened = await page.evaluate(
      (url) =>
        new Promise((resolve) => {
          const socket = new WebSocket(url, ["sandboxctl.process.1"]);
          socket.onopen = () => resolve("open");
          socket.onerror = () => resolve("refused");
        }),
      attach,
    );
    assert.equal(opened, "refused");
    // By a link of a stranger the visitor comes to a file or a document as if signed out.
    await page.setContent(`<a href="${service.url}${document}">go</a>`);
    const [answer] = await Promise.all([page.waitForResponse((it) => it.url().includes(run.id)), page.click("a")]);
    assert.equal(answer.status(), 401);
    assert.equal(await state(), before);
    // No one signs a visitor in as somebody else.
    const [cookie] = (await visitor.context.cookies()).filter(({ name }) => name === cookieOf(service));
    assert.ok(cookie);
    assert.equal((await asPage(visitor.page, "/v1/session")).body.subject, "ada");
    await visitor.leave();
  });

  test("a server at another port gets the cookie, and has no session by it", async () => {
    const visitor = await Visitor.come(service.url);
    await visitor.signIn(token);
    let got = "";
    let set;
    const stranger = await strangerAt({ "/": "<!doctype html><p>stranger" }, (request, answer) => {
      got = request.headers.cookie ?? "";
      if (set) answer.setHeader("Set-Cookie", set);
    });
    const page = await visitor.context.newPage();
    await page.goto(stranger);
    assert.ok(got.includes(`${cookieOf(service)}=`), "no cookie was sent: nothing was tried");
    // It speaks to the service as if it were a page of it.
    const as = { Cookie: got, "Sec-Fetch-Site": "same-origin", Origin: service.url };
    for (const proof of [{}, { "Session-Proof": "" }, { "Session-Proof": "0".repeat(32) }]) {
      const answer = await fetch(`${service.url}/v1/executions`, { headers: { ...as, ...proof } });
      assert.equal(answer.status, 401);
    }
    assert.equal(await page.evaluate(() => JSON.stringify({ ...localStorage })), "{}");
    // It plants a session of its own, over the visitor's and for deeper paths.
    const bob = await Visitor.come(service.url);
    await bob.signIn(await service.token("bob", ALL_SCOPES));
    const [{ name, value }] = await bob.context.cookies();
    await bob.leave();
    set = ["/", "/v1", "/v1/session", "/v1/executions"].map((path) => `${name}=${value}; Path=${path}; HttpOnly`);
    await page.goto(stranger);
    await visitor.open("executions");
    await visitor.page.reload();
    await visitor.page.getByLabel("Token").fill(token);
    await visitor.page.getByRole("button", { name: "Sign in" }).click();
    await visitor.page.getByText("ada").first().waitFor();
    await visitor.page.locator(`main a[href*="${run.id}"]`).first().waitFor();
    assert.equal((await asPage(visitor.page, "/v1/session")).body.subject, "ada");
    visitor.assertInnocent();
    await visitor.leave();
  });

  test("the console is shown in no frame", async () => {
    const visitor = await Visitor.come(service.url);
    await visitor.signIn(token);
    const paths = ["/", "/?x#/executions", "/assets/none", "/docs"];
    const frames = paths.map((path) => `<iframe src="${service.url}${path}"></iframe>`);
    const stranger = await strangerAt({
      "/": `<!doctype html>${frames.join("")}<object data="${service.url}/"></object>`,
    });
    const page = await visitor.context.newPage();
    await page.goto(stranger, { waitUntil: "load" });
    await until("the frames", () => page.frames().length >= paths.length + 1);
    for (const frame of page.frames().slice(1)) {
      await until(
        "the refusal of a frame",
        async () =>
          !(await frame.content().catch(() => "")).includes("sandboxctl") && !frame.url().startsWith(service.url),
      );
    }
    // A window that a stranger opens is none that it can look into or keep.
    const [popup, reachable] = await Promise.all([
      visitor.context.waitForEvent("page"),
      page.evaluate(async (url) => {
        const opened = window.open(url);
        await new Promise((resolve) => setTimeout(resolve, 1500));
        return !opened.closed;
      }, `${service.url}/`),
    ]);
    assert.equal(reachable, false, "the stranger keeps a handle of the console's window");
    await popup.close();
    await visitor.leave();
  });

  test("every answer of the console says what its page may do", async () => {
    for (const path of ["/", "/assets/none.js"]) {
      const answer = await fetch(service.url + path);
      const policy = answer.headers.get("content-security-policy") ?? "";
      const rules = [
        "default-src 'none'",
        "script-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "connect-src 'self'",
      ];
      if (answer.ok)
        for (const rule of rules) assert.ok(policy.split(/; */).includes(rule), `${path}: ${rule}: ${policy}`);
      assert.equal(answer.headers.get("x-content-type-options"), "nosniff", path);
    }
    const answer = await fetch(`${service.url}/`);
    assert.equal(answer.headers.get("x-frame-options"), "DENY");
    assert.equal(answer.headers.get("referrer-policy"), "no-referrer");
    assert.equal(answer.headers.get("cross-origin-opener-policy"), "same-origin");
    assert.equal(answer.headers.get("cache-control"), "no-store");
    const html = await answer.text();
    assert.ok(!/<script(?![^>]*\ssrc="\/assets\/)/.test(html) && !/\son\w+=/.test(html), html);
  });
});
