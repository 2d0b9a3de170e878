/** What goes wrong, by its kind. */
import type * as wire from "./generated.js";

/** What went wrong, for programs: a kind of the API, or how an execution ended. A later version may have others. */
export type Kind = wire.ErrorKind | wire.ProblemKind | wire.ExecutionStatus | (string & {});

/** Whose time limit it was. */
export type TimeoutOwner = "execution" | "operation" | "server" | "client";

/** Everything that an error knows. */
export interface ErrorDetails {
  kind: Kind;
  message: string;
  hint?: string | undefined;
  retryable?: boolean | undefined;
  /** The HTTP status, if a server refused it. */
  status?: number | undefined;
  /** The finished execution, if it was asked for with `check`. */
  result?: unknown;
  /** Whose time limit it was, if `kind` is `timeout`. */
  owner?: TimeoutOwner | undefined;
  cause?: unknown;
}

const WORDS: [RegExp, string][] = [
  [/--image \(.*?\) selects/, "`image` selects"],
  [/--timeout raises the limit/, "`timeoutMs` raises the limit"],
  [/create a sandbox whose spec has `"processes": "kept"`/, 'create the sandbox with `processes: "kept"`'],
  [/start it with `"stdin": true`/, "start it with `stdin: true`"],
  [/(--[a-z-]+|SANDBOXCTL_\w+, or [\w.]+ in \S+,) raises the limit/, "`limits` raises the limit"],
];

/** A hint of the command line, in the words of this package. */
function worded(hint: string): string {
  return WORDS.reduce((text, [flag, option]) => text.replace(flag, option), hint);
}

/** An error of sandboxctl. `kind` is stable and for programs; `message` and `hint` are for people. */
export class SandboxError extends Error {
  /** What went wrong, for programs: `not_found`, `timeout`, … */
  readonly kind: Kind;
  /** What to do about it, if there is a next step to suggest. */
  readonly hint: string | undefined;
  /** Whether a retry of the same call may succeed. */
  readonly retryable: boolean;
  /** The HTTP status, if a server refused the request. */
  readonly status: number | undefined;
  /** The finished execution, if the error is that of a run with `check: true`. */
  readonly result: unknown;

  constructor(details: ErrorDetails) {
    super(details.message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.kind = details.kind;
    this.hint = details.hint === undefined ? undefined : worded(details.hint);
    this.retryable = details.retryable ?? RETRYABLE.has(details.kind);
    this.status = details.status;
    this.result = details.result;
  }
}

/** A path, or another thing that was named, does not exist. */
export class NotFound extends SandboxError {}

/** A time limit expired; `owner` says whose. */
export class Timeout extends SandboxError {
  /** Whose limit: that of the execution, of a file operation, of the server, or of this client. */
  readonly owner: TimeoutOwner;
  constructor(details: ErrorDetails) {
    super(details);
    this.owner = details.owner ?? "server";
  }
}

/** A limit of the sandbox or of the server: memory, sizes, numbers. */
export class LimitExceeded extends SandboxError {}

/** A rule forbids it: a path outside, a protected name, a host, a scope. */
export class PolicyDenied extends SandboxError {}

/** The sandbox, or the process or server that kept it, is gone: create another one. */
export class SandboxGone extends SandboxError {}

/** It cannot be done now: the queue is full, a rate is exceeded, no server answers. */
export class ServerBusy extends SandboxError {}

const RETRYABLE = new Set([
  "busy",
  "engine",
  "agent_lost",
  "rate_limited",
  "full",
  "unavailable",
  "in_flight",
  "request_timeout",
  "stdin_full",
]);

type ErrorClass = new (details: ErrorDetails) => SandboxError;

const CLASSES: [ErrorClass, string[]][] = [
  [NotFound, ["not_found"]],
  [Timeout, ["timeout", "request_timeout"]],
  [
    LimitExceeded,
    [
      "too_large",
      "write_limit",
      "too_many_files",
      "too_many_handles",
      "disk_full",
      "out_of_memory",
      "output_limit",
      "source_too_large",
      "result_too_large",
      "limit",
      "quota_exceeded",
    ],
  ],
  [PolicyDenied, ["path_escape", "not_allowed", "protected", "read_only", "policy", "network_refused", "forbidden"]],
  [SandboxGone, ["agent_lost", "gone"]],
  [ServerBusy, ["busy", "rate_limited", "full", "unavailable", "in_flight", "stdin_full"]],
];

const BY_KIND = new Map(CLASSES.flatMap(([type, kinds]) => kinds.map((kind) => [kind, type] as const)));

/** The error of this kind, in the class that programs catch. */
export function errorOf(details: ErrorDetails): SandboxError {
  return new (BY_KIND.get(details.kind) ?? SandboxError)(details);
}

/** Whether something is an object with members. */
export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const text = (value: unknown): string | undefined => (typeof value === "string" ? value : undefined);

/** The error of an HTTP answer: a Problem Details document, or whatever a proxy sent instead. */
export function problemError(status: number, body: string): SandboxError {
  let problem: unknown;
  try {
    problem = JSON.parse(body);
  } catch {
    problem = undefined;
  }
  if (isObject(problem) && typeof problem.kind === "string") {
    return errorOf({
      kind: problem.kind,
      message: text(problem.detail) ?? text(problem.title) ?? `HTTP status ${status}`,
      hint: text(problem.hint),
      retryable: RETRYABLE.has(problem.kind) || status === 429 || status === 503,
      status,
      owner: problem.kind === "timeout" ? "operation" : "server",
    });
  }
  return errorOf({
    kind: KIND_OF_STATUS[status] ?? (status >= 500 ? "internal" : "invalid_request"),
    message: `HTTP status ${status}: ${body.slice(0, 200).trim() || "no explanation"}`,
    hint: "the answer is not one of sandboxctl: is a proxy in between, or another server?",
    retryable: status === 429 || status >= 502,
    status,
  });
}

const KIND_OF_STATUS: Record<number, string> = {
  401: "unauthenticated",
  403: "forbidden",
  404: "not_found",
  408: "request_timeout",
  410: "gone",
  413: "too_large",
  429: "rate_limited",
  502: "unavailable",
  503: "unavailable",
  504: "request_timeout",
};

/** The error of a line `{"id", "error", "metadata"}`. */
export function lineError(line: Record<string, unknown>): SandboxError {
  const metadata = isObject(line.metadata) ? line.metadata : {};
  const message = text(line.error) ?? "an error without a message";
  let kind = text(metadata.kind) ?? "internal";
  // The sandbox has ended, whatever the reason, which the message has: to a caller it is gone.
  if (/^Container '.*' (not registered$|has ended: )/s.test(message)) kind = "gone";
  const retryable = metadata.retryable;
  return errorOf({
    kind,
    message,
    hint: text(metadata.hint),
    retryable: typeof retryable === "boolean" ? retryable : undefined,
    owner: "operation",
  });
}
