/** How an execution ended, in words, with what that is known from. */
import { bytes, cut, duration, safe } from "../../lib/format";
import type { Execution, ExecutionStatus, Limits } from "../../lib/wire";
import { s } from "../../strings";
import type { Tone } from "../../ui";

export const TONES: Record<ExecutionStatus, Tone> = {
  queued: "muted",
  running: "info",
  ok: "ok",
  script_error: "bad",
  exit: "bad",
  limit: "warn",
  timeout: "warn",
  cancelled: "muted",
  killed: "bad",
  agent_lost: "bad",
  error: "bad",
};

/** The tone of a state; a later version may have others. */
export function tone(status: ExecutionStatus): Tone {
  return TONES[status] ?? "muted";
}

export function hasEnded(execution: { status: ExecutionStatus }): boolean {
  return execution.status !== "queued" && execution.status !== "running";
}

const SIGNALS: Record<number, string> = {
  1: "SIGHUP",
  2: "SIGINT",
  3: "SIGQUIT",
  4: "SIGILL",
  6: "SIGABRT",
  7: "SIGBUS",
  8: "SIGFPE",
  9: "SIGKILL",
  11: "SIGSEGV",
  13: "SIGPIPE",
  14: "SIGALRM",
  15: "SIGTERM",
  24: "SIGXCPU",
  25: "SIGXFSZ",
  31: "SIGSYS",
};

export function signalName(signal: number): string {
  return SIGNALS[signal] ?? s.execution.signal(signal);
}

/** The exit code of a command is its own; that of a script is sandboxctl's. */
export function isCommand(execution: Execution): execution is Extract<Execution, { stdout: string }> {
  return execution.schema === "sandboxctl.exec/1";
}

/** One sentence. */
export function sentence(execution: Execution): string {
  const words = s.verdict;
  const { status, error, limits } = execution;
  switch (status) {
    case "queued":
      return words.queued;
    case "running":
      return words.running;
    case "ok":
      return isCommand(execution) ? words.okCommand : words.okScript;
    case "script_error":
      return error?.line ? words.scriptErrorAt(error.line) : words.scriptError;
    case "exit":
      if (isCommand(execution) && execution.signal !== null) return words.signal(signalName(execution.signal));
      return words.exit(execution.exit_code);
    case "limit":
      return words.limit(error ? kindInWords(error.kind) : words.aLimit);
    case "timeout":
      return limits ? words.timeout(duration(limits.timeout_ms)) : words.timeoutUnknown;
    case "cancelled":
      return words.cancelled;
    case "killed":
      return words.killed;
    case "agent_lost":
      return words.agentLost;
    case "error":
      return words.error;
    default:
      return safe(status);
  }
}

function kindInWords(kind: string): string {
  return (s.verdict.kinds as Record<string, string>)[kind] ?? safe(kind).replaceAll("_", " ");
}

/** What else is known of its end, each a short sentence. */
export function evidence(execution: Execution): string[] {
  const words = s.verdict;
  const found: string[] = [];
  if (!hasEnded(execution)) return found;
  if (isCommand(execution)) {
    const { exit_code: code, signal, status } = execution;
    if (code === null && signal === null) found.push(words.noExit);
    else if (status !== "ok" && status !== "exit")
      found.push(code !== null ? words.exitCode(code) : words.bySignal(signalName(signal ?? 0)));
    if (execution.stdout_truncated) found.push(words.cut("stdout"));
    if (execution.stderr_truncated) found.push(words.cut("stderr"));
  } else if (execution.logs_truncated) found.push(words.cut(words.log));
  const tests = isCommand(execution) ? undefined : execution.tests;
  if (tests && tests.length > 0) {
    const failed = tests.filter((test) => test.status === "failed").length;
    found.push(failed > 0 ? words.testsFailed(failed, tests.length) : words.testsPassed(tests.length));
  }
  if (execution.network?.refused.length) found.push(words.refused(execution.network.refused.length));
  if (execution.committed === true) found.push(words.committed);
  if (execution.committed === false) found.push(words.notCommitted);
  if (execution.restarted) found.push(words.restarted(execution.generation ?? 0));
  if (execution.timing === null) found.push(words.nothingRan);
  return found;
}

/** A limit as people write it. */
export function limitText(name: string, value: number): string {
  if (name.endsWith("_ms")) return duration(value);
  if (name.endsWith("_bytes")) return bytes(value);
  return value.toLocaleString("en");
}

/** The name of a limit as people write it. */
export function limitName(name: keyof Limits | string): string {
  return name.replace(/_(ms|bytes)$/, "").replaceAll("_", " ");
}

/** What an execution is called: its title, or else what its submitter has noted, or its id. */
export function title({ id, metadata }: { id: string | null; metadata: Record<string, unknown> }): string {
  if (typeof metadata.title === "string" && metadata.title.trim() !== "") return safe(cut(metadata.title, 200));
  const notes = Object.entries(metadata).filter(([, value]) => value !== null && typeof value !== "object");
  const text = notes.map(([name, value]) => `${name}=${value}`).join(", ");
  return safe(cut(text, 120)) || (id ?? "");
}
