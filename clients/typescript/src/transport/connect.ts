/** Which transport a caller means; one for each place, shared by all of its sandboxes. */
import { resolve } from "node:path";
import { errorOf } from "../core/errors.js";
import { HttpTransport } from "./http.js";
import { LocalProcess } from "./local.js";
import { Connections } from "./request.js";
import { localService } from "./service.js";
import type { Transport } from "./transport.js";

const servers = new Map<string, HttpTransport>();
const processes = new Map<string, LocalProcess>();
const services = new Map<string, Promise<HttpTransport>>();

const ENGINES = ["auto", "docker", "embedded"];

/** The options that are of this machine. */
const HERE = ["binary", "engine", "rootfs", "imageArchive"] as const;
/** What commands run in: one of these. */
const ROOTS = ["image", "rootfs", "imageArchive"] as const;

type Place = { [name in "server" | "token" | "image" | (typeof HERE)[number]]?: string | undefined };

/**
 * The transport for these options. Without a server, sandboxes are of a process of this program, or those that other
 * programs find of the user's own service.
 */
export async function connect(place: Place, whose: "program" | "user" = "program"): Promise<Transport> {
  const [root, other] = ROOTS.filter((name) => place[name] !== undefined);
  if (other !== undefined) {
    const message = `${root} and ${other} are both given: commands run in one of them`;
    throw errorOf({ kind: "usage", message });
  }
  // What is named here is of this machine, whatever the environment says.
  const here = HERE.find((name) => place[name] !== undefined);
  const server = place.server ?? (here === undefined ? process.env.SANDBOXCTL_SERVER || undefined : undefined);
  if (server === undefined) {
    if (place.token !== undefined) throw errorOf({ kind: "usage", message: "token: it needs a server" });
    if (place.engine !== undefined && !ENGINES.includes(place.engine)) {
      throw errorOf({ kind: "usage", message: `engine: '${place.engine}' is not one of ${ENGINES.join(", ")}` });
    }
    const args = argumentsOf(place, whose === "user" ? ["local", "socket"] : ["serve", "--private"]);
    const key = JSON.stringify([place.binary, args]);
    if (whose === "user") {
      const known = services.get(key) ?? localService(place.binary, args);
      services.set(key, known);
      known.catch(() => services.delete(key));
      return known;
    }
    let process = processes.get(key);
    if (!process?.alive) {
      process = new LocalProcess(place.binary, args);
      processes.set(key, process);
    }
    return process.transport;
  }
  if (here !== undefined) {
    throw errorOf({ kind: "usage", message: `${here} is of this machine, and a server has its own` });
  }
  const token = place.token ?? (process.env.SANDBOXCTL_TOKEN || undefined);
  const key = JSON.stringify([server, token]);
  const known = servers.get(key) ?? transportOf(server, token);
  servers.set(key, known);
  return known;
}

/** The arguments of the binary for the sandboxes of a place. */
function argumentsOf({ engine, rootfs, imageArchive }: Place, verb: readonly string[]): string[] {
  return [
    ...(engine === undefined ? [] : ["--engine", engine]),
    ...verb,
    ...(rootfs === undefined ? [] : ["--rootfs", resolve(rootfs)]),
    ...(imageArchive === undefined ? [] : ["--image-archive", resolve(imageArchive)]),
  ];
}

function transportOf(server: string, token: string | undefined): HttpTransport {
  if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
    throw errorOf({ kind: "config", message: "token: it has characters that no token has" });
  }
  if (server.startsWith("unix:")) {
    const path = server.slice("unix:".length);
    if (path === "" || path.includes("\0")) throw errorOf({ kind: "config", message: "server: it names no socket" });
    return new HttpTransport({ name: server, connections: new Connections(path), token });
  }
  let url: URL;
  try {
    url = new URL(server);
  } catch (cause) {
    throw errorOf({ kind: "config", message: `server: "${server}" is not a URL`, cause });
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    const message = `server: "${server}" is neither http://…, https://… nor unix:PATH`;
    throw errorOf({ kind: "config", message });
  }
  if (url.username || url.password || url.search || url.hash) {
    throw errorOf({
      kind: "config",
      message: "server: a URL without credentials, query and fragment is expected",
      hint: "give the token as `token`",
    });
  }
  return new HttpTransport({ name: url.href.replace(/\/+$/, ""), connections: new Connections(url), token });
}
