// The figures that ComputeSDK publishes of its providers, by its own harness, a checkout of
// github.com/computesdk/benchmarks: the time from the request for a sandbox to the end of its first command, `node -v`.
//
//     scripts/e2b-suite --bench --lang js --harness DIR [--engine embedded]
import { e2b } from "@computesdk/e2b";

const harness = (path) => import(`${process.env.BENCH_HARNESS}/src/${path}.ts`);
const { runBenchmark } = await harness("sandbox/benchmark");
const { runStaggeredBenchmark } = await harness("sandbox/staggered");
const { runConcurrentBenchmark } = await harness("sandbox/concurrent");

const apiKey = process.env.E2B_API_KEY;
const provider = { name: "e2b", requiredEnvVars: ["E2B_API_KEY"], createCompute: () => e2b({ apiKey }) };
// A service for developers has at most 64 sandboxes.
const concurrency = 50;
const rows = {
  "one after another": await runBenchmark({ ...provider, iterations: 100 }),
  "one every 200 ms": await runStaggeredBenchmark({ ...provider, concurrency, staggerDelayMs: 200 }),
  "50 at once": await runConcurrentBenchmark({ ...provider, concurrency }),
};

console.log("\n| ComputeSDK, time to interactive | median | p95 | p99 | samples |\n|---|---:|---:|---:|---:|");
for (const [name, { iterations, summary }] of Object.entries(rows)) {
  const failed = iterations.filter(({ error }) => error);
  if (failed.length > 0) throw new Error(`${failed.length} of ${iterations.length} failed: ${failed[0].error}`);
  const { median, p95, p99 } = summary.ttiMs;
  const figures = [median, p95, p99].map((figure) => `${figure.toFixed(1)} ms`).join(" | ");
  console.log(`| ${name} | ${figures} | ${iterations.length} |`);
}
