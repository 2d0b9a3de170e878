/** Calls over HTTP, with `fetch`. */
import { randomUUID } from "node:crypto";
import { eventOf, identifier, parsed, shaped, unexpected } from "../core/answers.js";
import { encoded, type Path, pathSegment, textOf } from "../core/bytes.js";
import { errorOf, isObject, NotFound, problemError, SandboxError, SandboxGone } from "../core/errors.js";
import { parseDocument } from "../core/executions.js";
import { Slots } from "../core/limiter.js";
import { linked, pause } from "../core/signals.js";
import { EventParser } from "../core/sse.js";
import type * as wire from "../core/wire.js";
import type { CallOptions, ExecuteOptions, SandboxSpec, Transport } from "./transport.js";

/** How often one request is made. */
const ATTEMPTS = 6;
/** The longest pause before another attempt; a server that asks for a longer one is not waited for. */
const MAX_PAUSE_MS = 60_000;
/** How long a request may wait for the end of an execution before it is asked for again. */
const WAIT_S = 60;
/** The time for one answer. */
const ANSWER_MS = 300_000;
/** The time for a cancellation whose caller has stopped waiting. */
const CANCEL_MS = 10_000;
/** The most bytes of an answer that is kept whole. */
const MAX_ANSWER = 128 * 1024 * 1024;
/** The most bytes of the reason of a refusal. */
const MAX_PROBLEM = 1024 * 1024;
/** The most bytes of a body that a server takes. */
const MAX_BODY = 48 * 1024 * 1024;
/** Operations that change nothing, and may be made again. */
const READING = new Set(["read", "view", "list", "glob", "grep", "exists", "stat"]);

interface Request {
  method: string;
  path: string;
  query?: Record<string, string | number> | undefined;
  body?: string | undefined;
  headers?: Record<string, string> | undefined;
  signal?: AbortSignal | undefined;
  /** Whether the request may be made again after its connection was lost. */
  replay: boolean;
}

/** Calls of one server with one token. */
export class HttpTransport implements Transport {
  readonly #base: string;
  readonly #headers: Record<string, string>;
  readonly #slots = new Slots();

