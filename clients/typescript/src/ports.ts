/** The ports of a sandbox: on this machine, and at hosts of their own. */
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import type { Duplex } from "node:stream";
import { shaped } from "./core/answers.js";
import { errorOf } from "./core/errors.js";
import { expectOptions } from "./core/options.js";
import type { Transport } from "./transport/transport.js";

/** A port of a sandbox at which something listens. */
export interface ListeningPort {
  port: number;
  /** Where: `127.0.0.1`, `0.0.0.0` or `::`, for instance. */
  address: string;
}

/** A host at which a port of a sandbox is reached. */
export interface Preview {
  url: string;
  /** What shows that a request may use it; null for a public one. */
  token: string | null;
  /** The headers that requests have. */
  headers: Record<string, string>;
  expiresAt: string;
}

/** How a port of this machine is opened. */
export interface ForwardOptions {
  /** Its number; by default one that is free. */
  localPort?: number | undefined;
  /** The address that it is at, by default `127.0.0.1`: others can use it at any but a loopback address. */
  host?: string | undefined;
}

/** How a preview is opened. */
export interface PreviewOptions {
  /** For how many milliseconds it is valid; by default for an hour. */
  timeoutMs?: number | undefined;
  /** Whether its URL is enough to use it, if the server allows that. */
  public?: boolean | undefined;
}

/** A port of this machine that leads to one of a sandbox, until `close` or the end of an `await using` block. */
export class Forward implements AsyncDisposable {
  /** The address that it is at. */
  readonly host: string;
  /** Its number. */
  readonly port: number;
  readonly #server: Server;
  readonly #connections: Set<Duplex>;

  /** @internal */
  constructor(server: Server, connections: Set<Duplex>) {
    const { address, port } = server.address() as AddressInfo;
    this.host = address;
    this.port = port;
    this.#server = server;
    this.#connections = connections;
  }

  /** Closes it, and its connections. */
  async close(): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    for (const connection of this.#connections) connection.destroy();
    await closed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** The ports of a sandbox's loopback, as far as its `ports` say that they may be reached. */
export class Ports {
  readonly #open: () => Transport;
  readonly #sandbox: string;

  /** @internal */
  constructor(open: () => Transport, sandbox: string) {
    this.#open = open;
    this.#sandbox = sandbox;
  }

  /** The ports at which something listens, whether they may be reached or not. */
  async list(): Promise<ListeningPort[]> {
    const answer = await this.#open().ask(this.#sandbox, { method: "GET", path: "ports", replay: true }, {});
    return shaped(answer, { ports: [{ port: "integer", address: "text" }] }).ports as ListeningPort[];
  }

  /** A port of this machine each of whose connections is one to this port. */
  async forward(port: number, options: ForwardOptions = {}): Promise<Forward> {
    expectOptions(arguments, 2, ["localPort", "host"]);
    const { localPort = 0, host = "127.0.0.1" } = options;
    const transport = this.#open();
    const number = numberOf(port);
    return listen(() => transport.tunnel(this.#sandbox, number), localPort, host);
  }

  /** Opens a host at which browsers and programs reach this port. It needs a server that has previews. */
  async preview(port: number, options: PreviewOptions = {}): Promise<Preview> {
    expectOptions(arguments, 2, ["timeoutMs", "public"]);
    const json = {
      public: options.public ?? false,
      ...(options.timeoutMs === undefined ? {} : { ttl_ms: options.timeoutMs }),
    };
    const path = `ports/${numberOf(port)}/previews`;
    const answer = await this.#open().ask(this.#sandbox, { method: "POST", path, json, replay: true }, {});
    const view = shaped(answer, { url: "text", "token?": "text", expires_at: "text" });
    const token = (view.token ?? null) as string | null;
    const headers: Record<string, string> = token === null ? {} : { "sandbox-port-token": token };
    return { url: view.url as string, token, headers, expiresAt: view.expires_at as string };
  }

  /** The URL of a public preview of this port, for a browser. */
  async url(port: number, options: Pick<PreviewOptions, "timeoutMs"> = {}): Promise<string> {
    expectOptions(arguments, 2, ["timeoutMs"]);
    return (await this.preview(port, { ...options, public: true })).url;
  }
}

function numberOf(port: number): number {
  if (!Number.isInteger(port) || port < 1 || port > 65_535) {
    throw new TypeError(`port: a number from 1 to 65535 is expected, not ${port}`);
  }
  return port;
}

/** Listens, and joins each connection with one that is opened for it. Who is refused sees the connection end. */
async function listen(open: () => Promise<[Duplex, Buffer]>, port: number, host: string): Promise<Forward> {
  const connections = new Set<Duplex>();
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (local: Socket) => {
    keep(connections, local);
    open().then(
      ([inside, head]) => {
        keep(connections, inside);
        if (local.destroyed) return inside.destroy();
        for (const [from, to] of [
          [local, inside],
          [inside, local],
        ] as const) {
          // What breaks off has no other direction. After both ends, what the other one has not written yet is.
          from.once("close", () => {
            if (!from.readableEnded || !from.writableFinished) to.destroy();
          });
        }
        if (head.length > 0) local.write(head);
        inside.pipe(local);
        local.pipe(inside);
        local.resume();
      },
      () => local.destroy(),
    );
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", (error) => {
      const hint = "without `localPort` it is one that is free";
      reject(errorOf({ kind: "usage", message: `${host}:${port} cannot be listened at: ${error.message}`, hint }));
    });
    server.listen(port, host, resolve);
  });
  return new Forward(server, connections);
}

function keep(connections: Set<Duplex>, connection: Duplex): void {
  connections.add(connection);
  // Its end says it too.
  connection.on("error", () => {});
  connection.once("close", () => connections.delete(connection));
}
