/** Paths and answers of the API that have to do with kept sandboxes. */
import { ApiError, send } from "../../lib/api";
import { bytesOf, contentOf, segment } from "../../lib/content";
import type { Content, Envelope, Operation, ProcessRequest, ProcessView } from "../../lib/wire";

export type * from "../../lib/wire";

export interface Entry {
  /** For display: lossy where it is not UTF-8. */
  name: string;
  path: string;
  path_b64?: string;
  type: "file" | "directory" | "symlink" | "other";
  size: number;
  modified: string | null;
}

export type Listing = { path: string; entries: Entry[]; truncated: boolean; note?: string };

/** A file operation. One that failed is answered 200, and is an error here like any other. */
export async function operate<T>(sandbox: string, operation: Operation, signal?: AbortSignal): Promise<T> {
  const { error, data } = await send<Envelope>("POST", sandboxPath(sandbox, "/operations"), operation, { signal });
  if (error) throw new ApiError(200, { detail: error.message, hint: error.hint, kind: error.kind });
  return data as T;
}

export function startProcess(sandbox: string, request: ProcessRequest): Promise<ProcessView> {
  return send("POST", sandboxPath(sandbox, "/processes"), request);
}

export function sandboxPath(id: string, rest = ""): string {
  return `/sandboxes/${encodeURIComponent(id)}${rest}`;
}

export function processPath(sandbox: string, id: number, rest = ""): string {
  return sandboxPath(sandbox, `/processes/${id}${rest}`);
}

export function filePath(sandbox: string, path: Content): string {
  return sandboxPath(sandbox, `/files/${segment(path)}`);
}

/** A name in a directory, as bytes where that has bytes. */
export function joined(directory: Content, name: string): Content {
  if (typeof directory === "string") return `${directory.replace(/\/$/, "")}/${name}`;
  return contentOf(Uint8Array.of(...bytesOf(directory), ...bytesOf(`/${name}`)));
}

/** The directory of a path. */
export function parentOf(path: Content): Content {
  if (typeof path === "string") return path.slice(0, Math.max(path.lastIndexOf("/"), 1));
  const bytes = bytesOf(path);
  return contentOf(bytes.subarray(0, Math.max(bytes.lastIndexOf(0x2f), 1)));
}