  constructor(server: string, token: string | undefined) {
    let url: URL;
    try {
      url = new URL(server);
    } catch (cause) {
      throw errorOf({ kind: "config", message: `server: "${server}" is not a URL`, cause });
    }
    if (url.protocol !== "http:" && url.protocol !== "https:") {
      throw errorOf({
        kind: "config",
        message: `server: "${server}" is neither http:// nor https://`,
        hint: "a server on a UNIX socket is reached by the command line alone",
      });
    }
    if (url.username || url.password || url.search || url.hash) {
      throw errorOf({
        kind: "config",
        message: "server: a URL without credentials, query and fragment is expected",
        hint: "give the token as `token`",
      });
    }
    if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
      throw errorOf({ kind: "config", message: "token: it has characters that no token has" });
    }
    this.#base = url.href.replace(/\/+$/, "");
    // What is compressed has no bound before it is unpacked.
    const identity = { "accept-encoding": "identity" };
    this.#headers = token === undefined ? identity : { ...identity, authorization: `Bearer ${token}` };
  }

  async create(spec: SandboxSpec, { signal }: CallOptions): Promise<string> {
    // With a name the request can be repeated: it finds the sandbox that it has created.
    const body = { name: spec.name ?? `client-${randomUUID()}`, spec: kept(spec) };
    return identifier(await this.#operate("POST", "/v1/sandboxes", body, true, signal));
  }

  async operation(id: string, operation: wire.Operation, { signal }: CallOptions): Promise<wire.Envelope> {
    const replay = READING.has(operation.operation);
    const answer = await this.#operate("POST", `/v1/sandboxes/${id}/operations`, operation, replay, signal);
    return answer as wire.Envelope;
  }

  async execute(id: string, request: wire.ExecutionRequest, options: ExecuteOptions): Promise<wire.ExecutionDocument> {
    return this.#run(`/v1/sandboxes/${id}/executions`, request, options);
  }

  async once(
    spec: SandboxSpec,
    request: wire.ExecutionRequest,
    options: ExecuteOptions,
  ): Promise<wire.ExecutionDocument> {
    const { limits, ...rest } = kept(spec);
    const body = { ...rest, ...request, limits: { ...limits, ...request.limits } };
    return this.#run("/v1/executions", body as wire.ExecutionRequest, options);
  }

  async *download(id: string, path: Path, options: CallOptions): AsyncGenerator<Uint8Array, void, undefined> {
    const url = filePath(id, path);
    const release = await this.#slots.downloads.acquire(options.signal);
    const stop = new AbortController();
    const { signal, release: detach } = linked([options.signal, stop.signal]);
    try {
      const response = await this.#send({ method: "GET", path: url, replay: true, signal });
      if (!response.ok) throw await refusal(response);
      if (response.body) for await (const piece of response.body) yield piece as Uint8Array;
    } catch (error) {
      throw this.#named(error, options.signal);
    } finally {
      detach();
      stop.abort();
      release();
    }
  }

  async upload(
    id: string,
    path: Path,
    content: AsyncIterable<Uint8Array>,
    { signal }: CallOptions,
  ): Promise<wire.WriteData> {
    const url = this.#base + filePath(id, path);
    const release = await this.#slots.uploads.acquire(signal);
    let fault: { error: unknown } | undefined;
    async function* watched() {
      try {
        for await (const piece of content) if (piece.byteLength > 0) yield piece;
      } catch (error) {
        fault = { error };
        throw error;
      }
    }
    try {
      const init = {
        method: "PUT",
        headers: { ...this.#headers, "content-type": "application/octet-stream" },
        body: watched(),
        duplex: "half",
        redirect: "error",
        signal: signal ?? null,
      };
      const response = plain(await fetch(url, init as unknown as RequestInit));
      if (!response.ok) throw await refusal(response);
      return parsed(await readText(response, MAX_ANSWER)) as wire.WriteData;
    } catch (error) {
      // What the caller's own source threw is not a failure of the connection.
      if (fault) throw fault.error;
      throw this.#named(error, signal);
    } finally {
      release();
    }
  }

  async destroy(id: string): Promise<void> {
    try {
      await this.#json({ method: "DELETE", path: `/v1/sandboxes/${id}`, replay: true });
    } catch (error) {
      if (!(error instanceof NotFound || error instanceof SandboxGone)) throw error;
    }
  }

  async #operate(method: string, path: string, body: unknown, replay: boolean, signal?: AbortSignal): Promise<unknown> {
    const text = encoded(body);
    const release = await this.#slots.operations.acquire(signal);
    try {
      return await this.#json({ method, path, body: text, replay, signal });
    } finally {
      release();
    }
  }

  async #run(path: string, request: wire.ExecutionRequest, options: ExecuteOptions): Promise<wire.ExecutionDocument> {
    const body = encoded(request);
    const release = await this.#slots.executions.acquire(options.signal);
    const stop = linked([options.signal, options.cancel]);
    const submission = {
      method: "POST",
      path,
      body,
      headers: { "idempotency-key": randomUUID() },
      replay: true,
    };
    const follower = options.onEvent ? { onEvent: options.onEvent, last: 0 } : undefined;
    const end = (id: string, signal?: AbortSignal) =>
      follower ? this.#follow(id, follower, signal) : this.#wait(id, signal);
    let id: string | undefined;
    try {
      const query = follower ? undefined : { wait: WAIT_S };
      const answer = await this.#json({ ...submission, query, signal: stop.signal });
      if (hasEnded(answer)) return parseDocument(answer);
      id = identifier(answer);
      return await end(id, stop.signal);
    } catch (error) {
      if (!stop.signal.aborted) throw error;
      // The answer that had its id may be lost: the same key finds it.
      const limit = linked([], { ms: CANCEL_MS, reason: () => clientTimeout("the cancellation") });
      try {
        id ??= identifier(await this.#json({ ...submission, signal: limit.signal }));
        await this.#json({ method: "DELETE", path: `/v1/executions/${id}`, replay: true, signal: limit.signal });
      } catch (failure) {
        if (!options.signal?.aborted) throw failure;
      } finally {
        limit.release();
      }
      if (options.signal?.aborted) throw options.signal.reason;
      return await end(id as string, options.signal);
    } finally {
      stop.release();
      release();
    }
  }

  async #wait(id: string, signal?: AbortSignal): Promise<wire.ExecutionDocument> {
    for (let attempt = 1; ; attempt += 1) {
      const query = { wait: WAIT_S };
      const asked = performance.now();
      const answer = await this.#json({ method: "GET", path: `/v1/executions/${id}`, query, signal, replay: true });
      if (hasEnded(answer)) return parseDocument(answer);
      // A server that does not wait for the end is given more and more time.
      if (performance.now() - asked > 1_000) attempt = 1;
      await pause(backoff(attempt), signal);
    }
  }

  /** Follows the events to the end; a stream that breaks off is resumed after the last event that came. */
  async #follow(
    id: string,
    follower: { onEvent: (event: wire.ExecutionEvent) => void; last: number },
    signal?: AbortSignal,
  ): Promise<wire.ExecutionDocument> {
    for (let attempt = 1; ; attempt += 1) {
      const headers = { "last-event-id": String(follower.last), accept: "text/event-stream" };
      const path = `/v1/executions/${id}/events`;
      const stop = new AbortController();
      const { signal: both, release } = linked([signal, stop.signal]);
      let fault: unknown;
      try {
        const response = await this.#send({ method: "GET", path, headers, replay: true, signal: both });
        if (!response.ok) throw await refusal(response);
        const parser = new EventParser();
        const text = decoder();
        if (response.body) {
          for await (const piece of response.body) {
            for (const { data } of parser.push(text(piece as Uint8Array))) {
              const event = eventOf(parsed(data)) as unknown as wire.ExecutionEvent;
              if (event.seq <= follower.last) continue;
              follower.last = event.seq;
              attempt = 1;
              follower.onEvent(event);
              if (event.event === "end") {
                return event.document ? parseDocument(event.document) : await this.#wait(id, signal);
              }
            }
          }
        }
      } catch (error) {
        if (signal?.aborted) throw signal.reason;
        fault = error;
        if (!(error instanceof TypeError) && !(error instanceof SandboxError && error.retryable)) {
          throw this.#named(error, signal);
        }
      } finally {
        release();
        stop.abort();
      }
      if (attempt >= ATTEMPTS) throw this.#named(fault ?? new TypeError("the events break off"), signal);
      await pause(backoff(attempt), signal);
    }
  }

  /** The JSON of an answer; anything but success is thrown. */
  async #json(request: Request): Promise<unknown> {
    const limit = linked([request.signal], { ms: ANSWER_MS, reason: () => clientTimeout("the server's answer") });
    try {
      for (let attempt = 1; ; attempt += 1) {
        const response = await this.#send({ ...request, signal: limit.signal });
        try {
          if (!response.ok) throw await refusal(response);
          const body = await readText(response, MAX_ANSWER);
          return body === "" ? undefined : parsed(body);
        } catch (error) {
          // The connection was lost in the middle of the answer.
          const again = error instanceof TypeError && request.replay && attempt < ATTEMPTS && !limit.signal.aborted;
          if (!again) throw this.#named(error, limit.signal);
          await pause(backoff(attempt), limit.signal);
        }
      }
    } finally {
      limit.release();
    }
  }

  /** An answer, whatever its status, after the pauses that the server asks for. */
  async #send(request: Request): Promise<Response> {
    if (request.body && Buffer.byteLength(request.body) > MAX_BODY) {
      throw errorOf({
        kind: "too_large",
        message: `a request of more than ${MAX_BODY} bytes`,
        hint: "write large files in pieces: `files.write` takes an async iterator",
      });
    }
    const query = request.query ? `?${new URLSearchParams(request.query as Record<string, string>)}` : "";
    const init: RequestInit = {
      method: request.method,
      headers: {
        ...this.#headers,
        ...(request.body === undefined ? {} : { "content-type": "application/json" }),
        ...request.headers,
      },
      body: request.body ?? null,
      redirect: "error",
      signal: request.signal ?? null,
    };
    for (let attempt = 1; ; attempt += 1) {
      let wait: number;
      try {
        const response = plain(await fetch(this.#base + request.path + query, init));
        const asked = pauseAsked(response);
        if (asked === undefined || asked > MAX_PAUSE_MS || attempt >= ATTEMPTS) return response;
        await response.body?.cancel();
        wait = asked + backoff(attempt);
      } catch (error) {
        const safe = (request.replay || neverSent(error)) && !isUntrusted(error);
        if (request.signal?.aborted || !safe || attempt >= ATTEMPTS || !(error instanceof TypeError)) {
          throw this.#named(error, request.signal);
        }
        wait = backoff(attempt);
      }
      await pause(wait, request.signal);
    }
  }

  /** The error as the caller gets it. */
  #named(error: unknown, signal?: AbortSignal): unknown {
    if (signal?.aborted) return signal.reason;
    if (error instanceof SandboxError) return error;
    const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
    const detail = isObject(cause) && typeof cause.code === "string" ? cause.code : String((cause as Error).message);
    if (isUntrusted(error)) {
      return errorOf({
        kind: "unavailable",
        message: `the certificate of ${this.#base} is not trusted: ${detail}`,
        hint: "NODE_EXTRA_CA_CERTS=FILE, set before Node starts, names the certificate of its authority",
        retryable: false,
        cause: error,
      });
    }
    return errorOf({
      kind: "unavailable",
      message: `no connection to ${this.#base}: ${detail}`,
      hint: "is the server running, and is this its address?",
      retryable: true,
      cause: error,
    });
  }
}

