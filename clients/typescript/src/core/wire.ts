/** The data of the HTTP API, as it is sent: `snake_case`. */
import type * as api from "./generated.js";

export type {
  CommandRequest,
  Content,
  Envelope,
  ExecutionEvent,
  ExecutionRequest,
  ExecutionStatus,
  Failure,
  Limits,
  LimitsRequest,
  Network,
  Note,
  Operation,
  ProcessRequest,
  ProcessView,
  SandboxRequest,
  SandboxView,
  SignalName,
  SignalTarget,
  Timing,
  TouchedFile,
  Usage,
  WriteData,
} from "./generated.js";

/** What a server adds to a document. Lines have it not, and neither do events. */
type OfServer = "created_at" | "started_at" | "ended_at" | "metadata" | "sandbox" | "generation" | "restarted";

/** The document of a script. */
export type ResultDocument = Omit<api.ResultExecution, OfServer> & Partial<Pick<api.ResultExecution, OfServer>>;

/** The document of a command. */
export type ExecDocument = Omit<api.ExecExecution, OfServer> & Partial<Pick<api.ExecExecution, OfServer>>;

/** The document of a finished execution. */
export type ExecutionDocument = ResultDocument | ExecDocument;
