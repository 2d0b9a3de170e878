/** Requests for processes and terminals, and what is known of them and of their sandboxes. */
import { type Shape, shaped, unexpected } from "./answers.js";
import { errorOf } from "./errors.js";
import { type CommandOptions, commandOf, contents, output, signalName } from "./executions.js";
import { type Camel, camel } from "./names.js";
import type * as wire from "./wire.js";

/**
 * What a process is: `id`, `pid`, `command`, `tag`, `pty`, `startedAt`, `exitedAt`, `exitCode`, `signal`, `cpuMs` and
 * others. Its `state` is `running`, `left` if it has exited and processes that it started go on, or `ended`.
 */
export type ProcessInfo = Camel<wire.ProcessView>;

/** Who gets it: the process, its group, the foreground group of its terminal, or all that it has started. */
export type SignalTarget = wire.SignalTarget;

/** What a sandbox is, and its state. */
export interface SandboxInfo {
  id: string;
  name: string | null;
  /** `starting`, `ready`, `paused`, or `stopped`: then it has its files, and its next use starts it again. */
  status: string;
  /** The number of its container, from 1. Processes and their output end with theirs. */
  generation: number;
  /** How many processes have not ended, of those that were started in the background; null if that is unknown. */
  processes: number | null;
  metadata: Record<string, unknown>;
  createdAt: string;
  lastUsedAt: string;
  /** When it ends, unless `setTimeout` says otherwise. */
  expiresAt: string;
  /** When it stops, or is frozen, unless it is used. */
  idleAt: string | null;
  /** The whole view, as it came: also its `spec` and others. */
  document: wire.SandboxView;
}

/** Something that happened to a process. The output of a terminal is `stdout`. */
export interface ProcessEvent {
  /** Its number, from 1: `events({ after })` goes on after it. */
  seq: number;
  /**
   * What happened. `omitted` stands for events that are no longer kept, and has the number of the last of them. `end`
   * is the last: nothing that it started is left.
   */
  type: "start" | "stdout" | "stderr" | "omitted" | "exit" | "end";
  time: string;
  /** A piece of output. */
  bytes: Uint8Array;
  /** The same as text of whole characters; what is not UTF-8 is U+FFFD. */
  text: string;
  /** The exit code, of `exit` and `end`; null if a signal ended it. */
  exitCode: number | null;
  /** The signal that ended it. */
  signal: number | null;
}

/** What a process is given. */
export interface ProcessOptions
  extends Pick<CommandOptions, "args" | "env" | "envs" | "cwd" | "secrets" | "stopSignal" | "stopTimeoutMs"> {
  /** What it reads on stdin; `true` leaves it open for `sendStdin`. By default it reads nothing. */
  stdin?: string | Uint8Array | boolean | undefined;
  /** After how many milliseconds it is stopped; by default it runs until it ends, or its sandbox does. */
  timeoutMs?: number | undefined;
  /** A word by which `commands.connect` finds it. */
  tag?: string | undefined;
  /** Whether its stderr is in its stdout, in the order of writing. */
  merge?: boolean | undefined;
}

/** What a terminal is given. */
export interface TerminalOptions extends Omit<ProcessOptions, "stdin" | "merge"> {
  /** What runs in it; by default a shell. */
  command?: string | Uint8Array | undefined;
  /** Its width; by default 80. */
  cols?: number | undefined;
  /** Its height; by default 24. */
  rows?: number | undefined;
  /** The kind of the terminal, `TERM`; by default `xterm-256color`. */
  term?: string | undefined;
}

/** The shell of a terminal: the one that people like best of those that there are. */
const SHELL = "command -v bash >/dev/null && exec bash; exec sh";

/** The request for a process. */
export function processRequest(command: string | Uint8Array, options: ProcessOptions): wire.ProcessRequest {
  const { stdin, secrets, timeoutMs, tag, merge, stopSignal, stopTimeoutMs, ...rest } = options;
  const isText = stdin !== undefined && typeof stdin !== "boolean";
  return {
    command: commandOf(command, isText ? { ...rest, stdin } : rest),
    ...(stdin === true ? { stdin } : {}),
    ...(secrets ? { secrets: contents(secrets, "secrets") } : {}),
    ...(timeoutMs === undefined ? {} : { timeout_ms: timeoutMs }),
    ...(tag === undefined ? {} : { tag }),
    ...(merge ? { merge } : {}),
    ...(stopSignal === undefined ? {} : { stop_signal: signalName(stopSignal) }),
    ...(stopTimeoutMs === undefined ? {} : { stop_timeout_ms: stopTimeoutMs }),
  };
}

