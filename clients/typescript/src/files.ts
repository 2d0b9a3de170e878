/** The files of a sandbox. */
import { ENVELOPE, fromBase64, type Shape, shaped, unexpected } from "./core/answers.js";
import { type Path, toBase64, toContent } from "./core/bytes.js";
import { errorOf } from "./core/errors.js";
import { camel, snake } from "./core/names.js";
import { expectOptions } from "./core/options.js";
import type * as wire from "./core/wire.js";
import type { Transport } from "./transport/transport.js";

/** What a file is. `other` is a FIFO, a socket or a device. */
export type FileType = "file" | "directory" | "symlink" | "other";

/** A path in an answer; `pathBytes` is there if it is not UTF-8, and `path` is then for display alone. */
export interface Named {
  path: string;
  pathBytes?: Uint8Array;
}

/** What a write did. */
export interface Written extends Named {
  bytesWritten: number;
  created: boolean;
}

/** An entry of a directory. */
export interface Entry extends Named {
  name: string;
  nameBytes?: Uint8Array;
  type: FileType;
  size: number;
  modified: string | null;
}

/** The entries of a directory. */
export interface Listing extends Named {
  entries: Entry[];
  truncated: boolean;
  /** What is left out, and why. */
  note?: string;
}

/** The paths that match a pattern. */
export interface GlobResult extends Named {
  matches: (Named & { name: string; nameBytes?: Uint8Array })[];
  truncated: boolean;
  /** Where the search stopped, or what it left out, and why. */
  note?: string;
}

/** A line that matches, or surrounds a match. */
export interface GrepLine extends Named {
  name: string;
  nameBytes?: Uint8Array;
  line: number;
  text: string;
  /** Whether it only surrounds a match. */
  context?: true;
  /** Whether it is longer than what is returned. */
  cut?: true;
}

/** The lines that match. */
export interface GrepResult extends Named {
  lines: GrepLine[];
  matches: number;
  files: number;
  truncated: boolean;
  /** Where the search stopped, or what it left out, and why. */
  note?: string;
}

/** What is known of a file. */
export interface FileStat extends Named {
  type: FileType;
  size: number;
  permissions: string;
  mode: string;
  uid: number;
  gid: number;
  owner: string;
  group: string;
  modified: string | null;
  accessed: string | null;
  created: string | null;
  /** What a link points to, in a sandbox with `fileScope: "all"`. */
  target?: string;
  /** By namespace and key, such as `sbx.author`, in a sandbox with `fileScope: "all"`. */
  metadata?: Record<string, string>;
}

/** A change in a watched directory. */
export interface FileChange {
  /**
   * What has happened: `rename` to the old name, and `create` to the new one; `omitted` stands for changes that are
   * missing.
   */
  change: "create" | "write" | "remove" | "rename" | "chmod" | "omitted";
  /** The path in the watched directory; empty for that itself, which ends the watch. */
  name: string;
  nameBytes?: Uint8Array;
  /** What it is, if that is known. */
  type?: FileType;
  /** Its number. Numbers that are missing were omitted. */
  seq?: number;
  /** How many are missing, or at least one that was not counted. */
  omitted?: number;
}

const CHANGE: Shape = { seq: "integer", name: "text", "name_b64?": "text", change: "text", "type?": "text" };
const CHANGES = ["create", "write", "remove", "rename", "chmod"];

/** Content to be written: text in UTF-8, bytes, or pieces of bytes as they come. */
export type FileContent = string | Uint8Array | AsyncIterable<Uint8Array> | Iterable<Uint8Array>;

/** How text and bytes are written. */
export interface WriteOptions {
  /** What happens to a file that is there: it is replaced, unless another is given. */
  mode?: "overwrite" | "append" | "create_new";
  /** Whether directories that are missing are created, as by default. */
  parents?: boolean;
  /** Whether readers see either the old file or the new one whole, as by default. */
  atomic?: boolean;
  /** The permissions of a file that is created, such as 0o640. */
  permissions?: number;
}

interface Signal {
  signal?: AbortSignal | undefined;
}

const NAMED: Shape = { path: "text", "path_b64?": "text" };
const FOUND: Shape = { ...NAMED, name: "text", "name_b64?": "text" };
const TYPED: Shape = { type: "text", size: "integer", "modified?": "text" };

