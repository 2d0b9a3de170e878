/** The places that the live tests run at: each engine, on this machine and at a server. `scripts/clients` names them. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import type { SandboxOptions } from "../../src/index.js";

/** A place where sandboxes are, and what makes one with programs there. */
export interface Place {
  name: string;
  options: SandboxOptions;
}

function required(name: string): string {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run scripts/clients`);
  return value;
}

const binary = required("CLIENTS_TEST_BINARY");
const rootfs = required("CLIENTS_TEST_ROOTFS");
const image = required("CLIENTS_TEST_IMAGE");
const scratch = mkdtempSync(join(tmpdir(), "sandboxctl-live-"));
const servers: ChildProcess[] = [];
const users: string[] = [];

after(async () => {
  for (const server of servers) {
    server.kill("SIGTERM");
    if (server.exitCode === null && server.signalCode === null) await once(server, "exit");
  }
  for (const user of users) execFileSync(user, ["local", "stop"], { stdio: "ignore" });
  rmSync(scratch, { recursive: true, force: true });
});

/** A copy of the binary for a user of its own, whose service ends with the tests. */
function ofAnotherUser(): string {
  const directory = mkdtempSync(join(scratch, "user-"));
  const path = join(directory, "program");
  const variables = `XDG_RUNTIME_DIR='${directory}' XDG_STATE_HOME='${directory}'`;
  writeFileSync(path, `#!/bin/sh\n${variables} exec '${binary}' "$@"\n`);
  chmodSync(path, 0o755);
  users.push(path);
  return path;
}

/** A server of its own, its address, and a token for it. */
async function serve(engine: string, args: string[]): Promise<{ server: string; token: string }> {
  const data = mkdtempSync(join(scratch, "data-"));
  chmodSync(data, 0o700);
  const create = ["token", "create", "--data-dir", data, "--subject", "tests"];
  const scopes = ["executions:write", "executions:read", "sandboxes"].flatMap((scope) => ["--scope", scope]);
  const token = execFileSync(binary, [...create, ...scopes], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
  const all = ["serve", "--engine", engine, "--listen", "127.0.0.1:0", "--data-dir", data];
  const child = spawn(binary, [...all, ...args], { stdio: ["ignore", "pipe", "pipe"] });
  servers.push(child);
  return new Promise((resolve, reject) => {
    let printed = "";
    const listen = (piece: string) => {
      // Its log goes on; only the beginning is of interest.
      if (printed.length < 65_536) printed += piece;
      const address = /listening on (http:\S+)/.exec(printed)?.[1];
      if (address) resolve({ server: address, token: token.trim() });
    };
    child.stdout.setEncoding("utf8").on("data", listen);
    child.stderr.setEncoding("utf8").on("data", listen);
    child.on("exit", () => reject(new Error(`the server did not start: ${printed}`)));
  });
}

/** Every place, or those that `CLIENTS_TEST_PLACES` names, a semicolon between two. */
export async function places(): Promise<Place[]> {
  const make: Record<string, () => Promise<SandboxOptions>> = {
    // The embedded engine has no images to name.
    "local, embedded": async () => ({ binary: ofAnotherUser(), engine: "embedded", rootfs }),
    "local, docker": async () => ({ binary: ofAnotherUser(), engine: "docker", image }),
    "http, embedded": () => serve("embedded", ["--rootfs", rootfs]),
    "http, docker": async () => ({ ...(await serve("docker", ["--allowed-image", image])), image }),
  };
  const wanted = process.env.CLIENTS_TEST_PLACES?.split(";") ?? Object.keys(make);
  return Promise.all(
    wanted.map(async (name) => ({ name, options: await (make[name] as () => Promise<SandboxOptions>)() })),
  );
}
