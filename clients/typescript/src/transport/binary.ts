/** The binary: which one it is, and how to get it. */
import { execFile } from "node:child_process";
import { accessSync, constants, statSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, isAbsolute, join, resolve } from "node:path";
import { errorOf, type SandboxError } from "../core/errors.js";
import { PROTOCOL, VERSION } from "../core/version.js";

const HOW_TO_GET =
  "the optional dependency @sandboxctl/linux-x64 or @sandboxctl/linux-arm64 brings it; or build it with " +
  "`cargo install --locked --path sandboxctl`, then give its path as `binary`, in SANDBOXCTL_BINARY, or put it in a " +
  "directory of PATH";

/** The path of the binary: what the caller or the environment names, the package of this platform, or what PATH has. */
export function findBinary(given: string | undefined): string {
  const named = given ?? (process.env.SANDBOXCTL_BINARY || undefined);
  if (named !== undefined) {
    const path = resolve(named);
    const problem = unusable(path);
    if (problem === undefined) return path;
    const whence = given === undefined ? "SANDBOXCTL_BINARY" : "binary";
    throw errorOf({ kind: "config", message: `${whence}: ${named} ${problem}`, hint: HOW_TO_GET });
  }
  const installed = packagedBinary();
  if (installed !== undefined) return installed;
  for (const directory of (process.env.PATH ?? "").split(delimiter)) {
    const path = join(directory, "sandboxctl");
    if (isAbsolute(path) && unusable(path) === undefined) return path;
  }
  throw errorOf({
    kind: "config",
    message: "no package for this platform, and no sandboxctl in PATH",
    hint: HOW_TO_GET,
  });
}

/** The binary in the package of this platform, an optional dependency. */
export function packagedBinary(): string | undefined {
  try {
    const path = createRequire(import.meta.url).resolve(
      `@sandboxctl/${process.platform}-${process.arch}/bin/sandboxctl`,
    );
    return unusable(path) === undefined ? path : undefined;
  } catch {
    return undefined;
  }
}

function unusable(path: string): string | undefined {
  const stat = statSync(path, { throwIfNoEntry: false });
  if (!stat) return "does not exist";
  if (!stat.isFile()) return "is not a file";
  try {
    accessSync(path, constants.X_OK);
    return undefined;
  } catch {
    return "is not executable";
  }
}

/** What a binary says of its version; for messages. */
function versionOf(binary: string): Promise<string> {
  return new Promise((resolve) => {
    execFile(binary, ["--version"], { timeout: 5_000, maxBuffer: 4096 }, (error, stdout) => {
      resolve(error ? "unknown" : (/\d+\.\d+\.\d+\S*/.exec(stdout)?.[0] ?? "unknown"));
    });
  });
}

/** The error for a binary that speaks another protocol, or none. */
export async function versionMismatch(
  binary: string,
  hello: { version?: unknown; protocol?: unknown } | undefined,
): Promise<SandboxError> {
  const version = typeof hello?.version === "string" ? hello.version : await versionOf(binary);
  const speaks = hello ? `protocol ${String(hello.protocol)}` : "no protocol for clients";
  return errorOf({
    kind: "config",
    message:
      `${binary} is sandboxctl ${version}, which speaks ${speaks}; ` +
      `this client is ${VERSION}, and needs protocol ${PROTOCOL}`,
    hint: "install a client and a binary of the same version",
  });
}
