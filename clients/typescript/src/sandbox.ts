/** The face of the package: a sandbox, its files and its commands. */
import { errorOf, NotFound, SandboxGone } from "./core/errors.js";
import {
  type CommandOptions,
  type CommandResult,
  commandRequest,
  commandResult,
  contents,
  failureOf,
  type Limits,
  limitsRequest,
  type OutputEvent,
  outputReader,
  type ScriptOptions,
  type ScriptResult,
  scriptRequest,
  scriptResult,
} from "./core/executions.js";
import { expectOptions } from "./core/options.js";
import {
  type ProcessInfo,
  type ProcessOptions,
  processInfo,
  processList,
  processRequest,
  type SandboxInfo,
  sandboxInfo,
} from "./core/processes.js";
import type * as wire from "./core/wire.js";
import { Files } from "./files.js";
import { Interpreter } from "./interpreter.js";
import { Ports } from "./ports.js";
import { Process, Pty } from "./process.js";
import { connect } from "./transport/connect.js";
import type { SandboxSpec, Transport } from "./transport/transport.js";

/** Where sandboxes are: on this machine, or at a server. */
export interface ConnectOptions {
  /**
   * The URL of a server, `https://…`; by default `SANDBOXCTL_SERVER`, unless `binary`, `engine`, `rootfs` or
   * `imageArchive` is given. Without one the sandboxes are on this machine.
   */
  server?: string | undefined;
  /** The token for the server; by default `SANDBOXCTL_TOKEN`. */
  token?: string | undefined;
  /** The path of the `sandboxctl` binary; by default `SANDBOXCTL_BINARY`, what came with this package, or what `PATH` has. */
  binary?: string | undefined;
  /** The engine on this machine; by default what the binary finds. */
  engine?: "auto" | "docker" | "embedded" | undefined;
  /** On the embedded engine of this machine, which has no images: the directory that commands run in. */
  rootfs?: string | undefined;
  /** The same of an image archive, a file as `docker save` writes it. */
  imageArchive?: string | undefined;
}

/** What a sandbox is like. */
export interface SandboxOptions extends ConnectOptions {
  /** The image that its commands run in; without `image`, `rootfs` and `imageArchive` it has scripts and files alone. */
  image?: string | undefined;
  /** A directory of this machine that holds its files and outlives it. Without it they end with the sandbox. */
  ioDir?: string | undefined;
  /** Its limits. */
  limits?: Limits | undefined;
  /** The hosts that its commands may reach: `HOST`, `HOST:PORT`, `*.DOMAIN`. Without it, none. */
  network?: { allow: readonly string[] } | undefined;
  /**
   * Its name: creating it again finds it, if it is the same. Without a server it is kept by this user's own service on
   * this machine then, where other programs and `sandboxctl sandbox` find it, and it outlives this program.
   */
  name?: string | undefined;
  /** Members that `getInfo` and `list` give back. */
  metadata?: Record<string, unknown> | undefined;
  /** Environment variables of all its commands. */
  envs?: Record<string, string | Uint8Array> | undefined;
  /** The same. */
  env?: Record<string, string | Uint8Array> | undefined;
  /** For how many milliseconds it exists, unless `setTimeout` says otherwise. */
  timeoutMs?: number | undefined;
  /**
   * What happens when nothing uses it for a while: its processes end and its files are kept (`stop`, the default), or it
   * is frozen as it is (`freeze`). Its next use goes on.
   */
  idle?: "stop" | "freeze" | undefined;
  /**
   * `kept`: it has terminals, and processes that live on after their call. The default of one with a `name` and programs.
   */
  processes?: "per_command" | "kept" | undefined;
  /** The ports of its loopback that may be reached: `sandbox.ports` has ways to them. */
  ports?: readonly number[] | "any" | undefined;
  /**
   * Where operations on files may go: in the io dir and the inputs (`io`, the default), or wherever its programs may,
   * also through links inside it (`all`).
   */
  fileScope?: "io" | "all" | undefined;
}

