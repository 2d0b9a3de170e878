/** Paths and answers of the API that have to do with kept sandboxes. */

import { ApiError, send } from "../../lib/api";
import type { Content, Envelope, Operation } from "../../lib/wire";

export type {
  Content,
  PortList,
  Preview,
  ProcessList,
  ProcessRequest,
  ProcessView,
  SandboxList,
  SandboxRequest,
  SandboxView,
  SignalName,
  SignalTarget,
} from "../../lib/wire";

export interface Entry {
  /** For display: lossy where it is not UTF-8. */
  name: string;
  path: string;
  path_b64?: string;
  type: "file" | "directory" | "symlink" | "other";
  size: number;
  modified: string | null;
}

export interface Listing {
  path: string;
  entries: Entry[];
  truncated: boolean;
  note?: string;
}

/** A file operation. One that failed is answered 200, and is an error here like any other. */
export async function operate<T>(sandbox: string, operation: Operation, signal?: AbortSignal): Promise<T> {
  const envelope = await send<Envelope>(
    "POST",
    sandboxPath(sandbox, "/operations"),
    operation,
    signal ? { signal } : {},
  );
  if (envelope.error) {
    const { message, hint, kind } = envelope.error;
    throw new ApiError(200, { detail: message, hint, kind });
  }
  return envelope.data as T;
}

export function sandboxPath(id: string, rest = ""): string {
  return `/sandboxes/${encodeURIComponent(id)}${rest}`;
}

export function processPath(sandbox: string, id: number, rest = ""): string {
  return sandboxPath(sandbox, `/processes/${id}${rest}`);
}

/** The path of an entry as operations have it: its bytes, where it is not UTF-8. */
export function pathOf(entry: Entry): Content {
  return entry.path_b64 === undefined ? entry.path : { b64: entry.path_b64 };
}

/** One segment, with all that is not plain as `%XX`: no browser resolves a `..` in it, and no name is a query. */
export function filePath(sandbox: string, path: Content): string {
  const bytes = typeof path === "string" ? new TextEncoder().encode(path) : fromBase64(path.b64);
  let encoded = "";
  for (const byte of bytes) {
    const character = String.fromCharCode(byte);
    encoded += /[A-Za-z0-9_-]/.test(character) ? character : `%${byte.toString(16).padStart(2, "0").toUpperCase()}`;
  }
  return sandboxPath(sandbox, `/files/${encoded}`);
}

/** A name in a directory, as bytes where that has bytes. */
export function joined(directory: Content, name: string): Content {
  if (typeof directory === "string") return `${directory.replace(/\/$/, "")}/${name}`;
  const tail = new TextEncoder().encode(`/${name}`);
  return { b64: toBase64([...fromBase64(directory.b64), ...tail]) };
}

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function toBase64(bytes: number[]): string {
  return btoa(String.fromCharCode(...bytes));
}

/** The directory of a path. */
export function parentOf(path: Content): Content {
  if (typeof path === "string") return path.slice(0, Math.max(path.lastIndexOf("/"), 1));
  const bytes = fromBase64(path.b64);
  return { b64: toBase64([...bytes.subarray(0, Math.max(bytes.lastIndexOf(0x2f), 1))]) };
}
