/** What the console's tests share: services of their own on the embedded engine, a browser, and pages that are watched. */
import assert from "node:assert/strict";
import { execFile, execFileSync, spawn } from "node:child_process";
import { createHash, X509Certificate } from "node:crypto";
import { once } from "node:events";
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer as createHttpServer } from "node:http";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import { promisify } from "node:util";
import { chromium } from "playwright-core";

const run = promisify(execFile);

export const ALL_SCOPES = ["executions:write", "executions:read", "sandboxes", "admin"];
export const USER_SCOPES = ["executions:write", "executions:read", "sandboxes"];

function required(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run scripts/clients console`);
  return value;
}

const binary = required("CLIENTS_TEST_BINARY");
const rootfs = required("CLIENTS_TEST_ROOTFS");
/** What is ended when the tests of a file have ended, the latest first. */
const ends = [];
const atEnd = (end) => ends.push(end);

/** Ends everything. */
export async function end() {
  for (const it of ends.splice(0).reverse()) await it();
}

// Pictures are made outside of a test.
if (process.env.NODE_TEST_CONTEXT) after(end);

/** Waits until `probe` gives something that is true, and returns that. */
export async function until(what, probe, timeout = 60_000) {
  const deadline = Date.now() + timeout;
  for (;;) {
    const value = await probe();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`${what}: not within ${timeout} ms`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** A service with a data directory of its own. */
export class Service {
  #directory = mkdtempSync(join(tmpdir(), "sandboxctl-console-"));
  #child;
  #listen = "127.0.0.1:0";
  #printed = "";
  #args;

  /** Where it listens. */
  url;
  data = join(this.#directory, "data");

  static async start(...args) {
    const service = new Service();
    service.#args = args;
    chmodSync(service.#directory, 0o700);
    // Scripts have files too, and commands a host to reach, so that pages have them to show.
    writeFileSync(
      join(service.#directory, "config.toml"),
      '[io]\nenabled = true\n[network]\nallow = ["example.org"]\n',
    );
    // A service does not start without a way to authenticate its callers.
    await service.token("nobody", ["executions:read"]);
    await service.resume();
    atEnd(async () => {
      await service.stop();
      rmSync(service.#directory, { recursive: true, force: true });
    });
    return service;
  }

  get #environment() {
    const { HOME, XDG_STATE_HOME, XDG_RUNTIME_DIR, ...others } = process.env;
    const own = { HOME: this.#directory, XDG_STATE_HOME: this.#directory, XDG_RUNTIME_DIR: this.#directory };
    return { ...others, ...own, SANDBOXCTL_CONFIG: join(this.#directory, "config.toml") };
  }

  /** What it has printed. */
  get log() {
    return this.#printed;
  }

  /** Starts it again, where it was. */
  async resume() {
    const place = this.#args.includes("--dev")
      ? ["--engine", "embedded"]
      : ["--engine", "embedded", "--rootfs", rootfs];
    const own = ["serve", ...place, "--listen", this.#listen, "--data-dir", this.data, ...this.#args];
    this.#child = spawn(binary, own, { env: this.#environment, stdio: ["ignore", "pipe", "pipe"] });
    this.#printed = "";
    const address = new Promise((resolve, reject) => {
      const listen = (piece) => {
        if (this.#printed.length < 1 << 20) this.#printed += piece;
        const found = /listening on (https?:\S+)/.exec(this.#printed);
        if (found) resolve(found[1]);
      };
      this.#child.stdout.setEncoding("utf8").on("data", listen);
      this.#child.stderr.setEncoding("utf8").on("data", listen);
      this.#child.on("exit", () => reject(new Error(`the service did not start: ${this.#printed}`)));
    });
    this.url = await address;
    this.#listen = new URL(this.url).host;
  }

  async stop() {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    this.#child.kill("SIGTERM");
    await once(this.#child, "exit");
  }

  /** A command of the program for this service, and what it prints. */
  async command(...args) {
    const { stdout } = await run(binary, args, { env: this.#environment, encoding: "utf8" });
    return stdout.trim();
  }

  /** A token of a subject. */
  token(subject, scopes = USER_SCOPES, ...flags) {
    const wanted = scopes.flatMap((scope) => ["--scope", scope]);
    return this.command("token", "create", "--data-dir", this.data, "--subject", subject, ...wanted, ...flags);
  }

  revoke(token) {
    return this.command("token", "revoke", "--data-dir", this.data, token);
  }

  /** Calls the API as any client does: the JSON of the answer, which must be no error. */
  async call(token, method, path, body) {
    const bytes = typeof body === "string" || body instanceof Uint8Array;
    const type = bytes ? "application/octet-stream" : "application/json";
    const headers = { Authorization: `Bearer ${token}`, ...(body === undefined ? {} : { "Content-Type": type }) };
    const answer = await fetch(this.url + path, { method, headers, body: bytes ? body : JSON.stringify(body) });
    const text = await answer.text();
    assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${text}`);
    return text && answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : text;
  }

  /** Runs a script or a command to its end. */
  execute(token, request) {
    return this.call(token, "POST", "/v1/executions?wait=60", request);
  }

  /**
   * Adds copies of an execution to the store of a stopped service, each a second older than the one before: thousands
   * of real ones would take minutes.
   */
  async multiply(id, count) {
    const program = `
import sqlite3, sys
path, id, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = sqlite3.connect(path)
columns = [row[1] for row in store.execute("PRAGMA table_info(executions)") if row[1] != "seq"]
values = {column: f"{column} - n * 1000" for column in ("created_at", "started_at", "ended_at")}
values["id"] = "printf('%s%05x', substr(id, 1, length(id) - 5), n)"
chosen = ", ".join(values.get(column, column) for column in columns)
store.execute(f"""WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
    INSERT OR IGNORE INTO executions ({", ".join(columns)}) SELECT {chosen} FROM executions, numbers WHERE id = ?""", (count, id))
store.commit()
print(store.execute("SELECT count(*) FROM executions").fetchone()[0])
`;
    const { stdout } = await run("python3", ["-c", program, join(this.data, "store.db"), id, String(count)]);
    return Number(stdout);
  }
}

/** A certificate of a host that no name server knows, its key, and the digest by which a browser takes it as valid. */
export function certificate(host) {
  const directory = mkdtempSync(join(tmpdir(), "sandboxctl-console-tls-"));
  atEnd(() => rmSync(directory, { recursive: true, force: true }));
  const [cert, key] = [join(directory, "cert.pem"), join(directory, "key.pem")];
  const of = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", `/CN=${host}`];
  const names = ["-addext", `subjectAltName=DNS:${host}`];
  execFileSync("openssl", ["req", "-x509", ...of, ...names, "-keyout", key, "-out", cert], { stdio: "pipe" });
  const publicKey = new X509Certificate(readFileSync(cert)).publicKey.export({ type: "spki", format: "der" });
  return { cert, key, digest: createHash("sha256").update(publicKey).digest("base64") };
}

let shared;

/** The browser of this file's tests, which is started with what the first of them needs. */
export async function browser(...args) {
  shared ??= chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args }).then((it) => {
    atEnd(() => it.close());
    return it;
  });
  return shared;
}

/** A browser profile of its own with one page, and everything that happened on it. */
export class Visitor {
  page;
  context;
  /** What no page may do: violations of its policy, dialogs, errors, requests elsewhere. */
  offences = [];
  #origin;

  static async come(url, { theme = "light", width = 1280, height = 800 } = {}) {
    const visitor = new Visitor();
    visitor.#origin = new URL(url).origin;
    const options = {
      colorScheme: theme,
      viewport: { width, height },
      baseURL: url,
      timezoneId: "UTC",
      locale: "en-GB",
    };
    visitor.context = await (await browser()).newContext(options);
    visitor.page = await visitor.context.newPage();
    await visitor.#watch(visitor.page);
    return visitor;
  }

  async #watch(page) {
    page.setDefaultTimeout(60_000);
    await page.exposeBinding("__offence", (_, text) => this.offences.push(text));
    await page.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (it) =>
        window.__offence(`policy: ${it.effectiveDirective} ${it.blockedURI} ${it.sample}`),
      );
    });
    page.on("dialog", (dialog) => {
      this.offences.push(`dialog: ${dialog.message()}`);
      return dialog.dismiss();
    });
    page.on("popup", (popup) => this.offences.push(`popup: ${popup.url()}`));
    page.on("pageerror", (error) => this.offences.push(`error: ${error.stack}`));
    page.on("request", (request) => {
      const url = request.url();
      const own = url.startsWith(`${this.#origin}/`) || url.startsWith(`blob:${this.#origin}/`);
      if (!own && !url.startsWith("data:image/")) this.offences.push(`request: ${url.slice(0, 200)}`);
    });
  }

  /** Opens a page of the console by its hash. */
  async open(hash = "") {
    await this.page.goto(`${this.#origin}/${hash && `#/${hash}`}`);
    return this.page;
  }

  /** Signs in as a user does, and waits for what follows. */
  async signIn(token, hash = "executions") {
    const page = await this.open(hash);
    await page.getByLabel(/token/i).fill(token);
    await page.getByRole("button", { name: /sign in/i }).click();
    await page.getByRole("navigation").first().waitFor();
    return page;
  }

  /** Fails if the page did what none may do. */
  assertInnocent() {
    assert.deepEqual(this.offences, []);
  }

  async leave() {
    await this.context.close();
  }
}

/** A visitor who has signed in, for the duration of `use`; at its end the page must have done nothing wrong. */
export async function visit(service, token, options, use) {
  const visitor = await Visitor.come(options.url ?? service.url, options);
  try {
    const page = token ? await visitor.signIn(token, options.hash) : await visitor.open(options.hash);
    await use(page, visitor);
    visitor.assertInnocent();
  } catch (error) {
    if (process.env.CONSOLE_TEST_PICTURES) {
      const name = `${process.env.CONSOLE_TEST_PICTURES}/${Date.now()}.png`;
      await visitor.page.screenshot({ path: name, fullPage: true });
      error.message += `\npicture: ${name}`;
    }
    error.message += `\nat: ${visitor.page.url()}\noffences: ${JSON.stringify(visitor.offences)}`;
    throw error;
  } finally {
    await visitor.leave();
  }
}

/** Opens the terminal of the sandbox that is shown, and waits for its shell. */
export async function openTerminal(page) {
  const screen = page.locator(".xterm-rows");
  await page.getByRole("tab", { name: /terminal/i }).click();
  const start = page.getByRole("button", { name: /(open|new|start).*(terminal|shell)/i });
  await start.or(screen).first().waitFor();
  if (await start.count()) await start.first().click();
  await until("a prompt", async () => /[#$] *$/.test((await screen.textContent()).trimEnd()));
  await page.locator(".xterm-helper-textarea").focus();
}

/** What a page of the console has in its storage of its session. */
export function proofOf(page) {
  return page.evaluate(() => localStorage.getItem("sandboxctl.session-proof"));
}

/** An answer to a request as the console sends it from this page: its status and its JSON. */
export function asPage(page, path, init = {}) {
  return page.evaluate(
    async ({ path, init }) => {
      const headers = { "Session-Proof": localStorage.getItem("sandboxctl.session-proof") ?? "" };
      if (init.body) headers["Content-Type"] = "application/json";
      const answer = await fetch(path, { ...init, headers });
      return { status: answer.status, body: await answer.json().catch(() => undefined) };
    },
    { path, init },
  );
}

/** A relay of TCP connections, which cuts those that there are, and may refuse new ones. */
export class Relay {
  #server;
  #sockets = new Set();
  #isOpen = true;
  url;

  static async to(url) {
    const relay = new Relay();
    const { hostname, port } = new URL(url);
    relay.#server = createServer((near) => {
      if (!relay.#isOpen) return near.destroy();
      const far = connect(Number(port), hostname);
      for (const [from, into] of [
        [near, far],
        [far, near],
      ]) {
        relay.#sockets.add(from);
        from.pipe(into);
        from.on("error", () => {});
        from.on("close", () => {
          relay.#sockets.delete(from);
          into.destroy();
        });
      }
    });
    relay.#server.listen(0, "127.0.0.1");
    await once(relay.#server, "listening");
    relay.url = `http://127.0.0.1:${relay.#server.address().port}`;
    atEnd(() => {
      relay.cut();
      relay.#server.close();
    });
    return relay;
  }

  /** Ends every connection. New ones are refused until `mend`. */
  cut() {
    this.#isOpen = false;
    for (const socket of this.#sockets) socket.destroy();
  }

  mend() {
    this.#isOpen = true;
  }
}

/** A server of pages at another port: to the browser the same site, and another origin. */
export async function strangerAt(pages, onRequest = () => {}) {
  const server = createHttpServer((request, answer) => {
    onRequest(request, answer);
    const page = pages[new URL(request.url, "http://x").pathname];
    answer.writeHead(page === undefined ? 404 : 200, { "Content-Type": "text/html; charset=utf-8" });
    answer.end(page ?? "");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  atEnd(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}`;
}
