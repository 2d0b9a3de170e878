/** The process `sandboxctl tools --stdio`: its lines, its calls, and its end. */
import { type ChildProcessByStdio, spawn } from "node:child_process";
import type { Readable, Writable } from "node:stream";
import { encoded } from "../core/bytes.js";
import { errorOf, isObject, lineError, type SandboxError } from "../core/errors.js";
import { LineSplitter } from "../core/lines.js";
import { VERSION } from "../core/version.js";
import { versionMismatch } from "./binary.js";

/** The version of the line protocol that this client speaks. */
const PROTOCOL = 1;
/** The time for the first answer. */
const HELLO_MS = 30_000;
/** The longest line that it takes. */
const MAX_LINE = 64 * 1024 * 1024 - 1;
/** The time in which it removes its sandboxes and ends; then it is killed, and they with it. */
const CLOSE_MS = 60_000;
/** How much of its stderr is kept, for the error that says how it ended. */
const STDERR_KEPT = 4_096;

/** Settings of the process, if the environment does not say otherwise: an image is fetched, as by `exec`. */
const DEFAULTS = { SANDBOXCTL_PROGRAMS_PULL: "missing" };

/** What the process gets of this environment: the client's own variables are none of its settings. */
function inherited(): NodeJS.ProcessEnv {
  const { SANDBOXCTL_BINARY: _binary, SANDBOXCTL_SERVER: _server, SANDBOXCTL_TOKEN: _token, ...rest } = process.env;
  return rest;
}

/** A call that waits for its answer. */
export interface Call {
  /** Gets an event, a chunk or an acknowledgement, as they come before the answer. */
  onLine?: ((line: Record<string, unknown>) => void) | undefined;
  resolve: (data: unknown, metadata: unknown) => void;
  reject: (error: unknown) => void;
}

/** How a process is started. */
export interface ProcessOptions {
  /** The oldest protocol that will do; 0 is that of a binary which does not know the greeting. */
  oldest?: number;
  /** Settings, if the environment does not say otherwise; by default that images are fetched. */
  defaults?: Record<string, string>;
  /** Environment variables in place of this program's. */
  env?: Record<string, string> | undefined;
}

/** A process that answers calls. It ends with this process, at the latest: its stdin ends then. */
export class ToolsProcess {
  readonly #binary: string;
  readonly #oldest: number;
  readonly #child: ChildProcessByStdio<Writable, Readable, Readable>;
  readonly #calls = new Map<number, Call>();
  #next = 1;
  #stderr = "";
  #end: SandboxError | undefined;
  #hello: { resolve: () => void; reject: (error: unknown) => void } | undefined;
  /** Resolves when it speaks the protocol. */
  readonly ready: Promise<void>;