/** The members of a sandbox that a server takes. */
function kept(spec: SandboxSpec): { image?: string; limits?: wire.LimitsRequest; network?: { allow: string[] } } {
  if (spec.ioDir !== undefined) {
    throw errorOf({
      kind: "usage",
      message: "ioDir is a directory of this machine, and a server uses none",
      hint: "write and read the files with `files`, or leave `server` out",
    });
  }
  return {
    ...(spec.image === undefined ? {} : { image: spec.image }),
    ...(spec.limits ? { limits: spec.limits } : {}),
    ...(spec.allow ? { network: { allow: [...spec.allow] } } : {}),
  };
}

const filePath = (id: string, path: Path) => `/v1/sandboxes/${id}/files/${pathSegment(path)}`;

const backoff = (attempt: number) => Math.min(100 * 2 ** (attempt - 1), 5_000) * (0.5 + Math.random() / 2);

const clientTimeout = (what: string) =>
  errorOf({ kind: "timeout", message: `timed out waiting for ${what}`, owner: "client", retryable: true });

/** How long the server asks to wait, in milliseconds; undefined if it does not. */
function pauseAsked(response: Response): number | undefined {
  if (response.status !== 429 && response.status !== 503 && response.status !== 409) return undefined;
  const after = response.headers.get("retry-after");
  if (after === null || !/^\d{1,9}$/.test(after)) return undefined;
  return Number(after) * 1000;
}

