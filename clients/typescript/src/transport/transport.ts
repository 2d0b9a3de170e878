/** What carries calls. */
import type { Duplex } from "node:stream";
import type { Path } from "../core/bytes.js";
import type * as wire from "../core/wire.js";

/** A sandbox to be created. */
export interface SandboxSpec {
  image?: string | undefined;
  ioDir?: string | undefined;
  limits?: wire.LimitsRequest | undefined;
  allow?: readonly string[] | undefined;
  name?: string | undefined;
  /** Further members of what it is. */
  kept?: wire.SandboxRequest["spec"] | undefined;
  /** Further members of the request. */
  request?: Pick<wire.SandboxRequest, "metadata" | "ttl_ms" | "idle"> | undefined;
}

/** A request of a sandbox (with an empty path), or below it. */
export interface Ask {
  method: string;
  path: string;
  json?: unknown;
  content?: Uint8Array | undefined;
  /** Whether it may be made again after its connection was lost. */
  replay: boolean;
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
  /** Finds a sandbox by its id or its name, and returns its id. */
  find(which: string, options: CallOptions): Promise<string>;
  /** The views of the sandboxes of a list, page after page. */
  sandboxes(wanted: Record<string, string>, options: CallOptions): AsyncIterable<unknown>;
  operation(id: string, operation: wire.Operation, options: CallOptions): Promise<wire.Envelope>;
  execute(id: string, request: wire.ExecutionRequest, options: ExecuteOptions): Promise<wire.ExecutionDocument>;
  /** Runs in a sandbox of its own. */
  once(spec: SandboxSpec, request: wire.ExecutionRequest, options: ExecuteOptions): Promise<wire.ExecutionDocument>;
  download(id: string, path: Path, options: CallOptions): AsyncIterable<Uint8Array>;
  upload(id: string, path: Path, content: AsyncIterable<Uint8Array>, options: CallOptions): Promise<wire.WriteData>;
  /** The answer to a request of a sandbox. */
  ask(id: string, request: Ask, options: CallOptions): Promise<unknown>;
  /** The answer of an HTTP server at a port of a sandbox, as it comes. */
  port(id: string, port: number, request: Ask, options: CallOptions): AsyncIterable<Uint8Array>;
  /** Starts a process once, whatever happens to the connection, and returns its view. */
  startProcess(id: string, request: wire.ProcessRequest, options: CallOptions): Promise<unknown>;
  /** Waits until the process of a path has exited, and returns its view. */
  exited(id: string, path: string, options: CallOptions): Promise<unknown>;
  /** The events of a process after a number, or from now on, up to its end. */
  follow(id: string, path: string, after: number | undefined, options: CallOptions): AsyncIterable<wire.ExecutionEvent>;
  /** The events of a watch, after `undefined` when it is on. A connection that is lost is not made again. */
  changes(id: string, path: string, options: CallOptions): AsyncIterable<unknown>;
  /** A connection to a port of a sandbox, and what has come over it already. */
  tunnel(id: string, port: number): Promise<[Duplex, Buffer]>;
  /** Ends a sandbox; one that is gone already is not an error. */
  destroy(id: string): Promise<void>;
}