/** What the operations give. */
const DATA: Readonly<Record<string, Shape>> = {
  read: { content: "text" },
  write: { ...NAMED, bytes_written: "integer", created: "flag" },
  edit: { ...NAMED, replacements: "integer" },
  list: { ...NAMED, entries: [{ ...FOUND, ...TYPED }], truncated: "flag", "note?": "text" },
  glob: { ...NAMED, matches: [FOUND], truncated: "flag", "note?": "text" },
  grep: {
    ...NAMED,
    lines: [{ ...FOUND, line: "integer", text: "text", "context?": "flag", "cut?": "flag" }],
    matches: "integer",
    files: "integer",
    truncated: "flag",
    "note?": "text",
  },
  mkdir: { ...NAMED, created: "flag" },
  touch: { ...NAMED, created: "flag" },
  remove: { ...NAMED, removed: "flag", entries: "integer" },
  exists: { exists: "flag" },
  stat: {
    ...NAMED,
    ...TYPED,
    permissions: "text",
    mode: "text",
    uid: "integer",
    gid: "integer",
    owner: "text",
    group: "text",
    "accessed?": "text",
    "created?": "text",
    "target?": "text",
    "metadata?": {},
  },
  rename: { from: "text", to: "text" },
  copy: { from: "text", to: "text", entries: "integer", bytes: "integer" },
  chmod: { ...NAMED, entries: "integer" },
  symlink: NAMED,
  read_link: { ...NAMED, target: "text" },
  set_metadata: NAMED,
};

/** Files below the io dir: `a.txt`, or `/io/a.txt`. A path is text, or the bytes of one that is not UTF-8. */
export class Files {
  readonly #open: () => Transport;
  readonly #id: string;

  /** @internal */
  constructor(open: () => Transport, id: string) {
    this.#open = open;
    this.#id = id;
  }

