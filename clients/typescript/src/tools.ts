/** The tools for workflow steps, called by their names: `sandbox_init`, `sandbox_command`, … */
import { isObject } from "./core/errors.js";
import { Limiter } from "./core/limiter.js";
import { findBinary } from "./transport/binary.js";
import { ToolsProcess } from "./transport/process.js";

/** The calls that a process is given at once: four fewer than it takes, so that it always reads a cancel. */
const CALLS = 60;

/** How the process is started. */
export interface ToolsOptions {
  /** The binary; by default `SANDBOXCTL_BINARY`, or the one in `PATH`. */
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
      process = await this.#start();
    } catch (error) {
      release();
      throw error;
    }
    return new Promise((resolve, reject) => {
      const cancel = () => {
        void process.write({ cancel: id });
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

  async #start(): Promise<ToolsProcess> {
    if (!this.#process?.alive) {
      const { binary, engine, flags = [], env } = this.#options;
      const args = [...(engine === undefined ? [] : ["--engine", engine]), "tools", "--stdio", ...flags];
      this.#process = new ToolsProcess(findBinary(binary), args, { oldest: 0, defaults: {}, env });
    }
    const process = this.#process;
    await process.ready;
    return process;
  }
}
