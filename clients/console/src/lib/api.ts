/** Requests to the service that served this page. */
import { EventParser } from "../../../typescript/src/core/sse";
import { s } from "../strings";
import type { Problem } from "./wire";

/** A request that was refused, failed, or did not arrive (status 0). */
export class ApiError extends Error {
  status: number;
  kind: string;
  hint?: string;
  requestId?: string;
  /** The invalid members of the request, by JSON Pointer. */
  errors: { pointer: string; detail: string }[];

  constructor(status: number, problem: Partial<Problem>, requestId?: string) {
    super(problem.detail ?? problem.title ?? s.ui.answered(status));
    this.status = status;
    this.kind = problem.kind ?? "unknown";
    this.hint = problem.hint ?? undefined;
    this.requestId = requestId;
    this.errors = problem.errors ?? [];
  }
}

export type Query = Record<string, string | number | boolean | undefined>;

/**
 * What proves to the service that this origin has signed in. A browser sends the session's cookie to every port of the
 * host, and takes one from each; this only pages of the exact origin can read. Without the cookie it is nothing.
 */
const PROOF = "sandboxctl.session-proof";

/** Keeps the proof of a new session, or of none. */
export function keepProof(proof: string | null): void {
  if (proof === null) localStorage.removeItem(PROOF);
  else localStorage.setItem(PROOF, proof);
}

/** The subprotocols of a WebSocket, which can have no header. */
export function subprotocols(...names: string[]): string[] {
  const proof = localStorage.getItem(PROOF);
  return proof === null ? names : [...names, `session-proof.${proof}`];
}

let unauthenticated: () => void = () => {};

/** Calls this after every answer of 401 to a request that is not about the session itself. */
export function onUnauthenticated(handler: () => void): void {
  unauthenticated = handler;
}

/** The address of a path below `/v1`. */
export function url(path: string, query: Query = {}): string {
  const members = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== "") members.set(name, String(value));
  }
  const text = members.toString();
  return `/v1${path}${text ? `?${text}` : ""}`;
}

async function request(address: string, init: RequestInit): Promise<Response> {
  let response: Response;
  const headers = new Headers(init.headers);
  const proof = localStorage.getItem(PROOF);
  if (proof !== null) headers.set("Session-Proof", proof);
  try {
    response = await fetch(address, { credentials: "same-origin", cache: "no-store", ...init, headers });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError(0, { kind: "internal", detail: s.ui.unreachable });
  }
  if (response.ok) return response;
  const id = response.headers.get("X-Request-Id") ?? undefined;
  const problem: Partial<Problem> = await response.json().catch(() => ({}));
  if (response.status === 401 && !address.startsWith("/v1/session")) unauthenticated();
  throw new ApiError(response.status, problem, id);
}

async function body<T>(response: Response): Promise<T> {
  const text = await response.text();
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

export async function get<T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> {
  return body<T>(await request(url(path, query), { signal }));
}

/** The bytes of a file. */
export async function blob(path: string, query?: Query, signal?: AbortSignal): Promise<Blob> {
  return (await request(url(path, query), { signal })).blob();
}

type SendOptions = { query?: Query; signal?: AbortSignal; headers?: Record<string, string> };

/** Sends JSON; or a `Blob`, `File` or `Uint8Array` as bytes. */
export async function send<T>(
  method: "POST" | "PUT" | "PATCH" | "DELETE",
  path: string,
  content?: unknown,
  options: SendOptions = {},
): Promise<T> {
  const headers: Record<string, string> = { ...options.headers };
  let data: BodyInit | undefined;
  if (content instanceof Blob || content instanceof Uint8Array) {
    headers["Content-Type"] ??= "application/octet-stream";
    data = content as BodyInit;
  } else if (content !== undefined) {
    headers["Content-Type"] ??= "application/json";
    data = JSON.stringify(content);
  }
  return body<T>(await request(url(path, options.query), { method, headers, body: data, signal: options.signal }));
}

/** An event of a stream; `data` is what the service sent as JSON. */
// biome-ignore lint/suspicious/noExplicitAny: each stream has events of its own.
export type StreamEvent = { id: number; event: string; data: any };

type FollowOptions = { after?: number; signal: AbortSignal; onState?: (state: "live" | "lost") => void };

/** The waits between attempts to connect again, in milliseconds; the last one repeats. */
const BACKOFF = [500, 1000, 2000, 5000, 10_000];

/** The service sends a comment every 15 seconds. What is silent for longer is lost, whatever the network says. */
const SILENCE_MS = 40_000;

/** Follows server-sent events. A lost stream is resumed after the last event; ends at the event `end`, or when aborted. */
export async function follow(path: string, on: (event: StreamEvent) => void, options: FollowOptions): Promise<void> {
  const { signal, onState } = options;
  let last = options.after ?? 0;
  let attempt = 0;
  while (!signal.aborted) {
    const silence = new AbortController();
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = window.setTimeout(() => silence.abort(), SILENCE_MS);
    };
    try {
      heard();
      const headers: Record<string, string> = { Accept: "text/event-stream" };
      if (last > 0) headers["Last-Event-ID"] = String(last);
      const response = await request(url(path), { headers, signal: AbortSignal.any([signal, silence.signal]) });
      if (!response.body) throw new ApiError(0, { detail: s.ui.noBody });
      onState?.("live");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new EventParser();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        heard();
        attempt = 0;
        for (const { id, data } of parser.push(value)) {
          const parsed = JSON.parse(data);
          if (id !== "") last = Number(id);
          on({ id: last, event: parsed.event, data: parsed });
          if (parsed.event === "end") {
            void reader.cancel();
            return;
          }
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      // What the service refuses now, it refuses again.
      if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) throw error;
    } finally {
      clearTimeout(timer);
    }
    onState?.("lost");
    const wait = BACKOFF[Math.min(attempt, BACKOFF.length - 1)] ?? 10_000;
    attempt += 1;
    await sleep(wait, signal);
  }
}

/** Waits, or until aborted. */
export function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(finish, ms);
    function finish() {
      clearTimeout(timer);
      signal.removeEventListener("abort", finish);
      resolve();
    }
    signal.addEventListener("abort", finish);
  });
}
