/** Requests for scripts and commands, and what they come back as. */
import { constants } from "node:os";
import { DOCUMENTS, fromBase64, shaped, unexpected } from "./answers.js";
import { toBytes, toContent, toText } from "./bytes.js";
import { type ErrorDetails, errorOf, type SandboxError } from "./errors.js";
import { type Camel, camel, snake } from "./names.js";
import type * as wire from "./wire.js";

/** The limits that may be set, such as `memoryBytes` and `timeoutMs`. */
export type Limits = Camel<wire.LimitsRequest>;

/** A signal. */
export type SignalName = wire.SignalName;

/** How an execution ended. */
export type Status = Exclude<wire.ExecutionStatus, "queued" | "running">;

/** What every finished execution says. */
export interface Execution {
  /** Its id. */
  id: string | null;
  /** How it ended: `ok`, `script_error`, `exit`, `limit`, `timeout`, … */
  status: Status;
  /** What went wrong, if something did. */
  error: Camel<wire.Failure> | null;
  /** The files that it changed. */
  filesTouched: (Camel<wire.TouchedFile> & { nameBytes?: Uint8Array })[];
  /** Whether there were more. */
  filesTouchedTruncated: boolean;
  /** The engine that ran it. */
  engine: "docker" | "embedded" | null;
  /** The hosts that it reached, and those that were refused. */
  network: Camel<wire.Network> | null;
  /** Every limit that was in force. */
  limits: Camel<wire.Limits> | null;
  /** Time, memory and bytes written. */
  usage: Camel<wire.Usage> | null;
  /** What stood in its way in the sandbox, such as memory that ran out; empty if it ended well. */
  notes: Camel<wire.Note>[];
  /** Where the time went. */
  timing: Camel<wire.Timing> | null;
  /**
   * Whether its listeners, or the readers of its handle, missed output: a server keeps 4 MiB of a run.
   * The result is not affected.
   */
  missed: boolean;
  /** The whole document, as it came. */
  document: wire.ExecutionDocument;
}

/** What a script left. */
export interface ScriptResult extends Execution {
  /** What it returned, as JSON; null if it failed. */
  result: unknown;
  /** An entry for each `print` and `warn`. */
  logs: string[];
  /** Whether entries were cut or dropped. */
  logsTruncated: boolean;
}

/** What a command left. */
export interface CommandResult extends Execution {
  /** The command's own exit code, or null if a signal ended it, or it did not start. */
  exitCode: number | null;
  /** The signal that ended it. */
  signal: number | null;
  /** Its stdout as text; what is not UTF-8 is U+FFFD. */
  stdout: string;
  /** Its stderr as text; what is not UTF-8 is U+FFFD. */
  stderr: string;
  /** The bytes of its stdout. */
  stdoutBytes: Uint8Array;
  /** The bytes of its stderr. */
  stderrBytes: Uint8Array;
  /** Whether it wrote more than was kept. */
  stdoutTruncated: boolean;
  /** Whether it wrote more than was kept. */
  stderrTruncated: boolean;
}

/** What a script or a command says while it runs. */
export type OutputEvent =
  | { type: "start" }
  | { type: "stdout" | "stderr"; text: string; bytes: Uint8Array }
  | { type: "log"; level: "print" | "warn" | "truncated"; text: string }
  | { type: "refused"; host: string; port: number; reason: string }
  /**
   * Something is left out here: more was said than is kept. `bytes` is how much of it this client dropped; what a
   * server left out it does not count.
   */
  | { type: "omitted"; bytes: number | null };

/** What a script is given. */
export interface ScriptOptions {
  /** The script's `args`. */
  args?: Record<string, unknown> | undefined;
  /** `secrets.NAME` in the script. */
  secrets?: Record<string, string | Uint8Array> | undefined;
  /** Its time limit in milliseconds. */
  timeoutMs?: number | undefined;
  /** Limits of this run alone. */
  limits?: Limits | undefined;
}

