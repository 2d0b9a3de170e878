// What ComputeSDK measures of its providers, in a loop of our own over its provider for E2B: the time from the request for a
// sandbox to the end of its first command. One after another, and sixteen at once.
//
//     scripts/e2b-suite --bench --lang js [--engine embedded]
import { e2b } from "@computesdk/e2b";

const COUNT = Number(process.env.BENCH_COUNT ?? 50);
const compute = e2b({ apiKey: process.env.E2B_API_KEY });

async function once() {
  const since = performance.now();
  const sandbox = await compute.sandbox.create();
  const result = await sandbox.runCommand("echo ready");
  const taken = performance.now() - since;
  if (result.exitCode !== 0) throw new Error(JSON.stringify(result));
  await sandbox.destroy();
  return taken;
}

function row(name, taken) {
  taken.sort((a, b) => a - b);
  const at = (share) => `${taken[Math.min(taken.length - 1, Math.floor(taken.length * share))].toFixed(1)} ms`;
  console.log(`| ${name} | ${at(0.5)} | ${at(0.95)} | ${at(0.99)} | ${taken.length} |`);
}

console.log("| ComputeSDK, time to the first command's end | p50 | p95 | p99 | samples |\n|---|---:|---:|---:|---:|");
await once();
const sequential = [];
for (let index = 0; index < COUNT; index += 1) {
  sequential.push(await once());
  await new Promise((resolve) => setTimeout(resolve, 500));
}
row("one after another", sequential);
const burst = [];
for (let index = 0; index < COUNT; index += 16) burst.push(...(await Promise.all(Array.from({ length: 16 }, once))));
row("16 at once", burst);
