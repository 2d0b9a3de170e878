/** Calls over HTTP, of a server or of a process on this machine. */
import { randomUUID } from "node:crypto";
import type { IncomingMessage } from "node:http";
import { resolve } from "node:path";
import type { Duplex } from "node:stream";
import { eventOf, identifier, isIdentifier, parsed, shaped, unexpected } from "../core/answers.js";
import { encoded, type Path, pathSegment, textOf } from "../core/bytes.js";
import { errorOf, NotFound, problemError, SandboxError, SandboxGone } from "../core/errors.js";
import { parseDocument } from "../core/executions.js";
import { Slots } from "../core/limiter.js";
import { linked, pause } from "../core/signals.js";
import { EventParser } from "../core/sse.js";
import type * as wire from "../core/wire.js";
import type { LocalProcess } from "./local.js";
import { type Connections, Lost, pieces } from "./request.js";
import type { Ask, CallOptions, ExecuteOptions, SandboxSpec, Transport } from "./transport.js";

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
  /** JSON, or bytes. */
  body?: string | Uint8Array | undefined;
  headers?: Record<string, string> | undefined;
  signal?: AbortSignal | undefined;
  /** Whether the request may be made again after its connection was lost. */
  replay: boolean;
}

/** Where calls go. */
export interface Where {
  /** Its name in errors. */
  name: string;
  connections: Connections;
  token?: string | undefined;
  /** The process, if it is one on this machine. */
  local?: LocalProcess | undefined;
  /** Starts it again, if it is this user's own service, which ends by itself when it has no sandbox. */
  restart?: (() => Promise<Connections>) | undefined;
}

/** Calls of one server with one token, or of one process. */
export class HttpTransport implements Transport {
  readonly #where: Where;
  readonly #headers: Record<string, string>;
  readonly #slots = new Slots();
  /** The generations of the sandboxes of this machine: one that has ended is gone. A server starts it again. */
  readonly #generations = new Map<string, number>();

  constructor(where: Where) {
    this.#where = { ...where };
    // What is compressed has no bound before it is unpacked.
    const identity = { "accept-encoding": "identity" };
    this.#headers = where.token === undefined ? identity : { ...identity, authorization: `Bearer ${where.token}` };
  }

