/** Requests over HTTP/1.1: over TCP, TLS or a UNIX socket. */
import { once } from "node:events";
import { Agent, type ClientRequest, type IncomingMessage, request as overHttp, type RequestOptions } from "node:http";
import { request as overHttps, Agent as TlsAgent } from "node:https";
import type { Duplex } from "node:stream";

/** The time for a connection. */
const CONNECT_MS = 10_000;

/** What a request fails with if there is no answer, or not all of it. */
export class Lost extends Error {
  /** Whether the server may have got the request. */
  readonly sent: boolean;

  constructor(cause: unknown, sent: boolean) {
    super(cause instanceof Error ? cause.message : String(cause), { cause });
    this.sent = sent;
  }

  /** Why, for people and programs. */
  get code(): string {
    return String((this.cause as { code?: unknown } | undefined)?.code ?? this.message);
  }
}

/** What is sent. */
export interface Sent {
  method: string;
  path: string;
  headers: Record<string, string>;
  /** The whole, or pieces, which the server may refuse before their end. */
  body?: string | Uint8Array | AsyncIterable<Uint8Array> | undefined;
  signal?: AbortSignal | undefined;
}

/** The connections to one server. A connection is used by one request at a time, and does not keep the program running. */
export class Connections {
  readonly #options: RequestOptions;
  readonly #prefix: string;
  readonly #isSecure: boolean;

  /** `server` is its URL, or the path of its socket. */
  constructor(server: URL | string) {
    this.#isSecure = typeof server !== "string" && server.protocol === "https:";
    const agent = new (this.#isSecure ? TlsAgent : Agent)({ keepAlive: true });
    if (typeof server === "string") {
      this.#prefix = "";
      this.#options = { agent, socketPath: server };
    } else {
      this.#prefix = server.pathname.replace(/\/+$/, "");
      this.#options = { agent, hostname: server.hostname.replace(/^\[|\]$/g, ""), port: server.port || undefined };
    }
  }

  /** The connection of a request that asks for another protocol, and what has come over it after the answer. */
  switch({ method, path, headers }: Sent): Promise<[Duplex, Buffer]> {
    return new Promise((resolve, reject) => {
      // One of its own, each of whose directions ends by itself.
      const own = { agent: false, allowHalfOpen: true };
      const options: RequestOptions = { ...this.#options, ...own, method, path: this.#prefix + path, headers };
      const request = (this.#isSecure ? overHttps : overHttp)(options);
      request.setTimeout(CONNECT_MS, () => request.destroy(new Error("no connection in time")));
      request.once("upgrade", (_, socket, head) => {
        socket.setTimeout(0);
        resolve([socket, head]);
      });
      request.once("response", (response) => {
        reject(new Lost(new Error(`refused: ${response.statusCode}`), true));
        response.resume();
      });
      request.once("error", (error) => reject(new Lost(error, true)));
      request.end();
    });
  }

  /** The answer to a request, whose body is to be read or given up. */
  send({ method, path, headers, body, signal }: Sent): Promise<IncomingMessage> {
    return new Promise((resolve, reject) => {
      const options: RequestOptions = { ...this.#options, method, path: this.#prefix + path, headers };
      const request = (this.#isSecure ? overHttps : overHttp)(signal ? { ...options, signal } : options);
      let sent = false;
      const fail = (error: unknown) => reject(new Lost(error, sent));
      request.once("socket", (socket) => {
        sent = !socket.connecting;
        if (sent) return;
        const timer = setTimeout(() => request.destroy(new Error("no connection in time")), CONNECT_MS);
        socket.once("close", () => clearTimeout(timer));
        socket.once(this.#isSecure ? "secureConnect" : "connect", () => {
          clearTimeout(timer);
          sent = true;
        });
      });
      request.once("response", (response) => {
        resolve(response);
        // What was refused before its end has no end.
        response.once("end", () => {
          if (!request.writableEnded) request.destroy();
        });
      });
      request.on("error", fail);
      request.once("close", () => fail("the connection is closed"));
      if (body === undefined || typeof body === "string" || body instanceof Uint8Array) request.end(body);
      else
        push(request, body).catch((error: Error) => {
          reject(error);
          request.destroy();
        });
    });
  }
}

/** Sends pieces, until there is an answer, even while they are waited for. */
async function push(request: ClientRequest, content: AsyncIterable<Uint8Array>): Promise<void> {
  const answered = new Promise<undefined>((resolve) => {
    for (const event of ["response", "close"]) request.once(event, () => resolve(undefined));
  });
  const source = content[Symbol.asyncIterator]();
  for (;;) {
    const next = await Promise.race([source.next(), answered]);
    if (next === undefined) {
      // Its current step may never end: it is not awaited.
      source.return?.().then(undefined, () => {});
      return;
    }
    if (next.done) {
      request.end();
      return;
    }
    if (next.value.byteLength > 0 && !request.write(next.value)) await Promise.race([once(request, "drain"), answered]);
  }
}

/** The body of an answer. Leaving it ends its connection. */
export async function* pieces(response: IncomingMessage): AsyncGenerator<Uint8Array, void, undefined> {
  try {
    for await (const piece of response) yield piece as Uint8Array;
  } catch (cause) {
    throw new Lost(cause, true);
  }
}
