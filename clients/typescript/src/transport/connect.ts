/** Which transport a caller means; one for each place, shared by all of its sandboxes. */
import { errorOf } from "../core/errors.js";
import { HttpTransport } from "./http.js";
import { LocalTransport } from "./local.js";
import type { Transport } from "./transport.js";

const servers = new Map<string, HttpTransport>();
const processes = new Map<string, LocalTransport>();

const ENGINES = ["auto", "docker", "embedded"];

interface Place {
  server?: string | undefined;
  token?: string | undefined;
  binary?: string | undefined;
  engine?: string | undefined;
}

/** The transport for these options. */
export function connect(place: Place): Transport {
  // What is named here is of this machine, whatever the environment says.
  const isHere = place.binary !== undefined || place.engine !== undefined;
  const server = place.server ?? (isHere ? undefined : process.env.SANDBOXCTL_SERVER || undefined);
  if (server === undefined) {
    if (place.token !== undefined) throw errorOf({ kind: "usage", message: "token: it needs a server" });
    if (place.engine !== undefined && !ENGINES.includes(place.engine)) {
      throw errorOf({ kind: "usage", message: `engine: '${place.engine}' is not one of ${ENGINES.join(", ")}` });
    }
    return shared(processes, JSON.stringify([place.binary, place.engine]), () => new LocalTransport(place));
  }
  for (const name of ["binary", "engine"] as const) {
    if (place[name] !== undefined) {
      throw errorOf({ kind: "usage", message: `${name} is of this machine, and a server has its own` });
    }
  }
  const token = place.token ?? (process.env.SANDBOXCTL_TOKEN || undefined);
  return shared(servers, JSON.stringify([server, token]), () => new HttpTransport(server, token));
}

function shared<T>(all: Map<string, T>, key: string, make: () => T): T {
  const known = all.get(key);
  if (known) return known;
  const made = make();
  all.set(key, made);
  return made;
}
