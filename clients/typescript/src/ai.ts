/** A sandbox as the session that tools of the Vercel AI SDK (`ai`, version 7) run in. */
import type { Experimental_SandboxProcess, Experimental_SandboxSession } from "ai";
import { errorOf, NotFound } from "./core/errors.js";
import { type CommandResult, failureOf } from "./core/executions.js";
import type { CommandHandle, Sandbox } from "./sandbox.js";

type SpawnOptions = Parameters<Experimental_SandboxSession["run"]>[0] & { stdin?: boolean };

const DESCRIPTION =
  "A Linux sandbox. Commands are lines for /bin/sh and start in the directory of its files, to which relative paths " +
  "belong. Only that directory and /tmp can be written to. It has no network, unless hosts were allowed.";

/**
 * The session of a sandbox, for `experimental_sandbox` of `generateText`, `streamText` and AI agents. Commands need a
 * sandbox with an image. The sandbox stays the caller's, who closes it.
 *
 * It differs in two points from what the SDK says: a symbolic link is never followed (the error `symlink`), and an
 * absolute path is one of the mounts (`/io/…`; others are `path_escape`).
 */
export function sandboxSession(sandbox: Sandbox, options: { description?: string } = {}): Experimental_SandboxSession {
  const { files, commands } = sandbox;
  return {
    description: options.description ?? DESCRIPTION,

    async readFile({ path, abortSignal: signal }) {
      const pieces = files.readStream(path, { signal })[Symbol.asyncIterator]();
      // Only the first piece says whether the file exists.
      const first = await orNull(pieces.next());
      return first && streamOf(pieces, first);
    },

    readBinaryFile: ({ path, abortSignal: signal }) => orNull(files.readBytes(path, { signal })),

    async readTextFile({ path, abortSignal: signal, encoding = "utf-8", startLine, endLine }) {
      const bytes = await orNull(files.readBytes(path, { signal }));
      return bytes && linesOf(decode(bytes, encoding), startLine, endLine);
    },

    async writeFile({ path, content, abortSignal: signal }) {
      await files.write(path, content as unknown as AsyncIterable<Uint8Array>, { signal });
    },

    async writeBinaryFile({ path, content, abortSignal: signal }) {
      await files.write(path, content, { signal });
    },

    async writeTextFile({ path, content, encoding = "utf-8", abortSignal: signal }) {
      await files.write(path, encode(content, encoding), { signal });
    },

    async stat({ path, abortSignal: signal }) {
      const stat = await orNull(files.stat(path, { signal }));
      if (!stat) return null;
      if (stat.type === "symlink") {
        throw errorOf({ kind: "symlink", message: `${path}: a symbolic link, which is never followed` });
      }
      return { type: stat.type, size: stat.size };
    },

    async listDirectory({ path, abortSignal: signal }) {
      const listing = await orNull(files.list(path, { signal }));
      if (listing?.truncated) {
        throw errorOf({ kind: "too_large", message: `${path}: more than ${listing.entries.length} entries` });
      }
      return listing?.entries.map(({ name, type }) => ({ name, type })) ?? null;
    },

    async deleteFile({ path, abortSignal: signal }) {
      const stat = await orNull(files.stat(path, { signal }));
      if (!stat) return false;
      if (stat.type === "directory") throw errorOf({ kind: "is_directory", message: `${path}: Is a directory` });
      return (await files.remove(path, { force: true, signal })).removed;
    },

    // The overloads differ in `stdin` alone, which is refused.
    spawn: (async ({ command, workingDirectory: cwd, env, abortSignal: signal, stdin }: SpawnOptions) => {
      if (stdin) {
        throw errorOf({
          kind: "usage",
          message: "the stdin of a command cannot be written to while it runs",
          hint: "write a file, and redirect it",
        });
      }
      return processOf(commands.start(command, { cwd, env, signal }));
    }) as unknown as Experimental_SandboxSession["spawn"],

    async run({ command, workingDirectory: cwd, env, abortSignal: signal }) {
      const result = await commands.run(command, { cwd, env, signal });
      return { exitCode: exitCode(result), stdout: result.stdout, stderr: result.stderr };
    },
  };
}

function processOf(handle: CommandHandle): Experimental_SandboxProcess {
  const output = (type: "stdout" | "stderr") => {
    async function* pieces() {
      for await (const event of handle) if (event.type === type) yield event.bytes;
    }
    return streamOf(pieces());
  };
  return {
    stdout: output("stdout"),
    stderr: output("stderr"),
    wait: async () => ({ exitCode: exitCode(await handle.wait()) }),
    kill: async () => {
      await handle.cancel().catch(() => {});
    },
  };
}

/** The code as a shell has it. What is no end of the command itself, such as a limit, is thrown. */
function exitCode(result: CommandResult): number {
  if (result.exitCode !== null) return result.exitCode;
  if (result.signal !== null && (result.status === "exit" || result.status === "cancelled")) return 128 + result.signal;
  throw failureOf(result);
}

async function orNull<T>(result: Promise<T>): Promise<T | null> {
  try {
    return await result;
  } catch (error) {
    if (error instanceof NotFound) return null;
    throw error;
  }
}

function streamOf(pieces: AsyncIterator<Uint8Array>, first?: IteratorResult<Uint8Array>): ReadableStream<Uint8Array> {
  let ahead = first;
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        const next = ahead ?? (await pieces.next());
        ahead = undefined;
        if (next.done) controller.close();
        else controller.enqueue(next.value);
      },
      async cancel() {
        await pieces.return?.();
      },
    },
    { highWaterMark: 0 },
  );
}

function decode(bytes: Uint8Array, encoding: string): string {
  try {
    return new TextDecoder(encoding).decode(bytes);
  } catch (cause) {
    throw errorOf({ kind: "encoding", message: `"${encoding}" is no encoding that is known`, cause });
  }
}

function encode(text: string, encoding: string): string | Uint8Array {
  if (/^utf-?8$/i.test(encoding)) return text;
  const name = encoding
    .toLowerCase()
    .replace(/^utf-16(le)?$/, "utf16le")
    .replace(/^iso-8859-1$/, "latin1");
  if (!Buffer.isEncoding(name)) {
    throw errorOf({ kind: "encoding", message: `"${encoding}" is no encoding that is known` });
  }
  return new Uint8Array(Buffer.from(text, name));
}

/** Lines from `start` to `end`, both included, counted from 1. */
function linesOf(text: string, start: number | undefined, end: number | undefined): string {
  if (start === undefined && end === undefined) return text;
  const ending = text.includes("\r\n") ? "\r\n" : "\n";
  const lines = text.split(ending);
  return lines.slice(Math.max(1, start ?? 1) - 1, end ?? lines.length).join(ending);
}
