/** What carries calls. */
import type { Path } from "../core/bytes.js";
import type * as wire from "../core/wire.js";

/** A sandbox to be created. */
export interface SandboxSpec {
  image?: string | undefined;
  ioDir?: string | undefined;
  limits?: wire.LimitsRequest | undefined;
  allow?: readonly string[] | undefined;
  name?: string | undefined;
}

/** How a call may be ended, and the listeners for its events. */
export interface CallOptions {
  signal?: AbortSignal | undefined;
}

/** How an execution is followed. */
export interface ExecuteOptions extends CallOptions {
  /** Aborted to cancel the execution; its document is the answer nevertheless. */
  cancel?: AbortSignal | undefined;
  onEvent?: ((event: wire.ExecutionEvent) => void) | undefined;
}

/** Calls, as the process or the server takes them. Every failure is a `SandboxError`. */
export interface Transport {
  create(spec: SandboxSpec, options: CallOptions): Promise<string>;
  operation(id: string, operation: wire.Operation, options: CallOptions): Promise<wire.Envelope>;
  execute(id: string, request: wire.ExecutionRequest, options: ExecuteOptions): Promise<wire.ExecutionDocument>;
  /** Runs in a sandbox of its own. */
  once(spec: SandboxSpec, request: wire.ExecutionRequest, options: ExecuteOptions): Promise<wire.ExecutionDocument>;
  download(id: string, path: Path, options: CallOptions): AsyncIterable<Uint8Array>;
  upload(id: string, path: Path, content: AsyncIterable<Uint8Array>, options: CallOptions): Promise<wire.WriteData>;
  /** Ends a sandbox; one that is gone already is not an error. */
  destroy(id: string): Promise<void>;
}