  async create(spec: SandboxSpec, { signal }: CallOptions): Promise<string> {
    // With a name the request can be repeated: it finds the sandbox that it has created.
    const body = { name: spec.name ?? `client-${randomUUID()}`, spec: this.#kept(spec), ...spec.request };
    const { local } = this.#where;
    local?.enter();
    try {
      const answer = await this.#operate("POST", "/v1/sandboxes", body, true, signal);
      const id = identifier(answer);
      if (local) this.#generations.set(id, shaped(answer, { generation: "integer" }).generation as number);
      return id;
    } catch (error) {
      // Cancelled too late, it may be there; one with a name of the caller's is found by it.
      if (signal?.aborted && spec.name === undefined) {
        void this.#operate("POST", "/v1/sandboxes", body, true)
          .then((answer) => this.#remove(identifier(answer)))
          .catch(() => {})
          .finally(() => local?.leave());
      } else await local?.leave();
      throw error;
    }
  }

  async find(which: string, { signal }: CallOptions): Promise<string> {
    if (isIdentifier(which)) {
      try {
        return identifier(await this.#operate("GET", `/v1/sandboxes/${which}`, undefined, true, signal));
      } catch (error) {
        if (!(error instanceof NotFound)) throw error;
      }
    }
    for await (const view of this.sandboxes({ name: which }, { signal })) return identifier(view);
    const hint = "`Sandbox.list` has those that there are";
    throw errorOf({ kind: "not_found", message: `there is no sandbox '${which}'`, hint });
  }

  async *sandboxes(wanted: Record<string, string>, { signal }: CallOptions): AsyncGenerator<unknown, void, undefined> {
    for (let cursor: string | undefined; ; ) {
      const query = { ...wanted, ...(cursor === undefined ? {} : { cursor }) };
      const parts = Object.entries(query).map((pair) => pair.map(encodeURIComponent).join("="));
      const path = `/v1/sandboxes${parts.length === 0 ? "" : `?${parts.join("&")}`}`;
      const answer = await this.#operate("GET", path, undefined, true, signal);
      const page = shaped(answer, { sandboxes: [{ id: "text" }], "next_cursor?": "text" });
      yield* page.sandboxes as unknown[];
      const next = (page.next_cursor ?? undefined) as string | undefined;
      if (next === undefined) return;
      if (next === cursor) throw unexpected("the next page is the same again");
      cursor = next;
    }
  }

  async ask(id: string, { method, path, json, content, replay }: Ask, { signal }: CallOptions): Promise<unknown> {
    const body = json === undefined ? content : encoded(json);
    const limiter = path.includes("wait=") ? this.#slots.followers : this.#slots.operations;
    const release = await limiter.acquire(signal);
    try {
      return await this.#json({ method, path: this.#in(id, path), body, replay, signal });
    } finally {
      release();
    }
  }

  async startProcess(id: string, request: wire.ProcessRequest, { signal }: CallOptions): Promise<unknown> {
    const headers = { "idempotency-key": randomUUID() };
    const submission = {
      method: "POST",
      path: this.#in(id, "processes"),
      body: encoded(request),
      headers,
      replay: true,
    };
    const release = await this.#slots.operations.acquire(signal);
    try {
      return await this.#json({ ...submission, signal });
    } catch (error) {
      // As that of an execution: the answer that had its id may be lost.
      if (signal?.aborted) {
        const limit = linked([], { ms: CANCEL_MS, reason: () => clientTimeout("the cancellation") });
        await this.#json({ ...submission, signal: limit.signal })
          .then((view) => `processes/${shaped(view, { id: "integer" }).id}`)
          .then((path) =>
            this.#json({ method: "DELETE", path: this.#in(id, path), replay: true, signal: limit.signal }),
          )
          .catch(() => {})
          .finally(limit.release);
      }
      throw error;
    } finally {
      release();
    }
  }

  async exited(id: string, path: string, options: CallOptions): Promise<unknown> {
    for (let attempt = 1; ; attempt += 1) {
      const asked = performance.now();
      const view = await this.ask(id, { method: "GET", path: `${path}&wait=${WAIT_S}`, replay: true }, options);
      if (shaped(view, { state: "text" }).state !== "running") return view;
      // As for the end of an execution.
      if (performance.now() - asked > 1_000) attempt = 1;
      await pause(backoff(attempt), options.signal);
    }
  }

  async *follow(
    id: string,
    path: string,
    after: number | undefined,
    { signal }: CallOptions,
  ): AsyncGenerator<wire.ExecutionEvent, void, undefined> {
    const release = await this.#slots.followers.acquire(signal);
    try {
      yield* this.#events(this.#in(id, path), after, signal);
    } finally {
      release();
    }
  }

  async *changes(id: string, path: string, { signal }: CallOptions): AsyncGenerator<unknown, void, undefined> {
    const release = await this.#slots.followers.acquire(signal);
    let response: IncomingMessage | undefined;
    try {
      const headers = { accept: "text/event-stream" };
      response = await this.#send({ method: "GET", path: this.#in(id, path), headers, replay: true, signal });
      if (!isSuccess(response)) throw await refusal(response);
      yield undefined;
      const parser = new EventParser();
      const text = decoder();
      for await (const piece of pieces(response)) {
        for (const { data } of parser.push(text(piece))) yield parsed(data);
      }
    } catch (error) {
      throw await this.#named(error, signal);
    } finally {
      // Also where nothing of it was read.
      response?.destroy();
      release();
    }
  }

  async operation(id: string, operation: wire.Operation, { signal }: CallOptions): Promise<wire.Envelope> {
    const replay = READING.has(operation.operation);
    const answer = await this.#operate("POST", this.#in(id, "operations"), operation, replay, signal);
    return answer as wire.Envelope;
  }

  async execute(id: string, request: wire.ExecutionRequest, options: ExecuteOptions): Promise<wire.ExecutionDocument> {
    return this.#run(this.#in(id, "executions"), request, options);
  }

  async once(
    spec: SandboxSpec,
    request: wire.ExecutionRequest,
    options: ExecuteOptions,
  ): Promise<wire.ExecutionDocument> {
    if (this.#where.local && spec.ioDir !== undefined) {
      const id = await this.create(spec, options);
      try {
        return await this.execute(id, request, options);
      } finally {
        await this.destroy(id);
      }
    }
    const { limits, ...rest } = this.#kept(spec);
    const body = { ...rest, ...request, limits: { ...limits, ...request.limits } };
    return this.#run("/v1/executions", body as wire.ExecutionRequest, options);
  }

  async *port(
    id: string,
    port: number,
    { method, path, json, replay }: Ask,
    options: CallOptions,
  ): AsyncGenerator<Uint8Array, void, undefined> {
    const release = await this.#slots.followers.acquire(options.signal);
    const stop = new AbortController();
    const { signal, release: detach } = linked([options.signal, stop.signal]);
    try {
      const body = json === undefined ? undefined : encoded(json);
      const url = `/v1/sandboxes/${id}/ports/${port}/http/${path}`;
      const response = await this.#send({ method, path: url, body, replay, signal });
      if (!isSuccess(response)) throw await refusal(response);
      yield* pieces(response);
    } catch (error) {
      throw await this.#named(error, options.signal);
    } finally {
      detach();
      stop.abort();
      release();
    }
  }

  async *download(id: string, path: Path, options: CallOptions): AsyncGenerator<Uint8Array, void, undefined> {
    const url = this.#in(id, `files/${pathSegment(path)}`);
    const release = await this.#slots.downloads.acquire(options.signal);
    const stop = new AbortController();
    const { signal, release: detach } = linked([options.signal, stop.signal]);
    try {
      const response = await this.#send({ method: "GET", path: url, replay: true, signal });
      if (!isSuccess(response)) throw await refusal(response);
      yield* pieces(response);
    } catch (error) {
      throw await this.#named(error, options.signal);
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
    const headers = { ...this.#headers, "content-type": "application/octet-stream" };
    const request = { method: "PUT", path: this.#in(id, `files/${pathSegment(path)}`), headers, body: content, signal };
    const release = await this.#slots.uploads.acquire(signal);
    try {
      const response = plain(await this.#where.connections.send(request));
      if (!isSuccess(response)) throw await refusal(response);
      return parsed(await readText(response, MAX_ANSWER)) as wire.WriteData;
    } catch (error) {
      // What the caller's own source threw is not a failure of the connection.
      throw error instanceof Lost || signal?.aborted ? await this.#named(error, signal) : error;
    } finally {
      release();
    }
  }

  async destroy(id: string): Promise<void> {
    try {
      await this.#remove(id);
    } finally {
      this.#generations.delete(id);
      await this.#where.local?.leave();
    }
  }

  async #remove(id: string): Promise<void> {
    try {
      await this.#json({ method: "DELETE", path: `/v1/sandboxes/${id}`, replay: true });
    } catch (error) {
      if (!(error instanceof NotFound || error instanceof SandboxGone)) throw error;
    }
  }

  tunnel(id: string, port: number): Promise<[Duplex, Buffer]> {
    const headers = { ...this.#headers, connection: "Upgrade", upgrade: "sandboxctl-tcp", "content-length": "0" };
    const path = this.#in(id, `ports/${port}/connect`);
    return this.#where.connections.switch({ method: "POST", path, headers });
  }

  /** The path of a sandbox, or of something in it, which may name a generation itself. */
  #in(id: string, what: string): string {
    if (what === "") return `/v1/sandboxes/${id}`;
    const generation = what.includes("generation=") ? undefined : this.#generations.get(id);
    const query = generation === undefined ? "" : `${what.includes("?") ? "&" : "?"}generation=${generation}`;
    return `/v1/sandboxes/${id}/${what}${query}`;
  }

  async #operate(method: string, path: string, body: unknown, replay: boolean, signal?: AbortSignal): Promise<unknown> {
    const text = body === undefined ? undefined : encoded(body);
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
      const waiting = follower ? path : `${path}${path.includes("?") ? "&" : "?"}wait=${WAIT_S}`;
      const answer = await this.#json({ ...submission, path: waiting, signal: stop.signal });
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
      const asked = performance.now();
      const path = `/v1/executions/${id}?wait=${WAIT_S}`;
      const answer = await this.#json({ method: "GET", path, signal, replay: true });
      if (hasEnded(answer)) return parseDocument(answer);
      // A server that does not wait for the end is given more and more time.
      if (performance.now() - asked > 1_000) attempt = 1;
      await pause(backoff(attempt), signal);
    }
  }

  /** Follows the events of an execution to the end. */
  async #follow(
    id: string,
    follower: { onEvent: (event: wire.ExecutionEvent) => void; last: number },
    signal?: AbortSignal,
  ): Promise<wire.ExecutionDocument> {
    for await (const event of this.#events(`/v1/executions/${id}/events`, follower.last, signal)) {
      follower.last = event.seq;
      follower.onEvent(event);
      if (event.event === "end" && event.document) return parseDocument(event.document);
    }
    return this.#wait(id, signal);
  }

  /** The events after the last one that is known, up to the end. A stream that breaks off is resumed. */
  async *#events(
    path: string,
    last: number | undefined,
    signal?: AbortSignal,
  ): AsyncGenerator<wire.ExecutionEvent, void, undefined> {
    for (let attempt = 1; ; attempt += 1) {
      const accept = { accept: "text/event-stream" };
      const headers = last === undefined ? accept : { ...accept, "last-event-id": String(last) };
      const stop = new AbortController();
      const { signal: both, release } = linked([signal, stop.signal]);
      let fault: unknown;
      try {
        const response = await this.#send({ method: "GET", path, headers, replay: true, signal: both });
        if (!isSuccess(response)) throw await refusal(response);
        const parser = new EventParser();
        const text = decoder();
        for await (const piece of pieces(response)) {
          for (const { data } of parser.push(text(piece))) {
            const event = eventOf(parsed(data)) as unknown as wire.ExecutionEvent;
            if (last !== undefined && event.seq <= last) continue;
            last = event.seq;
            attempt = 1;
            yield event;
            if (event.event === "end") return;
          }
        }
      } catch (error) {
        if (signal?.aborted) throw signal.reason;
        fault = await this.#named(error, signal);
        if (!isPassing(fault)) throw fault;
      } finally {
        release();
        stop.abort();
      }
      if (attempt >= ATTEMPTS) throw fault ?? (await this.#named(new Lost("the events break off", true), signal));
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
          if (!isSuccess(response)) throw await refusal(response);
          const body = await readText(response, MAX_ANSWER);
          return body === "" ? undefined : parsed(body);
        } catch (error) {
          // The connection was lost in the middle of the answer.
          const again = error instanceof Lost && request.replay && attempt < ATTEMPTS;
          const named = await this.#named(error, limit.signal);
          if (!(again && isPassing(named))) throw named;
          await pause(backoff(attempt), limit.signal);
        }
      }
    } finally {
      limit.release();
    }
  }

  /** An answer, whatever its status, after the pauses that the server asks for. */
  async #send(request: Request): Promise<IncomingMessage> {
    if (request.body && Buffer.byteLength(request.body) > MAX_BODY) {
      throw errorOf({
        kind: "too_large",
        message: `a request of more than ${MAX_BODY} bytes`,
        hint: "write large files in pieces: `files.write` takes an async iterator",
      });
    }
    const type = typeof request.body === "string" ? "application/json" : "application/octet-stream";
    const content = request.body === undefined ? {} : { "content-type": type };
    const sent = { ...request, headers: { ...this.#headers, ...content, ...request.headers } };
    for (let attempt = 1; ; attempt += 1) {
      let wait: number;
      try {
        const response = plain(await this.#where.connections.send(sent));
        const asked = pauseAsked(response);
        if (asked === undefined || asked > MAX_PAUSE_MS || attempt >= ATTEMPTS) return response;
        response.destroy();
        wait = asked + backoff(attempt);
      } catch (error) {
        const again = error instanceof Lost && (request.replay || !error.sent) && attempt < ATTEMPTS;
        const named = await this.#named(error, request.signal);
        if (!(again && isPassing(named))) throw named;
        wait = backoff(attempt);
      }
      await pause(wait, request.signal);
    }
  }

  /** The error as the caller gets it. */
  async #named(error: unknown, signal?: AbortSignal): Promise<unknown> {
    if (signal?.aborted) return signal.reason;
    if (!(error instanceof Lost)) return error;
    const { name, local, restart } = this.#where;
    const end = await local?.ended();
    if (end) return errorOf({ kind: end.kind, message: end.message, hint: end.hint, cause: error });
    if (restart && ["ECONNREFUSED", "ENOENT"].includes(error.code)) {
      // It has ended meanwhile: the next attempt finds another one.
      try {
        this.#where.connections = await restart();
      } catch (failure) {
        return failure;
      }
    }
    if (isUntrusted(error.code)) {
      return errorOf({
        kind: "unavailable",
        message: `the certificate of ${name} is not trusted: ${error.code}`,
        hint: "NODE_EXTRA_CA_CERTS=FILE, set before Node starts, names the certificate of its authority",
        retryable: false,
        cause: error,
      });
    }
    return errorOf({
      kind: "unavailable",
      message: `no connection to ${name}: ${error.code}`,
      hint: local || restart ? undefined : "is the server running, and is this its address?",
      retryable: true,
      cause: error,
    });
  }

  /** The members of a sandbox that a server takes, and of this machine's also its directory. */
  #kept(spec: SandboxSpec) {
    if (spec.ioDir !== undefined && !this.#where.local && !this.#where.restart) {
      throw errorOf({
        kind: "usage",
        message: "ioDir is a directory of this machine, and a server uses none",
        hint: "write and read the files with `files`, or leave `server` out",
      });
    }
    return {
      ...(spec.ioDir === undefined ? {} : { host_dir: resolve(spec.ioDir) }),
      ...(spec.image === undefined ? {} : { image: spec.image }),
      ...(spec.limits ? { limits: spec.limits } : {}),
      ...(spec.allow ? { network: { allow: [...spec.allow] } } : {}),
      ...spec.kept,
    };
  }
}

/** Whether the same request may succeed soon. */
const isPassing = (error: unknown) =>
  error instanceof SandboxError && error.retryable && !(error instanceof SandboxGone);

const backoff = (attempt: number) => Math.min(100 * 2 ** (attempt - 1), 5_000) * (0.5 + Math.random() / 2);

const clientTimeout = (what: string) =>
  errorOf({ kind: "timeout", message: `timed out waiting for ${what}`, owner: "client", retryable: true });

/** How long the server asks to wait, in milliseconds; undefined if it does not. */
function pauseAsked(response: IncomingMessage): number | undefined {
  if (![409, 429, 503].includes(response.statusCode ?? 0)) return undefined;
  const after = response.headers["retry-after"];
  if (after === undefined || !/^\d{1,9}$/.test(after)) return undefined;
  return Number(after) * 1000;
}

/** Whether a server's certificate was refused: to try again changes nothing. */
const isUntrusted = (code: string) =>
  /^(CERT_|DEPTH_ZERO_|SELF_SIGNED_|UNABLE_TO_(VERIFY|GET_ISSUER)_|ERR_TLS_CERT_)/.test(code);

const isSuccess = ({ statusCode = 0 }: IncomingMessage) => statusCode >= 200 && statusCode < 300;

const hasEnded = (answer: unknown) =>
  !["queued", "running"].includes(shaped(answer, { status: "text" }).status as string);

/** A response as it was asked for. */
function plain(response: IncomingMessage): IncomingMessage {
  if ((response.headers["content-encoding"] ?? "identity") === "identity") return response;
  response.destroy();
  throw unexpected("it is compressed");
}

async function refusal(response: IncomingMessage): Promise<SandboxError> {
  return problemError(response.statusCode ?? 0, await readText(response, MAX_PROBLEM).catch(() => ""));
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
async function readText(response: IncomingMessage, most: number): Promise<string> {
  const parts: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of pieces(response)) {
    bytes += piece.byteLength;
    if (bytes > most) throw unexpected("it is too long");
    parts.push(piece);
  }
  const text = textOf(Buffer.concat(parts));
  if (text === undefined) throw unexpected("not UTF-8");
  return text;
}