/** Whether a server's certificate was refused: to try again changes nothing. */
const isUntrusted = (error: unknown) =>
  /^(CERT_|DEPTH_ZERO_|SELF_SIGNED_|UNABLE_TO_(VERIFY|GET_ISSUER)_|ERR_TLS_CERT_)/.test(
    String(((error as Error | undefined)?.cause as { code?: unknown } | undefined)?.code),
  );

const neverSent = (error: unknown) =>
  error instanceof TypeError && isObject(error.cause) && error.cause.code === "ECONNREFUSED";

const hasEnded = (answer: unknown) =>
  !["queued", "running"].includes(shaped(answer, { status: "text" }).status as string);

/** A response as it was asked for. */
function plain(response: Response): Response {
  if ((response.headers.get("content-encoding") ?? "identity") === "identity") return response;
  void response.body?.cancel().catch(() => {});
  throw unexpected("it is compressed");
}

async function refusal(response: Response): Promise<SandboxError> {
  return problemError(response.status, await readText(response, MAX_PROBLEM).catch(() => ""));
}

/** Text of pieces, as they come. */
function decoder(): (piece: Uint8Array) => string {
  const strict = new TextDecoder("utf-8", { fatal: true });
  return (piece) => {
    try {
      return strict.decode(piece, { stream: true });
    } catch {
      throw unexpected("not UTF-8");
    }
  };
}

/** The text of a body, within a bound. */
async function readText(response: Response, most: number): Promise<string> {
  if (!response.body) return "";
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of response.body) {
    bytes += (piece as Uint8Array).byteLength;
    if (bytes > most) throw unexpected("it is too long");
    pieces.push(piece as Uint8Array);
  }
  const text = textOf(Buffer.concat(pieces));
  if (text === undefined) throw unexpected("not UTF-8");
  return text;
}