/** Which sandboxes a list has. */
export interface ListOptions extends ConnectOptions {
  /** Those that have these members of `metadata`. */
  metadata?: Record<string, unknown> | undefined;
  /** The one of this name. */
  name?: string | undefined;
  /** Those of this status. */
  status?: "starting" | "ready" | "running" | "paused" | "stopped" | undefined;
}

/** How a call may be ended. */
export interface SignalOption {
  /** Ends the call: it is cancelled in the sandbox, and rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** What an execution is asked for besides its own options. */
export interface RunControl extends SignalOption {
  /** Throw a `SandboxError` unless the status is `ok`. Without it a failure is a result. */
  check?: boolean | undefined;
}

/** Options of a command that is run to its end. */
export interface RunCommandOptions extends CommandOptions, RunControl {
  /** Gets its stdout while it runs. */
  onStdout?: ((text: string, bytes: Uint8Array) => void) | undefined;
  /** Gets its stderr while it runs. */
  onStderr?: ((text: string, bytes: Uint8Array) => void) | undefined;
  background?: false | undefined;
}

/** Options of a script. */
export interface RunScriptOptions extends ScriptOptions, RunControl {
  /** Gets each entry of its log while it runs. */
  onLog?: ((text: string, level: "print" | "warn" | "truncated") => void) | undefined;
}

/** Options of a command that lives on in the background. */
export interface BackgroundOptions extends ProcessOptions, SignalOption {
  background: true;
}

/** A sandbox. It ends with `close`, or with the block of an `await using`, and when its time is over. */
export class Sandbox implements AsyncDisposable {
  /** Its id. */
  readonly id: string;
  /** Its files. */
  readonly files: Files;
  /** Its commands. */
  readonly commands: Commands;
  /** Its terminals. */
  readonly pty: Pty;
  /** The code interpreter of its image. */
  readonly interpreter: Interpreter;
  /** Its ports. */
  readonly ports: Ports;
  readonly #transport: Transport;
  #closing: Promise<void> | undefined;

  private constructor(transport: Transport, id: string) {
    this.#transport = transport;
    this.id = id;
    const open = () => this.#open();
    this.files = new Files(open, id);
    this.commands = new Commands(open, id);
    this.pty = new Pty(open, id);
    this.interpreter = new Interpreter(open, id);
    this.ports = new Ports(open, id);
  }

  /** Creates a sandbox, or finds the one of this name if it is the same. */
  static async create(options: SandboxOptions & SignalOption = {}): Promise<Sandbox> {
    expectOptions(arguments, 1, [...PLACE, ...KEPT]);
    const { metadata, name, timeoutMs, idle, fileScope, signal } = options;
    const envs = options.envs ?? options.env;
    const env = envs && contents(envs, "envs");
    // What runs in one with a name is for others to find.
    const hasPrograms = options.image ?? options.rootfs ?? options.imageArchive;
    const processes = options.processes ?? (name !== undefined && hasPrograms ? "kept" : undefined);
    const spec = {
      ...specOf(options),
      name,
      kept: {
        ...(env ? { env } : {}),
        ...(processes ? { processes } : {}),
        ...openPorts(options.ports),
        ...(fileScope ? { files: fileScope } : {}),
      },
      request: {
        ...(metadata ? { metadata } : {}),
        ...(timeoutMs === undefined ? {} : { ttl_ms: timeoutMs }),
        ...(idle ? { idle } : {}),
      },
    };
    const transport = await connect(options, name === undefined ? "program" : "user");
    return new Sandbox(transport, await transport.create(spec, { signal }));
  }

  /**
   * Finds a sandbox by its id or its name: at a server, or without one in this user's own service on this machine. A
   * sandbox of this machine without a name is of the program that created it, and is not found.
   */
  static async connect(sandbox: string, options: ConnectOptions & SignalOption = {}): Promise<Sandbox> {
    expectOptions(arguments, 2, CONNECT);
    const transport = await connect(options, "user");
    return new Sandbox(transport, await transport.find(sandbox, { signal: options.signal }));
  }