  constructor(binary: string, args: readonly string[], { oldest = PROTOCOL, defaults, env }: ProcessOptions = {}) {
    this.#binary = binary;
    this.#oldest = oldest;
    // In a session of its own: Ctrl-C in a terminal is this program's to handle.
    const environment = { ...(defaults ?? DEFAULTS), ...inherited(), ...env };
    this.#child = spawn(binary, args, { stdio: ["pipe", "pipe", "pipe"], detached: true, env: environment });
    this.ready = new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.#fail("did not answer in time", undefined, true), HELLO_MS);
      const settled =
        <A extends unknown[]>(then: (...args: A) => void) =>
        (...args: A) => {
          clearTimeout(timer);
          this.#hello = undefined;
          then(...args);
          this.#rest();
        };
      this.#hello = { resolve: settled(resolve), reject: settled(reject) };
    });
    this.ready.catch(() => {});
    const splitter = new LineSplitter();
    this.#child.stdout.on("data", (piece: Buffer) => {
      try {
        for (const line of splitter.push(piece)) this.#receive(line);
      } catch (error) {
        this.#fail("broke the protocol", error, true);
      }
    });
    this.#child.stderr.setEncoding("utf8");
    this.#child.stderr.on("data", (piece: string) => {
      this.#stderr = (this.#stderr + piece).slice(-STDERR_KEPT);
    });
    // A pipe that breaks is followed by the end of the process, which says more.
    this.#child.stdin.on("error", () => {});
    this.#child.on("error", (error) => {
      if (!this.#child.pid) this.#failWith(notStarted(binary, error), false);
    });
    this.#child.on("close", (code, signal) => {
      // A binary that is older than the protocol does not know its flags.
      if (this.#hello && code === 2 && this.#stderr.includes("unexpected argument")) return this.#greet(undefined);
      return this.#fail(`ended with ${signal === null ? `exit code ${code}` : `signal ${signal}`}`, undefined, false);
    });
    this.write({ hello: {} });
  }

  /** Whether it takes calls. */
  get alive(): boolean {
    return this.#end === undefined;
  }

  /** How it ended. */
  get end(): SandboxError | undefined {
    return this.#end;
  }

  /** Makes a call; the answer goes to `call`. Returns its id. */
  send(tool: string, args: unknown, call: Call, stream = false): number {
    const id = this.#next;
    this.#next += 1;
    if (this.#end) {
      call.reject(this.#end);
      return id;
    }
    let line: string;
    try {
      line = encoded(stream ? { id, tool, args, stream: true } : { id, tool, args });
    } catch (error) {
      call.reject(error);
      return id;
    }
    if (Buffer.byteLength(line) > MAX_LINE) {
      const hint = "write large files in pieces: `files.write` takes an async iterator";
      call.reject(errorOf({ kind: "too_large", message: `a request of more than ${MAX_LINE} bytes`, hint }));
      return id;
    }
    if (this.#calls.size === 0) this.#hold();
    this.#calls.set(id, call);
    void this.#put(line);
    return id;
  }

  /** Writes a line. Resolves when the pipe takes more. */
  write(line: unknown): Promise<void> | undefined {
    return this.#put(JSON.stringify(line));
  }

  #put(line: string): Promise<void> | undefined {
    if (this.#end) return undefined;
    if (this.#child.stdin.write(`${line}\n`)) return undefined;
    const { stdin } = this.#child;
    return new Promise((resolve) => {
      const done = () => {
        stdin.off("drain", done).off("close", done);
        resolve();
      };
      stdin.on("drain", done).on("close", done);
    });
  }

  /** Ends its stdin: it answers the calls that it has, removes its sandboxes and ends. */
  close(): Promise<void> {
    if (this.#end) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#fail("did not end in time", undefined, true), CLOSE_MS);
      this.#child.once("close", () => {
        clearTimeout(timer);
        resolve();
      });
      this.#hold();
      this.#child.stdin.end();
    });
  }

  #receive(text: string): void {
    const line: unknown = JSON.parse(text);
    if (!isObject(line)) throw new Error("a line is not an object");
    if (this.#hello && (line.hello !== undefined || (line.id === null && line.error !== undefined))) {
      this.#greet(isObject(line.hello) ? line.hello : undefined);
      return;
    }
    const call = this.#calls.get(line.id as number);
    if (!call) return;
    if (line.event !== undefined || line.chunk !== undefined || line.more !== undefined) {
      call.onLine?.(line);
      return;
    }
    this.#calls.delete(line.id as number);
    if (line.error === undefined) call.resolve(line.data, line.metadata);
    else call.reject(lineError(line));
    if (this.#calls.size === 0) this.#rest();
  }

  #greet(hello: Record<string, unknown> | undefined): void {
    const protocol = hello ? hello.protocol : 0;
    if (typeof protocol === "number" && protocol >= this.#oldest && protocol <= PROTOCOL) {
      this.#hello?.resolve();
      return;
    }
    const client = { version: VERSION, protocol: PROTOCOL };
    void versionMismatch(this.#binary, hello, client).then((error) => this.#failWith(error, true));
  }

  #fail(how: string, cause: unknown, kill: boolean): void {
    const said = this.#stderr.trim();
    const message = `the process ${this.#binary} ${how}${said ? `: ${said}` : ""}`;
    if (this.#hello) {
      // Before it answered nothing was lost: it is not a sandbox that is gone.
      const kind = this.#child.exitCode === 2 ? "config" : "engine";
      this.#failWith(errorOf({ kind, message, cause }), kill);
      return;
    }
    const hint = "what was in its sandboxes is gone, but not the io dirs";
    this.#failWith(errorOf({ kind: "agent_lost", message, retryable: true, cause, hint }), kill);
  }

  #failWith(error: SandboxError, kill: boolean): void {
    if (this.#end) return;
    this.#end = error;
    if (kill) this.#child.kill("SIGKILL");
    this.#child.stdin.destroy();
    this.#hello?.reject(error);
    const calls = [...this.#calls.values()];
    this.#calls.clear();
    for (const call of calls) call.reject(error);
    this.#rest();
  }

  /** Keeps this program running while an answer is awaited. */
  #hold(): void {
    this.#child.ref();
    for (const stream of [this.#child.stdin, this.#child.stdout, this.#child.stderr]) handle(stream).ref?.();
  }

  /** Lets this program end: the process sees the end of its stdin then. */
  #rest(): void {
    if (this.#calls.size > 0 || this.#hello) return;
    this.#child.unref();
    for (const stream of [this.#child.stdin, this.#child.stdout, this.#child.stderr]) handle(stream).unref?.();
  }
}

/** The error for a binary that the system cannot execute. */
export function notStarted(binary: string, cause: unknown): SandboxError {
  const why = cause instanceof Error ? cause.message : String(cause);
  const hint = "is it built for this machine?";
  return errorOf({ kind: "config", message: `${binary} cannot be started: ${why}`, hint, cause });
}

// The pipes of a child are sockets, which the types do not say.
const handle = (stream: Readable | Writable) => stream as unknown as { ref?: () => void; unref?: () => void };
