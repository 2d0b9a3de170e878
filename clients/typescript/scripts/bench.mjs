// Measures what a call costs beside a raw request to the same binary: node scripts/bench.mjs BINARY [ENGINE]
import { spawn } from "node:child_process";
import { once } from "node:events";
import { Agent, request } from "node:http";
import { createInterface } from "node:readline";
import { Sandbox } from "../dist/index.js";

const [binary, engine = "embedded"] = process.argv.slice(2);
if (!binary) throw new Error("usage: node scripts/bench.mjs BINARY [ENGINE]");
const CALLS = 2_000;
const ROUNDS = 5;

const { SANDBOXCTL_BINARY: _, ...env } = process.env;
const args = ["--engine", engine, "serve", "--private"];
const child = spawn(binary, args, { stdio: ["pipe", "pipe", "inherit"], env });
const [hello] = await once(createInterface({ input: child.stdout }), "line");
const agent = new Agent({ keepAlive: true });
const options = { agent, socketPath: JSON.parse(hello).socket, method: "POST" };
const raw = async (path, body) => {
  const headers = { "content-type": "application/json" };
  const sent = request({ ...options, path: `/v1/sandboxes${path}`, headers }).end(JSON.stringify(body));
  const [response] = await once(sent, "response");
  let text = "";
  for await (const piece of response) text += piece;
  return JSON.parse(text);
};
const place = `/${(await raw("", {})).id}`;
const s = await Sandbox.create({ binary, engine });

const text = "x".repeat(100);
const rawOperation = (operation) => raw(`${place}/operations`, operation);
const pairs = {
  exists: [() => rawOperation({ operation: "exists", path: "a" }), () => s.files.exists("a")],
  "write, 100 bytes": [
    () => rawOperation({ operation: "write", path: "a", content: text, encoding: "utf-8" }),
    () => s.files.write("a", text),
  ],
  "read, 100 bytes": [
    () => rawOperation({ operation: "read", path: "a", encoding: "utf-8" }),
    () => s.files.read("a"),
  ],
  "script, `return 1`": [
    () => raw(`${place}/executions?wait=60`, { script: "return 1" }),
    () => s.runScript("return 1"),
  ],
};

/** The median time of a call, one after another, in milliseconds. */
async function measure(call) {
  const times = [];
  for (let i = 0; i < CALLS; i += 1) {
    const start = performance.now();
    await call();
    times.push(performance.now() - start);
  }
  return times.sort((a, b) => a - b)[CALLS / 2];
}

console.log("| call | raw request | client | difference |\n|---|---|---|---|");
for (const [name, [line, client]] of Object.entries(pairs)) {
  const best = [Infinity, Infinity];
  // In turns, so that what else the machine does meets both.
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const [i, call] of [line, client].entries()) best[i] = Math.min(best[i], await measure(call));
  }
  const [one, other] = best;
  console.log(`| ${name} | ${one.toFixed(3)} ms | ${other.toFixed(3)} ms | ${(other - one).toFixed(3)} ms |`);
}
await s.close();
agent.destroy();
child.stdin.end();
