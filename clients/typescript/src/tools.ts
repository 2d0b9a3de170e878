/** The tools for workflow steps, called by their names: `sandbox_init`, `sandbox_command`, … */
import { encoded } from "./core/bytes.js";
import { errorOf, isObject, lineError } from "./core/errors.js";
import { Limiter } from "./core/limiter.js";
import { LineSplitter } from "./core/lines.js";
import { findBinary } from "./transport/binary.js";
import { Child, environment } from "./transport/child.js";

/** The calls that a process is given at once: four fewer than it takes, so that it always reads a cancel. */
const CALLS = 60;
/** The longest line that it takes. */
const MAX_LINE = 64 * 1024 * 1024 - 1;

/** How the process is started. */
export interface ToolsOptions {
  /** The binary; by default `SANDBOXCTL_BINARY`, the one that came with this package, or the one in `PATH`. */
  binary?: string | undefined;
  /** The engine; by default that of the configuration. */
  engine?: "docker" | "embedded" | undefined;
  /** Further flags of `sandboxctl tools`, such as `["--pull", "missing"]`. */
  flags?: readonly string[] | undefined;
  /** Environment variables of the process in place of this program's, such as `SANDBOXCTL_LIMITS_TIMEOUT`. */
  env?: Record<string, string> | undefined;
}

/** What a tool answered. */
export interface ToolAnswer {
  /** The data of this tool, as the reference of the tools has it. */
  data: unknown;
  /** What is known beside it: `durationMs`, and more with some tools. */
  metadata: Record<string, unknown>;
}

/**
 * One process `sandboxctl tools --stdio`, and the sandboxes that it keeps. It is started with the first call, and
 * again with the first one after it has ended; its sandboxes end with it. It ends with this program, at the latest.
 */
export class Tools {
  readonly #options: ToolsOptions;
  readonly #slots = new Limiter(CALLS);
  #process: ToolsProcess | undefined;

  constructor(options: ToolsOptions = {}) {
    this.#options = options;
  }

  /** Calls a tool. Aborting the signal cancels the call, and rejects with the signal's reason. */
  async call(tool: string, args: object, { signal }: { signal?: AbortSignal | undefined } = {}): Promise<ToolAnswer> {
    const release = await this.#slots.acquire(signal);
    let process: ToolsProcess;
    try {
      process = this.#start();
    } catch (error) {
      release();
      throw error;
    }
    return new Promise((resolve, reject) => {
      const cancel = () => {
        process.cancel(id);
        reject(signal?.reason as Error);
      };
      // The slot is held until the process has answered, even if the caller has stopped waiting.
      const settle = () => {
        release();
        signal?.removeEventListener("abort", cancel);
      };
      const id = process.send(tool, args, {
        resolve: (data, metadata) => {
          settle();
          resolve({ data, metadata: isObject(metadata) ? metadata : {} });
        },
        reject: (error) => {
          settle();
          reject(error as Error);
        },
      });
      if (signal?.aborted) cancel();
      else signal?.addEventListener("abort", cancel, { once: true });
    });
  }

  /** Removes all sandboxes and ends the process. The next call starts another one. */
  async close(): Promise<void> {
    const process = this.#process;
    this.#process = undefined;
    await process?.close();
  }

  #start(): ToolsProcess {
    if (!this.#process?.alive) {
      const { binary, engine, flags = [], env } = this.#options;
      const args = [...(engine === undefined ? [] : ["--engine", engine]), "tools", "--stdio", ...flags];
      this.#process = new ToolsProcess(findBinary(binary), args, { ...environment({}), ...env });
    }
    return this.#process;
  }
}

/** A call that waits for its answer. */
interface Call {
  resolve: (data: unknown, metadata: unknown) => void;
  reject: (error: unknown) => void;
}

/** A process that answers calls, each on a line. */
class ToolsProcess {
  readonly #child: Child;
  readonly #calls = new Map<number, Call>();
  #next = 1;

  constructor(binary: string, args: readonly string[], env: NodeJS.ProcessEnv) {
    const splitter = new LineSplitter();
    const receive = (piece: Buffer) => {
      for (const line of splitter.push(piece)) this.#receive(line);
    };
    this.#child = new Child(binary, args, env, receive, (error) => {
      const calls = [...this.#calls.values()];
      this.#calls.clear();
      for (const call of calls) call.reject(error);
    });
  }

  /** Whether it takes calls. */
  get alive(): boolean {
    return this.#child.end === undefined;
  }

  /** Makes a call; the answer goes to `call`. Returns its id. */
  send(tool: string, args: unknown, call: Call): number {
    const id = this.#next;
    this.#next += 1;
    let line: string;
    try {
      if (this.#child.end) throw this.#child.end;
      line = encoded({ id, tool, args });
      if (Buffer.byteLength(line) > MAX_LINE) {
        throw errorOf({ kind: "too_large", message: `a request of more than ${MAX_LINE} bytes` });
      }
    } catch (error) {
      call.reject(error);
      return id;
    }
    if (this.#calls.size === 0) this.#child.hold();
    this.#calls.set(id, call);
    this.#child.write(`${line}\n`);
    return id;
  }

  /** Cancels a call; it is answered nevertheless. */
  cancel(id: number): void {
    this.#child.write(`${JSON.stringify({ cancel: id })}\n`);
  }

  /** Ends its stdin: it answers the calls that it has, removes its sandboxes and ends. */
  close(): Promise<void> {
    return this.#child.close();
  }

  #receive(text: string): void {
    const line: unknown = JSON.parse(text);
    if (!isObject(line)) throw new Error("a line is not an object");
    this.#child.answered();
    const id = line.id as number;
    const call = this.#calls.get(id);
    if (!call) return;
    this.#calls.delete(id);
    if (line.error === undefined) call.resolve(line.data, line.metadata);
    else call.reject(lineError(line));
    if (this.#calls.size === 0) this.#child.rest();
  }
}
