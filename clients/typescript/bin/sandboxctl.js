#!/usr/bin/env node
// The command of the package: starts the binary of this platform, and ends as it ends.
import { spawn } from "node:child_process";
import { packagedBinary } from "../dist/transport/binary.js";

const binary = packagedBinary();
if (binary === undefined) {
  console.error(`error: there is no sandboxctl for ${process.platform}-${process.arch} here`);
  console.error("hint: it is an optional dependency, for Linux with glibc: npm install --include=optional");
  process.exit(127);
}
const child = spawn(binary, process.argv.slice(2), { stdio: "inherit" });
// A terminal sends these to the binary too; twice would mean another thing.
const terminal = process.stdin.isTTY || process.stdout.isTTY || process.stderr.isTTY;
for (const signal of ["SIGINT", "SIGQUIT"]) process.on(signal, () => terminal || child.kill(signal));
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`error: ${binary} cannot be started: ${error.message}`);
  process.exit(126);
});
child.on("exit", (code, signal) => {
  if (signal === null) process.exit(code);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
