/** Processes of a sandbox that live on after the call that started them, and terminals. */
import { toBytes } from "./core/bytes.js";
import { SandboxError } from "./core/errors.js";
import { type SignalName, signalName } from "./core/executions.js";
import { expectOptions } from "./core/options.js";
import {
  exited,
  type ProcessEvent,
  type ProcessInfo,
  processInfo,
  processReader,
  type SignalTarget,
  type TerminalOptions,
  terminalRequest,
} from "./core/processes.js";
import type { Ask, Transport } from "./transport/transport.js";

/** What is sent of an input at once. */
const PIECE = 64 * 1024;
/** A process that has ended, or is forgotten since. */
const ENDED = ["process_ended", "not_found", "gone"];

/** How the events of a process are read. */
export interface EventsOptions {
  /** Those after the one of this number, or from now on; by default all that are kept. */
  after?: number | "now" | undefined;
  /**
   * A slow reader misses events, which one `omitted` stands for (`lossy`, the default), or holds the process up, for up
   * to 30 seconds (`wait`).
   */
  mode?: "lossy" | "wait" | undefined;
  /** Ends the reading. */
  signal?: AbortSignal | undefined;
}

/**
 * A process of a sandbox. It lives on until it ends, or its sandbox does: no call has to wait for it. Iteration gives its
 * events, those from its start too as far as they are kept, and ends when nothing of it is left.
 */
export class Process implements AsyncIterable<ProcessEvent> {
  /** Its number in its sandbox. */
  readonly id: number;
  /** Its process id, in the sandbox. */
  readonly pid: number;
  /** The word of its creator's own. */
  readonly tag: string | null;
  readonly #open: () => Transport;
  readonly #sandbox: string;
  readonly #generation: number;

  /** @internal */
  constructor(open: () => Transport, sandbox: string, info: ProcessInfo) {
    this.#open = open;
    this.#sandbox = sandbox;
    this.#generation = info.generation;
    this.id = info.id;
    this.pid = info.pid;
    this.tag = info.tag;
  }

  /** What is known of it. */
  async getInfo(): Promise<ProcessInfo> {
    return processInfo(await this.#ask("", { method: "GET", replay: true }));
  }

  /** Waits until it has exited; an abort leaves it running. With `check` an exit code other than 0 is thrown. */
  async wait(options: { check?: boolean | undefined; signal?: AbortSignal | undefined } = {}): Promise<ProcessInfo> {
    expectOptions(arguments, 1, ["check", "signal"]);
    const view = await this.#open().exited(this.#sandbox, this.#path(""), { signal: options.signal });
    return exited(processInfo(view), options.check);
  }

  /** Its events, until nothing of it is left. A connection that is lost is made again, and goes on after the last one. */
  async *events(options: EventsOptions = {}): AsyncGenerator<ProcessEvent, void, undefined> {
    expectOptions(arguments, 1, ["after", "mode", "signal"]);
    const { after = 0, mode = "lossy", signal } = options;
    const path = `${this.#path("/events")}&after=${after}&mode=${mode}`;
    const read = processReader();
    for await (const data of this.#open().follow(this.#sandbox, path, after === "now" ? undefined : after, {
      signal,
    })) {
      const event = read(data);
      if (event) yield event;
    }
  }

  [Symbol.asyncIterator](): AsyncGenerator<ProcessEvent, void, undefined> {
    return this.events();
  }

  /**
   * Writes to its stdin, which must be open (`stdin: true`). What it does not read yet waits, up to 256 KiB; an input
   * that it does not read within 10 seconds is a `SandboxError` of kind `stdin_full`.
   */
  async sendStdin(data: string | Uint8Array): Promise<void> {
    if (typeof data !== "string" && !(data instanceof Uint8Array)) {
      throw new TypeError(`data: text or bytes are expected, not ${typeof data}`);
    }
    const content = typeof data === "string" ? toBytes(data) : data;
    for (let start = 0; start < content.byteLength; start += PIECE) {
      const piece = content.subarray(start, start + PIECE);
      await this.#ask("/stdin", { method: "POST", content: piece, replay: false });
    }
  }

  /** Ends its stdin, after what was sent. */
  async closeStdin(): Promise<void> {
    await this.#ask("/stdin/close", { method: "POST", replay: true });
  }

  /** Sends a signal: `TERM`, `SIGTERM` or 15. One that has ended is a `SandboxError` of kind `process_ended`. */
  async signal(signal: SignalName | `SIG${SignalName}` | number, to: SignalTarget = "group"): Promise<void> {
    const json = { signal: signalName(signal), to };
    await this.#ask("/signal", { method: "POST", json, replay: false });
  }

  /** Kills it, and all that it started. It has no effect on one that has ended. */
  async kill(): Promise<void> {
    const json = { signal: "KILL", to: "tree" };
    await this.#ask("/signal", { method: "POST", json, replay: true }).catch(unlessEnded);
  }

  /**
   * Asks it, and all that it started, to end, and kills what has not ended after its `stopTimeoutMs`; a second call
   * kills at once. It has no effect on one that has ended.
   */
  async stop(): Promise<void> {
    await this.#ask("", { method: "DELETE", replay: true }).catch(unlessEnded);
  }

  /** Sets the size of its terminal. */
  async resize(cols: number, rows: number): Promise<void> {
    await this.#ask("/resize", { method: "POST", json: { cols, rows }, replay: true });
  }

  #ask(what: string, request: Omit<Ask, "path">): Promise<unknown> {
    return this.#open().ask(this.#sandbox, { ...request, path: this.#path(what) }, {});
  }

  /** A path below its own. Another generation of the sandbox has other processes. */
  #path(what: string): string {
    return `processes/${this.id}${what}?generation=${this.#generation}`;
  }
}

