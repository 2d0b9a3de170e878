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
  SignalName,
  Status,
} from "./core/executions.js";
export type {
  ProcessEvent,
  ProcessInfo,
  ProcessOptions,
  SandboxInfo,
  SignalTarget,
  TerminalOptions,
} from "./core/processes.js";
export * from "./files.js";
export { type CodeContext, type CodeOptions, type CodeRun, type CodeValue, Interpreter } from "./interpreter.js";
export {
  Forward,
  type ForwardOptions,
  type ListeningPort,
  Ports,
  type Preview,
  type PreviewOptions,
} from "./ports.js";
export { type EventsOptions, Process, Pty, Terminal } from "./process.js";
export {
  type BackgroundOptions,
  CommandHandle,
  Commands,
  type ConnectOptions,
  exec,
  type ListOptions,
  type RunCommandOptions,
  type RunControl,
  type RunScriptOptions,
  runScript,
  Sandbox,
  type SandboxOptions,
  type SignalOption,
} from "./sandbox.js";
