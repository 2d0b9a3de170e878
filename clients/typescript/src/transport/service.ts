/** This user's own service on this machine, which keeps sandboxes that other programs find. */
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { parsed, shaped } from "../core/answers.js";
import { errorOf } from "../core/errors.js";
import { PROTOCOL } from "../core/version.js";
import { findBinary, versionMismatch } from "./binary.js";
import { environment, notStarted } from "./child.js";
import { HttpTransport } from "./http.js";
import { Connections } from "./request.js";

/** The time for its start. */
const START_MS = 60_000;

/** Calls of the service that a binary starts on first use. `args` are those of `sandboxctl local socket`. */
export async function localService(binary: string | undefined, args: readonly string[]): Promise<HttpTransport> {
  const path = findBinary(binary);
  const restart = async () => new Connections(await started(path, args));
  return new HttpTransport({ name: "the local service", connections: await restart(), restart });
}

/** Makes sure that it runs, and returns the path of its socket. */
async function started(binary: string, args: readonly string[]): Promise<string> {
  // An image is fetched, as by `exec`.
  const env = environment({ SANDBOXCTL_PROGRAMS_PULL: "missing" });
  let said: string;
  try {
    said = (await promisify(execFile)(binary, args, { env, timeout: START_MS })).stdout;
  } catch (cause) {
    const { code, killed, stderr = "" } = cause as { code?: unknown; killed?: boolean; stderr?: string };
    if (killed) throw errorOf({ kind: "engine", message: "the local service did not start in time", cause });
    if (typeof code !== "number") throw notStarted(binary, cause);
    if (code === 2 && /unexpected argument|unrecognized subcommand/.test(stderr)) {
      throw await versionMismatch(binary, undefined);
    }
    const message = stderr.trim().replace(/^error: /, "") || `${binary} ended with exit code ${code}`;
    throw errorOf({ kind: code === 2 ? "config" : "engine", message, cause });
  }
  const hello = shaped(parsed(said), { protocol: "integer", socket: "text" });
  if (hello.protocol !== PROTOCOL) throw await versionMismatch(binary, hello);
  return hello.socket as string;
}