/** The request for a terminal. */
export function terminalRequest({ command = SHELL, cols = 80, rows = 24, term, ...rest }: TerminalOptions) {
  const pty = { cols, rows, ...(term === undefined ? {} : { term }) };
  return { ...processRequest(command, { ...rest, stdin: true }), pty };
}

const PROCESS: Shape = {
  id: "integer",
  pid: "integer",
  generation: "integer",
  command: "text",
  "tag?": "text",
  state: "text",
  pty: "flag",
  started_at: "text",
  "exited_at?": "text",
  "exit_code?": "integer",
  "signal?": "integer",
  "stopped?": "text",
  "out_of_memory?": "flag",
  "cpu_ms?": "integer",
  "peak_memory_bytes?": "integer",
  first_event: "integer",
  last_event: "integer",
};

const SANDBOX: Shape = {
  id: "text",
  "name?": "text",
  status: "text",
  generation: "integer",
  "processes?": "integer",
  "metadata?": "object",
  created_at: "text",
  last_used_at: "text",
  expires_at: "text",
  "idle_at?": "text",
};

/** What a process is, from its view. */
export function processInfo(view: unknown): ProcessInfo {
  const info = camel(shaped(view, PROCESS)) as ProcessInfo;
  if (!["running", "left", "ended"].includes(info.state)) throw unexpected("it has another `state`");
  return info;
}

/** The processes of a list. */
export function processList(list: unknown): ProcessInfo[] {
  return (shaped(list, { processes: [PROCESS] }).processes as unknown[]).map(processInfo);
}

/** What a sandbox is, from its view. */
export function sandboxInfo(view: unknown): SandboxInfo {
  const document = shaped(view, SANDBOX) as unknown as wire.SandboxView;
  return {
    id: document.id,
    name: document.name ?? null,
    status: document.status,
    generation: document.generation,
    processes: document.processes ?? null,
    metadata: document.metadata ?? {},
    createdAt: document.created_at,
    lastUsedAt: document.last_used_at,
    expiresAt: document.expires_at,
    idleAt: document.idle_at ?? null,
    document,
  };
}

/** What a process is that has exited, but with `check` its error unless its exit code is 0. */
export function exited(info: ProcessInfo, check: boolean | undefined): ProcessInfo {
  if (!check || info.exitCode === 0) return info;
  const how = info.signal === null ? `exited with ${info.exitCode}` : `was ended by signal ${info.signal}`;
  throw errorOf({ kind: info.stopped ?? "exit", message: `the process ${how}`, result: info, owner: "execution" });
}

/** Makes events of those of the wire, for one reader; undefined for one that this version does not know. */
export function processReader(): (event: wire.ExecutionEvent) => ProcessEvent | undefined {
  const decoders = {
    stdout: new TextDecoder("utf-8", { ignoreBOM: true }),
    stderr: new TextDecoder("utf-8", { ignoreBOM: true }),
  };
  /** What is left of characters whose other bytes do not come. */
  const rest = () => decoders.stdout.decode() + decoders.stderr.decode();
  return (event) => {
    const { seq, time } = event;
    const plain = { seq, time, bytes: new Uint8Array(), text: "", exitCode: null, signal: null };
    switch (event.event) {
      case "start":
        return { ...plain, type: "start" };
      case "output": {
        const type = event.stream === "stderr" ? "stderr" : "stdout";
        const bytes = output(event.text ?? "", event.encoding);
        return { ...plain, type, bytes, text: decoders[type].decode(bytes, { stream: true }) };
      }
      case "omitted":
        return { ...plain, type: "omitted", text: rest() };
      case "exit":
        return { ...plain, type: "exit", exitCode: event.exit_code ?? null, signal: event.signal ?? null };
      case "end": {
        const { exitCode, signal } = processInfo(event.document);
        return { ...plain, type: "end", text: rest(), exitCode, signal };
      }
      default:
        return undefined;
    }
  };
}
