/** How an execution ended, in words, with what that is known from. */
import { bytes, cut, duration, safe, spaced } from "../../lib/format";
import type { ExecExecution, Execution, ExecutionStatus } from "../../lib/wire";
import { s } from "../../strings";
import type { Tone } from "../../ui";

/** Every state, with its tone. */
export const TONES: Record<ExecutionStatus, Tone> = {
  ...{ queued: "muted", running: "info", ok: "ok", script_error: "bad", exit: "bad", limit: "warn" },
  ...{ timeout: "warn", cancelled: "muted", killed: "bad", agent_lost: "bad", error: "bad" },
};

/** The tone of a state; a later version may have others. */
export const tone = (status: ExecutionStatus): Tone => TONES[status] ?? "muted";

/** A state in words. */
export const statusText = (status: ExecutionStatus): string =>
  (s.statuses as Record<string, string>)[status] ?? spaced(status);

export const hasEnded = ({ status }: { status: ExecutionStatus }) => status !== "queued" && status !== "running";

/** The exit code of a command is its own; that of a script is sandboxctl's. */
export function isCommand(execution: Execution): execution is ExecExecution {
  return execution.schema === "sandboxctl.exec/1";
}

const SIGNALS = "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM".split(" ");

function signalName(signal: number): string {
  const name = SIGNALS[signal - 1];
  return name ? `SIG${name}` : s.verdict.signal(signal);
}

/** One sentence. */
export function sentence(execution: Execution): string {
  const { status, error, limits } = execution;
  const v = s.verdict;
  if (status === "ok") return isCommand(execution) ? v.okCommand : v.okScript;
  if (status === "script_error") return error?.line ? v.scriptErrorAt(error.line) : v.scriptError;
  if (status === "exit" && isCommand(execution) && execution.signal !== null)
    return v.ended(signalName(execution.signal));
  if (status === "exit") return v.exit(execution.exit_code);
  if (status === "limit")
    return v.limit((v.kinds as Record<string, string>)[error?.kind ?? ""] ?? spaced(error?.kind ?? ""));
  if (status === "timeout") return v.timeout(limits && duration(limits.timeout_ms));
  if (status === "error" && !execution.timing) return v.notRun;
  return (v.others as Record<string, string>)[status] ?? spaced(status);
}

/** What else is known of its end, each a short sentence. */
export function evidence(execution: Execution): string[] {
  if (!hasEnded(execution)) return [];
  const v = s.verdict;
  const found: (string | false | null | undefined)[] = [];
  const { network, committed, timing, status } = execution;
  if (isCommand(execution)) {
    const { exit_code: code, signal } = execution;
    const said = status === "ok" || status === "exit";
    if (code !== null) found.push(!said && v.exitCode(code));
    else if (timing) found.push(signal === null ? v.noExit : !said && v.bySignal(signalName(signal)));
    found.push(execution.stdout_truncated && v.cut("stdout"), execution.stderr_truncated && v.cut("stderr"));
  } else {
    const tests = execution.tests ?? [];
    const failed = tests.filter((test) => test.status === "failed").length;
    found.push(execution.logs_truncated && v.cut(v.log), tests.length > 0 && v.tests(failed, tests.length));
  }
  found.push(network && network.refused.length > 0 && v.refused(network.refused.length));
  found.push(committed === true && v.committed, committed === false && v.notCommitted);
  found.push(execution.restarted && v.restarted(execution.generation ?? 0), timing === null && v.nothingRan);
  return found.filter((each) => typeof each === "string");
}

/** A limit as people write it. */
export function limitText(name: string, value: number): string {
  if (name.endsWith("_ms")) return duration(value);
  return name.endsWith("_bytes") ? bytes(value) : value.toLocaleString("en");
}

/** What an execution is called: its title, or else what its submitter has noted, or its id. */
export function title({ id, metadata }: { id: string | null; metadata: Record<string, unknown> }): string {
  if (typeof metadata.title === "string" && metadata.title.trim() !== "") return safe(cut(metadata.title, 200));
  const notes = Object.entries(metadata).filter(([, value]) => value !== null && typeof value !== "object");
  return safe(cut(notes.map(([name, value]) => `${name}=${value}`).join(", "), 120)) || (id ?? "");
}
