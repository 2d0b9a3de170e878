/** Sandboxes for scripts and commands. */
export type { Path } from "./core/bytes.js";
export {
  type ErrorDetails,
  type Kind,
  LimitExceeded,
  NotFound,
  PolicyDenied,
  SandboxError,
  SandboxGone,
  ServerBusy,
  Timeout,
  type TimeoutOwner,
} from "./core/errors.js";
export type {
  CommandOptions,
  CommandResult,
  Execution,
  Limits,
  OutputEvent,
  ScriptOptions,
  ScriptResult,
  Status,
} from "./core/executions.js";
export * from "./files.js";
export {
  CommandHandle,
  Commands,
  type ConnectOptions,
  exec,
  type RunCommandOptions,
  type RunControl,
  type RunScriptOptions,
  runScript,
  Sandbox,
  type SandboxOptions,
  type SignalOption,
} from "./sandbox.js";