  /** The sandboxes that `connect` finds, the latest first, as an iterator that asks for a page after another. */
  static async *list(options: ListOptions & SignalOption = {}): AsyncGenerator<SandboxInfo, void, undefined> {
    expectOptions(arguments, 1, [...CONNECT, "metadata", "name", "status"]);
    const { metadata = {}, name, status, signal } = options;
    const wanted: Record<string, string> = {};
    for (const [key, value] of Object.entries(metadata)) {
      // A value that is no text is meant as its JSON.
      wanted[`metadata.${key}`] = typeof value === "string" ? value : JSON.stringify(value);
    }
    if (name !== undefined) wanted.name = name;
    if (status !== undefined) wanted.status = status;
    const transport = await connect(options, "user");
    for await (const view of transport.sandboxes(wanted, { signal })) yield sandboxInfo(view);
  }

  /** Ends the sandbox of this id or name, as `connect` finds it, and says whether there was one. */
  static async kill(sandbox: string, options: ConnectOptions & SignalOption = {}): Promise<boolean> {
    expectOptions(arguments, 2, CONNECT);
    const transport = await connect(options, "user");
    try {
      await transport.destroy(await transport.find(sandbox, { signal: options.signal }));
    } catch (error) {
      if (error instanceof NotFound || error instanceof SandboxGone) return false;
      throw error;
    }
    return true;
  }

  /** What the sandbox of this id or name is, as `connect` finds it. */
  static async getInfo(sandbox: string, options: ConnectOptions & SignalOption = {}): Promise<SandboxInfo> {
    return (await Sandbox.connect(sandbox, options)).getInfo();
  }

  /** The same as `setTimeout` of a sandbox, by its id or name. */
  static async setTimeout(
    sandbox: string,
    timeoutMs: number,
    options: ConnectOptions & SignalOption = {},
  ): Promise<SandboxInfo> {
    return (await Sandbox.connect(sandbox, options)).setTimeout(timeoutMs);
  }

  /** The same as `pause` of a sandbox, by its id or name. */
  static async pause(sandbox: string, options: ConnectOptions & SignalOption = {}): Promise<SandboxInfo> {
    return (await Sandbox.connect(sandbox, options)).pause();
  }

  /** The same as `resume` of a sandbox, by its id or name. */
  static async resume(sandbox: string, options: ConnectOptions & SignalOption = {}): Promise<SandboxInfo> {
    return (await Sandbox.connect(sandbox, options)).resume();
  }