  /** Reads a text in UTF-8. A file that is not UTF-8 is the error `encoding`. */
  async read(path: Path, options: { offset?: number; limit?: number } & Signal = {}): Promise<string> {
    expectOptions(arguments, 2, ["offset", "limit", "signal"]);
    return (await this.#content(path, "utf-8", options)) as string;
  }

  /** Reads bytes. */
  async readBytes(path: Path, options: { offset?: number; limit?: number } & Signal = {}): Promise<Uint8Array> {
    expectOptions(arguments, 2, ["offset", "limit", "signal"]);
    return fromBase64(await this.#content(path, "base64", options));
  }

  /** Reads a file of any size in pieces; all of them are of one file, even if it is replaced meanwhile. */
  readStream(path: Path, options: Signal = {}): AsyncIterable<Uint8Array> {
    expectOptions(arguments, 2, ["signal"]);
    return this.#open().download(this.#id, path, options);
  }

  /**
   * Writes a file, whole or not at all. Text and bytes are sent in one request; what comes in pieces may be large, and
   * always replaces the file.
   */
  async write(path: Path, content: FileContent, options: WriteOptions & Signal = {}): Promise<Written> {
    expectOptions(arguments, 3, ["mode", "parents", "atomic", "permissions", "signal"]);
    const { signal, ...rest } = options;
    if (typeof content === "string" || content instanceof Uint8Array) {
      const body =
        typeof content === "string"
          ? { content, encoding: "utf-8" }
          : { content: toBase64(content), encoding: "base64" };
      return (await this.#do("write", path, { ...body, ...rest }, signal)) as unknown as Written;
    }
    if (
      typeof content !== "object" ||
      content === null ||
      !(Symbol.asyncIterator in content || Symbol.iterator in content)
    ) {
      const given = content === null ? "null" : typeof content;
      throw new TypeError(`content: text, bytes or pieces of bytes are expected, not ${given}`);
    }
    if (Object.values(rest).some((value) => value !== undefined)) {
      throw errorOf({
        kind: "usage",
        message: "content in pieces replaces the file: mode, parents, atomic and permissions are for text and bytes",
      });
    }
    const data = await this.#open().upload(this.#id, path, pieces(content), { signal });
    return camel(shaped(data, DATA.write as Shape)) as Written;
  }

  /** Replaces text that occurs exactly `count` times (once). */
  async edit(
    path: Path,
    oldText: string,
    newText: string,
    options: { count?: number } & Signal = {},
  ): Promise<Named & { replacements: number }> {
    expectOptions(arguments, 4, ["count", "signal"]);
    const { signal, ...rest } = options;
    const data = await this.#do("edit", path, { old: oldText, new: newText, ...rest }, signal);
    return data as unknown as Named & { replacements: number };
  }

  /** Lists a directory. */
  async list(
    path: Path = ".",
    options: { recursive?: boolean; maxDepth?: number; limit?: number } & Signal = {},
  ): Promise<Listing> {
    expectOptions(arguments, 2, ["recursive", "maxDepth", "limit", "signal"]);
    const { signal, ...rest } = options;
    return (await this.#do("list", path, rest, signal)) as unknown as Listing;
  }

  /** Creates a directory, and its parents. */
  async mkdir(path: Path, options: { parents?: boolean } & Signal = {}): Promise<Named & { created: boolean }> {
    expectOptions(arguments, 2, ["parents", "signal"]);
    const { signal, ...rest } = options;
    return (await this.#do("mkdir", path, rest, signal)) as unknown as Named & { created: boolean };
  }

  /** Creates an empty file if there is none, and sets when a file or a directory was last modified: now without `mtime`. */
  async touch(path: Path, options: { mtime?: string | Date } & Signal = {}): Promise<Named & { created: boolean }> {
    expectOptions(arguments, 2, ["mtime", "signal"]);
    const { signal, ...rest } = options;
    return (await this.#do("touch", path, rest, signal)) as unknown as Named & { created: boolean };
  }

  /** Removes a file, or a directory with `recursive`. */
  async remove(
    path: Path,
    options: { recursive?: boolean; force?: boolean } & Signal = {},
  ): Promise<Named & { removed: boolean; entries: number }> {
    expectOptions(arguments, 2, ["recursive", "force", "signal"]);
    const { signal, ...rest } = options;
    const data = await this.#do("remove", path, rest, signal);
    return data as unknown as Named & { removed: boolean; entries: number };
  }

  /** Gives a file or a directory another name, and that its directories with `parents`. */
  async move(
    from: Path,
    to: Path,
    options: { overwrite?: boolean; parents?: boolean } & Signal = {},
  ): Promise<{ from: string; to: string }> {
    expectOptions(arguments, 3, ["overwrite", "parents", "signal"]);
    const { signal, ...rest } = options;
    const data = await this.#perform({ operation: "rename", ...pair(from, to), ...rest }, signal);
    return data as unknown as { from: string; to: string };
  }

  /** Copies a file, or a directory with `recursive`. */
  async copy(
    from: Path,
    to: Path,
    options: { recursive?: boolean; overwrite?: boolean } & Signal = {},
  ): Promise<{ from: string; to: string; entries: number; bytes: number }> {
    expectOptions(arguments, 3, ["recursive", "overwrite", "signal"]);
    const { signal, ...rest } = options;
    const data = await this.#perform({ operation: "copy", ...pair(from, to), ...rest }, signal);
    return data as unknown as { from: string; to: string; entries: number; bytes: number };
  }

  /** Whether a path exists. */
  async exists(path: Path, options: Signal = {}): Promise<boolean> {
    expectOptions(arguments, 2, ["signal"]);
    return (await this.#do("exists", path, {}, options.signal)).exists === true;
  }

  /** What is known of a file. With `follow` of what a link points to, in a sandbox with `fileScope: "all"`. */
  async stat(path: Path, options: { follow?: boolean } & Signal = {}): Promise<FileStat> {
    expectOptions(arguments, 2, ["follow", "signal"]);
    const { signal, ...rest } = options;
    return (await this.#do("stat", path, rest, signal)) as unknown as FileStat;
  }

  /** Sets the permissions of a file or a directory, such as 0o640. */
  async chmod(path: Path, permissions: number, options: { recursive?: boolean } & Signal = {}): Promise<void> {
    expectOptions(arguments, 3, ["recursive", "signal"]);
    const { signal, ...rest } = options;
    await this.#do("chmod", path, { permissions, ...rest }, signal);
  }

  /** Makes a symbolic link at `path`, in a sandbox with `fileScope: "all"`. */
  async symlink(path: Path, target: Path, options: Signal = {}): Promise<void> {
    expectOptions(arguments, 3, ["signal"]);
    await this.#do("symlink", path, { target: toContent(target, "target") }, options.signal);
  }

  /** What a symbolic link points to, in a sandbox with `fileScope: "all"`. */
  async readLink(path: Path, options: Signal = {}): Promise<string> {
    expectOptions(arguments, 2, ["signal"]);
    return (await this.#do("read_link", path, {}, options.signal)).target as string;
  }

  /** Replaces the metadata of a file or a directory, in a sandbox with `fileScope: "all"`. */
  async setMetadata(path: Path, metadata: Record<string, string>, options: Signal = {}): Promise<void> {
    expectOptions(arguments, 3, ["signal"]);
    await this.#do("set_metadata", path, { metadata }, options.signal);
  }

  /** Finds paths by a pattern. `exclude` are globs of names, or with a slash of paths, to leave out. */
  async glob(
    pattern: string,
    options: { path?: Path; exclude?: readonly string[]; hidden?: boolean; limit?: number } & Signal = {},
  ): Promise<GlobResult> {
    expectOptions(arguments, 2, ["path", "exclude", "hidden", "limit", "signal"]);
    const { signal, path = ".", ...rest } = options;
    return (await this.#do("glob", path, { pattern, ...rest }, signal)) as unknown as GlobResult;
  }

  /**
   * Finds lines by a regular expression. `glob` selects files by name, or with a slash by path; `exclude` leaves files
   * and directories out.
   */
  async grep(
    pattern: string,
    options: {
      path?: Path;
      glob?: string;
      exclude?: readonly string[];
      context?: number;
      ignoreCase?: boolean;
      hidden?: boolean;
      limit?: number;
    } & Signal = {},
  ): Promise<GrepResult> {
    expectOptions(arguments, 2, ["path", "glob", "exclude", "context", "ignoreCase", "hidden", "limit", "signal"]);
    const { signal, path = ".", ...rest } = options;
    return (await this.#do("grep", path, { pattern, ...rest }, signal)) as unknown as GrepResult;
  }

  /**
   * Watches a directory, and with `recursive` those below it too, also new ones: the changes from when this resolves,
   * as they come. It needs a sandbox with an image. A reader that is slow, and a directory that cannot be watched, miss
   * changes, which one `omitted` stands for. It ends when the directory is gone; a connection that is lost is thrown.
   * Leaving the loop, or an abort, ends the watch.
   */
  async watch(
    path: Path = ".",
    options: { recursive?: boolean } & Signal = {},
  ): Promise<AsyncGenerator<FileChange, void, undefined>> {
    expectOptions(arguments, 2, ["recursive", "signal"]);
    const { signal, recursive = false } = options;
    const query = `path=${encodeURIComponent(textOf(path))}&recursive=${recursive}`;
    const found = changes(this.#open().changes(this.#id, `watch?${query}`, { signal }));
    // The first one says that it is on. One that was begun is ended by leaving it.
    await found.next();
    return found as AsyncGenerator<FileChange, void, undefined>;
  }

  async #content(path: Path, encoding: string, options: { offset?: number; limit?: number } & Signal): Promise<string> {
    const { signal, ...rest } = options;
    const data = await this.#do("read", path, { encoding, ...rest }, signal);
    return data.content as string;
  }

  #do(operation: wire.Operation["operation"], path: Path, options: object, signal: AbortSignal | undefined) {
    const members = { operation, path: toContent(path, "path"), ...snake(options) };
    return this.#perform(members as wire.Operation, signal);
  }

  async #perform(operation: wire.Operation, signal: AbortSignal | undefined): Promise<Record<string, unknown>> {
    const answer = await this.#open().operation(this.#id, operation, { signal });
    const envelope = shaped(answer, ENVELOPE) as unknown as wire.Envelope;
    if (envelope.success) {
      const data = shaped(envelope.data, DATA[operation.operation] as Shape);
      const { metadata } = data;
      // Its keys are not the API's.
      return { ...(camel(data) as object), ...(metadata === undefined ? {} : { metadata }) };
    }
    if (!envelope.error) throw unexpected("a failure without an error");
    const { kind, message, hint } = envelope.error;
    throw errorOf({ kind, message, hint: hint ?? undefined, owner: "operation" });
  }
}

/** The path of a query, which has only text. */
function textOf(path: Path): string {
  const content = toContent(path, "path");
  if (typeof content === "string") return content;
  throw errorOf({ kind: "usage", message: "the path of a directory to watch is UTF-8" });
}

async function* changes(events: AsyncIterable<unknown>): AsyncGenerator<FileChange | undefined, void, undefined> {
  for await (const data of events) {
    if (data === undefined) {
      yield undefined;
      continue;
    }
    const { event, ...rest } = shaped(data, { event: "text" });
    if (event === "omitted") {
      const { events: omitted } = shaped(rest, { events: "integer" }) as { events: number };
      yield { change: "omitted", name: "", omitted };
    } else if (event === "change") {
      const change = camel(shaped(rest, CHANGE)) as FileChange;
      if (CHANGES.includes(change.change)) yield change;
    }
  }
}

const pair = (from: Path, to: Path) => ({ from: toContent(from, "from"), to: toContent(to, "to") });

async function* pieces(content: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  yield* content;
}