function unlessEnded(error: unknown): void {
  if (!(error instanceof SandboxError && ENDED.includes(error.kind))) throw error;
}

type OnData = (data: Uint8Array) => void;

/** A process with a terminal. */
export class Terminal extends Process {
  readonly #heard: Promise<void> | undefined;

  /** @internal */
  constructor(open: () => Transport, sandbox: string, info: ProcessInfo, onData: OnData | undefined) {
    super(open, sandbox, info);
    this.#heard = onData && this.#listen(onData);
    // Who waits gets the error.
    this.#heard?.catch(() => {});
  }

  /** Types into it: `"ls\n"`, or `"\x03"` for Ctrl-C. */
  async send(data: string | Uint8Array): Promise<void> {
    await this.sendStdin(data);
  }

  /**
   * Waits until it has exited, and with `onData` until that has got all of its output, which goes on while something
   * that it started still has the terminal. What `onData` throws is thrown here.
   */
  override async wait(
    options: { check?: boolean | undefined; signal?: AbortSignal | undefined } = {},
  ): Promise<ProcessInfo> {
    expectOptions(arguments, 1, ["check", "signal"]);
    const info = await super.wait({ signal: options.signal });
    await this.#heard;
    return exited(info, options.check);
  }

  async #listen(onData: OnData): Promise<void> {
    for await (const { bytes } of this.events()) if (bytes.byteLength > 0) onData(bytes);
  }
}

const TERMINAL = [
  "cols",
  "rows",
  "onData",
  "command",
  "args",
  "env",
  "envs",
  "cwd",
  "secrets",
  "timeoutMs",
  "stopSignal",
  "stopTimeoutMs",
  "tag",
  "term",
];

/** The terminals of a sandbox, which keeps processes (`processes: "kept"`) and has programs. */
export class Pty {
  readonly #open: () => Transport;
  readonly #id: string;

  /** @internal */
  constructor(open: () => Transport, id: string) {
    this.#open = open;
    this.#id = id;
  }

  /** Starts a shell, or a command as `commands.run` takes it, in a terminal. `onData` gets its output as it comes. */
  async create(
    options: TerminalOptions & {
      onData?: ((data: Uint8Array) => void) | undefined;
      signal?: AbortSignal | undefined;
    } = {},
  ): Promise<Terminal> {
    expectOptions(arguments, 1, [...TERMINAL, "signal"]);
    const { onData, signal, ...rest } = options;
    const view = await this.#open().startProcess(this.#id, terminalRequest(rest), { signal });
    return new Terminal(this.#open, this.#id, processInfo(view), onData);
  }
}