/** What a command is given. */
export interface CommandOptions {
  /** Arguments of the program. Without them `command` is a line for the shell; `[]` is a program without any. */
  args?: readonly (string | Uint8Array)[] | undefined;
  /** Environment variables. */
  env?: Record<string, string | Uint8Array> | undefined;
  /** The same. */
  envs?: Record<string, string | Uint8Array> | undefined;
  /** The working directory; by default the io dir. */
  cwd?: string | Uint8Array | undefined;
  /** What it reads on stdin; by default nothing. */
  stdin?: string | Uint8Array | undefined;
  /** Secrets, as environment variables; they are replaced in its output. */
  secrets?: Record<string, string | Uint8Array> | undefined;
  /** Its time limit in milliseconds. */
  timeoutMs?: number | undefined;
  /** The signal that asks it to end: `TERM`, which it is by default, `SIGTERM` or 15. */
  stopSignal?: SignalName | `SIG${SignalName}` | number | undefined;
  /**
   * After how many milliseconds more it is killed, 0 for at once; by default 2 seconds, or what the limits of its sandbox
   * say.
   */
  stopTimeoutMs?: number | undefined;
  /** Limits of this run alone. */
  limits?: Limits | undefined;
}

type Texts = Record<string, string | Uint8Array>;

/** Names and their values, as they are sent. */
export function contents(texts: Texts, name: string) {
  if (typeof texts !== "object" || Array.isArray(texts)) {
    throw new TypeError(`${name}: names and their values are expected, such as { A: "1" }`);
  }
  return Object.fromEntries(Object.entries(texts).map(([k, v]) => [k, toContent(v, `${name}.${k}`)]));
}

type Common = Pick<CommandOptions, "secrets" | "limits" | "timeoutMs" | "stopTimeoutMs">;

function common(options: Common): wire.ExecutionRequest {
  const request: wire.ExecutionRequest = {};
  const { timeoutMs, stopTimeoutMs } = options;
  const limits = limitsRequest(options.limits, { timeoutMs, stopTimeoutMs });
  if (limits) request.limits = limits;
  if (options.secrets) request.secrets = contents(options.secrets, "secrets");
  return request;
}

/** The limits as they are sent, with options of their own; undefined if none is given. */
export function limitsRequest(limits: Limits | undefined, own: object = {}): wire.LimitsRequest | undefined {
  const out = { ...snake(limits ?? {}), ...snake(own) };
  return Object.keys(out).length > 0 ? (out as wire.LimitsRequest) : undefined;
}

/** The request for a script. */
export function scriptRequest(script: string | Uint8Array, options: ScriptOptions): wire.ExecutionRequest {
  const request: wire.ExecutionRequest = { script: toContent(script, "script"), ...common(options) };
  if (options.args) request.args = options.args;
  return request;
}

/** The request for a command: a program with arguments, or a line for the shell. */
export function commandRequest(command: string | Uint8Array, options: CommandOptions): wire.ExecutionRequest {
  const request: wire.ExecutionRequest = { command: commandOf(command, options), ...common(options) };
  if (options.stopSignal !== undefined) request.stop_signal = signalName(options.stopSignal);
  return request;
}

/** The name of a signal on the wire: of `TERM`, `SIGTERM` and 15. */
export function signalName(signal: string | number): SignalName {
  const named = Object.entries(constants.signals).find(([, number]) => number === signal);
  const name = typeof signal === "number" ? named?.[0] : signal.toUpperCase();
  if (name === undefined) throw new TypeError(`signal: ${signal} is not the number of a signal`);
  return name.replace(/^SIG/, "") as SignalName;
}

/** What of a command is said of any: what runs, and where. */
export function commandOf(
  command: string | Uint8Array,
  options: Pick<CommandOptions, "args" | "env" | "envs" | "cwd" | "stdin">,
): wire.CommandRequest {
  if (Array.isArray(command)) {
    throw new TypeError('command: text is expected, not a list: a program has `args`, as run("ls", { args: ["-l"] })');
  }
  if (options.args !== undefined && !Array.isArray(options.args)) throw new TypeError("args: a list is expected");
  const what: wire.CommandRequest =
    options.args === undefined
      ? { shell: toContent(command, "command") }
      : { program: toContent(command, "command"), args: options.args.map((arg) => toContent(arg, "args")) };
  const env = options.env ?? options.envs;
  if (env) what.env = contents(env, "env");
  if (options.cwd !== undefined) what.cwd = toContent(options.cwd, "cwd");
  if (options.stdin !== undefined) what.stdin = toContent(options.stdin, "stdin");
  return what;
}

/** The document of a finished execution. */
export function parseDocument(data: unknown): wire.ExecutionDocument {
  const schema = shaped(data, { schema: "text" }).schema as string;
  const shape = Object.hasOwn(DOCUMENTS, schema) ? DOCUMENTS[schema] : undefined;
  if (!shape) throw unexpected("not the document of an execution");
  return shaped(data, shape) as unknown as wire.ExecutionDocument;
}

