/** A program that this one starts. It ends with this one, at the latest: its stdin ends then. */
import { type ChildProcessByStdio, spawn } from "node:child_process";
import type { Readable, Writable } from "node:stream";
import { errorOf, type SandboxError } from "../core/errors.js";
import { versionMismatch } from "./binary.js";

/** The time in which it removes its sandboxes and ends; then it is killed, and they with it. */
const CLOSE_MS = 60_000;
/** How much of its stderr is kept, for the error that says how it ended. */
const STDERR_KEPT = 4_096;

/** What it gets of this environment: the client's own variables are not settings of a program. */
function inherited(): NodeJS.ProcessEnv {
  const { SANDBOXCTL_BINARY: _binary, SANDBOXCTL_SERVER: _server, SANDBOXCTL_TOKEN: _token, ...rest } = process.env;
  return rest;
}

export class Child {
  readonly #binary: string;
  readonly #child: ChildProcessByStdio<Writable, Readable, Readable>;
  readonly #onEnd: (error: SandboxError) => void;
  #stderr = "";
  #end: SandboxError | undefined;
  #isReady = false;

  /** `onEnd` is called once, with how it ended. */
  constructor(
    binary: string,
    args: readonly string[],
    env: NodeJS.ProcessEnv,
    onStdout: (piece: Buffer) => void,
    onEnd: (error: SandboxError) => void,
  ) {
    this.#binary = binary;
    this.#onEnd = onEnd;
    try {
      // In a session of its own: Ctrl-C in a terminal is this program's to handle.
      this.#child = spawn(binary, args, { stdio: ["pipe", "pipe", "pipe"], detached: true, env });
    } catch (cause) {
      throw notStarted(binary, cause);
    }
    this.#child.stdout.on("data", (piece: Buffer) => {
      try {
        onStdout(piece);
      } catch (error) {
        this.fail("broke the protocol", error);
      }
    });
    this.#child.stderr.setEncoding("utf8");
    this.#child.stderr.on("data", (piece: string) => {
      this.#stderr = (this.#stderr + piece).slice(-STDERR_KEPT);
    });
    // A pipe that breaks is followed by the end of the process, which says more.
    this.#child.stdin.on("error", () => {});
    this.#child.on("error", (error) => {
      if (!this.#child.pid) this.#endWith(notStarted(binary, error));
    });
    this.#child.on("close", (code, signal) => {
      // A binary that is older than the client does not know its flags.
      if (!this.#isReady && code === 2 && this.#stderr.includes("unexpected argument")) this.mismatch(undefined);
      else this.#endWith(this.#failure(`ended with ${signal === null ? `exit code ${code}` : `signal ${signal}`}`));
    });
  }

  /** How it ended, if it has. */
  get end(): SandboxError | undefined {
    return this.#end;
  }

  /** It has answered: from now on its end is the end of its sandboxes. */
  answered(): void {
    this.#isReady = true;
  }

  /** Writes to its stdin. */
  write(text: string): void {
    if (!this.#end) this.#child.stdin.write(text);
  }

  /** Ends its stdin, and waits until it has removed its sandboxes and ended. */
  close(): Promise<void> {
    if (this.#end) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.fail("did not end in time"), CLOSE_MS);
      this.#child.once("close", () => {
        clearTimeout(timer);
        resolve();
      });
      this.hold();
      this.#child.stdin.end();
    });
  }

  /** Kills it, for what it did. */
  fail(how: string, cause?: unknown): void {
    this.#endWith(this.#failure(how, cause));
    this.#child.kill("SIGKILL");
  }

  /** Kills it, as it is of another version. */
  mismatch(hello: Record<string, unknown> | undefined): void {
    void versionMismatch(this.#binary, hello).then((error) => this.#endWith(error));
    this.#child.kill("SIGKILL");
  }

  /** Keeps this program running. */
  hold(): void {
    this.#child.ref();
    for (const stream of this.#streams()) stream.ref?.();
  }

  /** Lets this program end: the process sees the end of its stdin then. */
  rest(): void {
    this.#child.unref();
    for (const stream of this.#streams()) stream.unref?.();
  }

  #failure(how: string, cause?: unknown): SandboxError {
    const said = this.#stderr.trim();
    const message = `the process ${this.#binary} ${how}${said ? `: ${said}` : ""}`;
    if (this.#isReady) {
      const hint = "what was in its sandboxes is gone, but not the io dirs";
      return errorOf({ kind: "agent_lost", message, retryable: true, cause, hint });
    }
    // Before it answered nothing was lost: it is not a sandbox that is gone.
    return errorOf({ kind: this.#child.exitCode === 2 ? "config" : "engine", message, cause });
  }

  #endWith(error: SandboxError): void {
    if (this.#end) return;
    this.#end = error;
    this.#child.stdin.destroy();
    this.#onEnd(error);
    this.rest();
  }

  // The pipes of a child are sockets, which the types do not say.
  #streams(): { ref?: () => void; unref?: () => void }[] {
    return [this.#child.stdin, this.#child.stdout, this.#child.stderr] as never;
  }
}

/** The environment of a child: these settings, if this program's says nothing else. */
export function environment(defaults: Record<string, string>): NodeJS.ProcessEnv {
  return { ...defaults, ...inherited() };
}

/** The error of a program that cannot be started. */
export function notStarted(binary: string, cause: unknown): SandboxError {
  const why = cause instanceof Error ? cause.message : String(cause);
  const hint = "is it built for this machine?";
  return errorOf({ kind: "config", message: `${binary} cannot be started: ${why}`, hint, cause });
}