  /** What it is, and its state. */
  async getInfo(): Promise<SandboxInfo> {
    return sandboxInfo(await this.#open().ask(this.id, { method: "GET", path: "", replay: true }, {}));
  }

  /** The host of a public preview of this port: `https://` and this is `ports.url`. */
  async getHost(port: number): Promise<string> {
    return new URL(await this.ports.url(port)).host;
  }

  /**
   * Has it end so many milliseconds from now, whether that is later or sooner than before; `expiresAt` of what this gives
   * says when: a server has a longest life.
   */
  async setTimeout(timeoutMs: number): Promise<SandboxInfo> {
    const json = { ttl_ms: timeoutMs };
    return sandboxInfo(await this.#open().ask(this.id, { method: "PATCH", path: "", json, replay: true }, {}));
  }

  /** Freezes it, with its processes: they keep their memory, and run on with its next use. */
  async pause(): Promise<SandboxInfo> {
    return sandboxInfo(await this.#open().ask(this.id, { method: "POST", path: "pause", replay: true }, {}));
  }

  /** Has its processes run on. */
  async resume(): Promise<SandboxInfo> {
    return sandboxInfo(await this.#open().ask(this.id, { method: "POST", path: "resume", replay: true }, {}));
  }

  /** Runs a Luau script. */
  async runScript(script: string | Uint8Array, options: RunScriptOptions = {}): Promise<ScriptResult> {
    expectOptions(arguments, 2, SCRIPT);
    const transport = this.#open();
    return runScriptWith((request, how) => transport.execute(this.id, request, how), script, options);
  }

  /** Ends the sandbox, and removes it. A second call waits for the first. */
  close(): Promise<void> {
    this.#closing ??= this.#transport.destroy(this.id);
    return this.#closing;
  }

  /** The same as `close`. */
  kill(): Promise<void> {
    return this.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #open(): Transport {
    if (this.#closing) {
      throw errorOf({ kind: "gone", message: `the sandbox ${this.id} is closed`, hint: "create another one" });
    }
    return this.#transport;
  }
}

const HERE = ["binary", "engine", "rootfs", "imageArchive"];
const CONNECT = ["server", "token", ...HERE, "signal"];
const PLACE = [...CONNECT, "image", "ioDir", "limits", "network"];
const KEPT = ["name", "metadata", "env", "envs", "timeoutMs", "idle", "processes", "ports", "fileScope"];
const START = ["secrets", "timeoutMs", "limits", "signal", "args"];
const SCRIPT = [...START, "check", "onLog"];
const COMMAND = [...START, "env", "envs", "cwd", "stdin", "stopSignal", "stopTimeoutMs"];
const RUN = [...COMMAND, "check", "onStdout", "onStderr", "background"];
const BACKGROUND = [
  "args",
  "env",
  "envs",
  "cwd",
  "stdin",
  "secrets",
  "timeoutMs",
  "stopSignal",
  "stopTimeoutMs",
  "tag",
  "merge",
  "signal",
  "background",
];

type Execute = (
  request: wire.ExecutionRequest,
  options: {
    signal?: AbortSignal | undefined;
    cancel?: AbortSignal | undefined;
    onEvent?: ((event: wire.ExecutionEvent) => void) | undefined;
  },
) => Promise<wire.ExecutionDocument>;

function openPorts(ports: SandboxOptions["ports"]): { ports?: number[] | "any" } {
  if (ports === undefined) return {};
  return { ports: ports === "any" ? ports : [...ports] };
}

function specOf(options: SandboxOptions): SandboxSpec {
  return {
    image: options.image,
    ioDir: options.ioDir,
    limits: limitsRequest(options.limits),
    allow: options.network?.allow,
  };
}

/** Executes; what a listener throws cancels the execution and is thrown. Also returns whether the listener missed some. */
async function execute(
  run: Execute,
  request: wire.ExecutionRequest,
  listener: ((event: OutputEvent) => void) | undefined,
  signal: AbortSignal | undefined,
): Promise<[wire.ExecutionDocument, boolean]> {
  if (!listener) return [await run(request, { signal }), false];
  const { read, end } = outputReader();
  let missed = false;
  const fault = new AbortController();
  const forward = () => fault.abort(signal?.reason);
  if (signal?.aborted) forward();
  signal?.addEventListener("abort", forward, { once: true });
  const onEvent = (event: wire.ExecutionEvent) => {
    if (fault.signal.aborted) return;
    try {
      const output = read(event);
      missed ||= output?.type === "omitted";
      if (output) listener(output);
    } catch (error) {
      fault.abort(error);
    }
  };
  try {
    const document = await run(request, { signal: fault.signal, onEvent });
    if (fault.signal.aborted) throw fault.signal.reason;
    for (const output of end()) listener(output);
    return [document, missed];
  } finally {
    signal?.removeEventListener("abort", forward);
  }
}

async function runScriptWith(run: Execute, script: string | Uint8Array, options: RunScriptOptions) {
  const { onLog } = options;
  const listener = onLog && ((event: OutputEvent) => event.type === "log" && onLog(event.text, event.level));
  const [document, missed] = await execute(run, scriptRequest(script, options), listener, options.signal);
  return checked(scriptResult(document, missed), options.check);
}

async function runCommandWith(run: Execute, command: string | Uint8Array, options: RunCommandOptions) {
  const { onStdout, onStderr } = options;
  const listener =
    onStdout || onStderr
      ? (event: OutputEvent) => {
          if (event.type === "stdout") onStdout?.(event.text, event.bytes);
          else if (event.type === "stderr") onStderr?.(event.text, event.bytes);
        }
      : undefined;
  const [document, missed] = await execute(run, commandRequest(command, options), listener, options.signal);
  return checked(commandResult(document, missed), options.check);
}

function checked<R extends ScriptResult | CommandResult>(result: R, check: boolean | undefined): R {
  const failure = check ? failureOf(result) : undefined;
  if (failure) throw failure;
  return result;
}

/** The commands of a sandbox. It needs an image, or on the embedded engine a `rootfs` or an `imageArchive`. */
export class Commands {
  readonly #open: () => Transport;
  readonly #id: string;

  /** @internal */
  constructor(open: () => Transport, id: string) {
    this.#open = open;
    this.#id = id;
  }

  /**
   * Runs a command to its end. With `args`, `command` is a program; without, it is a line for the shell of the image.
   *
   * With `background: true` it is a process that lives on, in a sandbox that keeps some (`processes: "kept"`), and the
   * promise is fulfilled when it has started.
   */
  async run(command: string | Uint8Array, options: BackgroundOptions): Promise<Process>;
  async run(command: string | Uint8Array, options?: RunCommandOptions): Promise<CommandResult>;
  async run(
    command: string | Uint8Array,
    options: RunCommandOptions | BackgroundOptions = {},
  ): Promise<CommandResult | Process> {
    expectOptions(arguments, 2, options.background ? BACKGROUND : RUN);
    const transport = this.#open();
    if (options.background) {
      const { background: _, signal, ...rest } = options;
      const view = await transport.startProcess(this.#id, processRequest(command, rest), { signal });
      return new Process(this.#open, this.#id, processInfo(view));
    }
    return runCommandWith((request, how) => transport.execute(this.#id, request, how), command, options);
  }

  /** Starts a command, and returns while it runs. */
  start(command: string | Uint8Array, options: CommandOptions & SignalOption = {}): CommandHandle {
    expectOptions(arguments, 2, COMMAND);
    const transport = this.#open();
    return new CommandHandle((request, how) => transport.execute(this.#id, request, how), command, options);
  }

  /** The process with this id, or the last one that was started with this tag. */
  async connect(process: number | string): Promise<Process> {
    const path = typeof process === "number" ? `/${process}` : `?tag=${encodeURIComponent(process)}`;
    const answer = await this.#ask(`processes${path}`);
    const info = typeof process === "number" ? processInfo(answer) : processList(answer)[0];
    if (info) return new Process(this.#open, this.#id, info);
    const message = `there is no process with the tag '${process}'`;
    throw errorOf({ kind: "not_found", message, hint: "`commands.list` has all" });
  }

  /** The processes that run, and those that have ended lately, the latest first. */
  async list(): Promise<ProcessInfo[]> {
    return processList(await this.#ask("processes"));
  }

  #ask(path: string): Promise<unknown> {
    return this.#open().ask(this.#id, { method: "GET", path, replay: true }, {});
  }
}

/** The bytes of output that a handle keeps for its readers. */
const KEPT_BYTES = 64 * 1024 * 1024;
/** What an event counts beside its bytes. */
const EVENT_BYTES = 128;

/** A command that was started. Its output is read with `for await`, its end with `wait`. */
export class CommandHandle implements AsyncIterable<OutputEvent> {
  readonly #cancel = new AbortController();
  readonly #result: Promise<CommandResult>;
  readonly #events: OutputEvent[] = [];
  /** How many events were dropped before the first that is kept. */
  #dropped = 0;
  /** How many bytes of output they had. */
  #droppedBytes = 0;
  /** Whether the transport left some out. */
  #missed = false;
  #bytes = 0;
  #ended = false;
  #wake: (() => void)[] = [];

  /** @internal */
  constructor(run: Execute, command: string | Uint8Array, options: CommandOptions & SignalOption) {
    const { read, end } = outputReader();
    const onEvent = (event: wire.ExecutionEvent) => {
      const output = read(event);
      if (!output) return;
      this.#missed ||= output.type === "omitted";
      this.#keep(output);
      this.#notify();
    };
    const how = { signal: options.signal, cancel: this.#cancel.signal, onEvent };
    this.#result = run(commandRequest(command, options), how)
      .then((document) => {
        for (const output of end()) this.#keep(output);
        return commandResult(document, this.#missed);
      })
      .finally(() => {
        this.#ended = true;
        this.#notify();
      });
    // Callers that await the result get the error; an unawaited one is no unhandled rejection.
    this.#result.catch(() => {});
  }

  /** Waits for its end. Rejects if the sandbox failed, or the signal of the start was aborted. */
  async wait(options: { check?: boolean } = {}): Promise<CommandResult> {
    expectOptions(arguments, 1, ["check"]);
    return checked(await this.#result, options.check);
  }

  /** Kills it with all processes that it started; `wait` then has the status `cancelled`. */
  async cancel(): Promise<CommandResult> {
    this.#cancel.abort();
    return this.#result;
  }

  /**
   * What it says, from the start, as it happens; it ends with the command. Each reader gets all of it, unless it is 64
   * MiB behind: then `omitted` stands for what was dropped, and says how many bytes that were.
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<OutputEvent, void, undefined> {
    let next = 0;
    let bytes = 0;
    for (;;) {
      while (next >= this.#dropped + this.#events.length && !this.#ended) {
        await new Promise<void>((wake) => this.#wake.push(wake));
      }
      if (next < this.#dropped) {
        const missed = this.#droppedBytes - bytes;
        next = this.#dropped;
        bytes = this.#droppedBytes;
        yield { type: "omitted", bytes: missed };
        continue;
      }
      const event = this.#events[next - this.#dropped];
      if (!event) break;
      next += 1;
      bytes += outputBytes(event);
      yield event;
    }
    await this.#result;
  }

  #keep(event: OutputEvent): void {
    this.#events.push(event);
    this.#bytes += bytesOf(event);
    if (this.#bytes <= KEPT_BYTES) return;
    // Half of it at once: dropping from the front takes time.
    let count = 0;
    while (this.#bytes > KEPT_BYTES / 2 && count < this.#events.length) {
      const event = this.#events[count] as OutputEvent;
      this.#bytes -= bytesOf(event);
      this.#droppedBytes += outputBytes(event);
      count += 1;
    }
    this.#events.splice(0, count);
    this.#dropped += count;
  }

  #notify(): void {
    for (const wake of this.#wake.splice(0)) wake();
  }
}

/** How many bytes of output an event has. */
function outputBytes(event: OutputEvent): number {
  return event.type === "stdout" || event.type === "stderr" ? event.bytes.byteLength : 0;
}

/** What an event takes in memory, about. */
function bytesOf(event: OutputEvent): number {
  return EVENT_BYTES + outputBytes(event) + ("text" in event ? event.text.length : 0);
}

/** Runs a script in a sandbox of its own. */
export async function runScript(
  script: string | Uint8Array,
  options: SandboxOptions & RunScriptOptions = {},
): Promise<ScriptResult> {
  expectOptions(arguments, 2, [...PLACE, ...SCRIPT]);
  const transport = await connect(options);
  const { limits, ...rest } = options;
  const spec = specOf({ ...rest, limits });
  return runScriptWith((request, how) => transport.once(spec, request, how), script, rest);
}

/** Runs a command in a sandbox of its own. */
export async function exec(
  command: string | Uint8Array,
  options: SandboxOptions & RunCommandOptions = {},
): Promise<CommandResult> {
  expectOptions(arguments, 2, [...PLACE, ...RUN]);
  const transport = await connect(options);
  const { limits, ...rest } = options;
  const spec = specOf({ ...rest, limits });
  return runCommandWith((request, how) => transport.once(spec, request, how), command, rest);
}