function execution(document: wire.ExecutionDocument, missed: boolean): Execution {
  return {
    id: document.id,
    status: document.status as Status,
    error: document.error ? ({ ...document.error } as Camel<wire.Failure>) : null,
    filesTouched: camel(document.files_touched) as Execution["filesTouched"],
    filesTouchedTruncated: document.files_touched_truncated,
    engine: document.engine,
    network: camel(document.network) as Execution["network"],
    limits: camel(document.limits) as Execution["limits"],
    usage: camel(document.usage) as Execution["usage"],
    notes: camel(document.notes ?? []) as Execution["notes"],
    timing: camel(document.timing ?? null) as Execution["timing"],
    missed,
    document,
  };
}

/** The result of a script. `missed` says whether its events had a gap. */
export function scriptResult(data: unknown, missed = false): ScriptResult {
  const document = parseDocument(data);
  if (document.schema !== "sandboxctl.result/1") {
    throw unexpected("the document of a command, not of a script");
  }
  return {
    ...execution(document, missed),
    result: document.result,
    logs: document.logs,
    logsTruncated: document.logs_truncated,
  };
}

/** The bytes of an output. */
export function output(text: string, encoding: string | null | undefined): Uint8Array {
  if (encoding === "base64") return fromBase64(text);
  if ((encoding ?? "utf-8") === "utf-8") return toBytes(text);
  throw unexpected("an output in another encoding");
}

/** The result of a command. `missed` says whether its events had a gap. */
export function commandResult(data: unknown, missed = false): CommandResult {
  const document = parseDocument(data);
  if (document.schema !== "sandboxctl.exec/1") {
    throw unexpected("the document of a script, not of a command");
  }
  const stdoutBytes = output(document.stdout, document.stdout_encoding);
  const stderrBytes = output(document.stderr, document.stderr_encoding);
  return {
    ...execution(document, missed),
    exitCode: document.exit_code,
    signal: document.signal,
    stdout: toText(stdoutBytes),
    stderr: toText(stderrBytes),
    stdoutBytes,
    stderrBytes,
    stdoutTruncated: document.stdout_truncated,
    stderrTruncated: document.stderr_truncated,
  };
}

/** The error of an execution that did not end with `ok`, for `check`. */
export function failureOf(result: ScriptResult | CommandResult): SandboxError | undefined {
  if (result.status === "ok") return undefined;
  const details: ErrorDetails = {
    kind: result.error?.kind ?? result.status,
    message: result.error?.message ?? ended(result),
    hint: result.error?.hint ?? undefined,
    result,
    owner: "execution",
  };
  return errorOf(details);
}

function ended(result: ScriptResult | CommandResult): string {
  if (result.status !== "exit" || !("exitCode" in result)) return `it ended with the status ${result.status}`;
  const how = result.signal === null ? `exited with ${result.exitCode}` : `was ended by signal ${result.signal}`;
  const last = result.stderr.trimEnd().split("\n").at(-1)?.slice(0, 200);
  return `the command ${how}${last ? `: ${last}` : ""}`;
}

/**
 * Turns the events of the wire into output; text stays whole where a character is split between two. The end of the
 * output, without an event, is the rest of what was split.
 */
export function outputReader(): {
  read: (event: wire.ExecutionEvent) => OutputEvent | undefined;
  end: () => OutputEvent[];
} {
  const decoders = {
    stdout: new TextDecoder("utf-8", { ignoreBOM: true }),
    stderr: new TextDecoder("utf-8", { ignoreBOM: true }),
  };
  const read = (event: wire.ExecutionEvent): OutputEvent | undefined => {
    switch (event.event) {
      case "start":
        return { type: "start" };
      case "output": {
        const stream = event.stream === "stderr" ? "stderr" : "stdout";
        const bytes = output(event.text ?? "", event.encoding);
        return { type: stream, bytes, text: decoders[stream].decode(bytes, { stream: true }) };
      }
      case "log":
        return { type: "log", level: event.level ?? "print", text: event.text ?? "" };
      case "omitted":
        return { type: "omitted", bytes: null };
      case "refused":
        return event.host
          ? { type: "refused", host: event.host.host, port: event.host.port, reason: event.host.reason }
          : undefined;
      default:
        return undefined;
    }
  };
  const end = () =>
    (["stdout", "stderr"] as const).flatMap((type) => {
      const text = decoders[type].decode();
      return text === "" ? [] : [{ type, text, bytes: new Uint8Array() }];
    });
  return { read, end };
}
