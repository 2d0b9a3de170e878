/** Calls of a process on this machine, which keeps any number of sandboxes. */
import { randomUUID } from "node:crypto";
import { resolve } from "node:path";
import { isMainThread } from "node:worker_threads";
import { eventOf, fromBase64, shaped, unexpected } from "../core/answers.js";
import { type Path, toBase64, toContent } from "../core/bytes.js";
import { errorOf, NotFound, SandboxGone } from "../core/errors.js";
import { parseDocument } from "../core/executions.js";
import { type Limiter, Slots } from "../core/limiter.js";
import type * as wire from "../core/wire.js";
import { findBinary } from "./binary.js";
import { notStarted, ToolsProcess } from "./process.js";
import type { CallOptions, ExecuteOptions, SandboxSpec, Transport } from "./transport.js";

/** The bytes of a chunk, at most. */
const CHUNK = 256 * 1024;
/** The chunks that may be on their way. */
const WINDOW = 8;

/** Calls of the processes of one binary; a new process is started when the last one has ended. */
export class LocalTransport implements Transport {
  readonly #binary: string | undefined;
  readonly #args: readonly string[];
  readonly #slots = new Slots();
  #process: ToolsProcess | undefined;
  /** The sandboxes by their ids: the process of each, with which it ends, and what it calls it. */
  readonly #sandboxes = new Map<string, { process: ToolsProcess; containerId: string }>();
  /** How many sandboxes are being made. */
  #creating = 0;

  constructor(options: { binary?: string | undefined; engine?: string | undefined }) {
    this.#binary = options.binary;
    // This program is the user's own, and no guest: it names what directory, image and host it likes.
    const engine = options.engine === undefined ? [] : ["--engine", options.engine];
    this.#args = [...engine, "tools", "--stdio", "--unrestricted"];
  }

  async create(spec: SandboxSpec, options: CallOptions): Promise<string> {
    this.#creating += 1;
    try {
      return await this.#create(spec, options);
    } finally {
      this.#creating -= 1;
    }
  }

  async #create(spec: SandboxSpec, { signal }: CallOptions): Promise<string> {
    const process = await this.#start();
    const containerId = spec.name ?? `client-${randomUUID()}`;
    const args = {
      containerId,
      rootPath: "io",
      ...(spec.ioDir === undefined ? {} : { projectOutPath: resolve(spec.ioDir) }),
      ...(spec.name === undefined ? {} : { containerName: spec.name }),
      ...(spec.image === undefined ? {} : { imageName: spec.image }),
      ...(spec.limits ? { limits: spec.limits } : {}),
      ...(spec.allow ? { allow: spec.allow } : {}),
    };
    let data: unknown;
    try {
      data = await this.#call(process, this.#slots.operations, "sandbox_init", args, { signal });
    } catch (error) {
      // Cancelled too late, it may be there.
      if (signal?.aborted) void this.#destroy(process, containerId).catch(() => {});
      throw error;
    }
    const sandboxId = shaped(data, { sandboxId: "text" }).sandboxId as string;
    this.#sandboxes.set(sandboxId, { process, containerId });
    return sandboxId;
  }

  async operation(id: string, operation: wire.Operation, options: CallOptions): Promise<wire.Envelope> {
    const { process, containerId } = this.#of(id);
    const args = { containerId, operation };
    const data = await this.#call(process, this.#slots.operations, "sandbox_operation", args, options);
    return data as wire.Envelope;
  }

  async execute(id: string, request: wire.ExecutionRequest, options: ExecuteOptions): Promise<wire.ExecutionDocument> {
    const { onEvent } = options;
    const onLine =
      onEvent && ((line: Record<string, unknown>) => onEvent(eventOf(line.event) as unknown as wire.ExecutionEvent));
    const { process, containerId } = this.#of(id);
    const args = { containerId, request };
    const how = { ...options, onLine };
    return parseDocument(await this.#call(process, this.#slots.executions, "sandbox_execute", args, how));
  }

  async once(
    spec: SandboxSpec,
    request: wire.ExecutionRequest,
    options: ExecuteOptions,
  ): Promise<wire.ExecutionDocument> {
    const id = await this.create(spec, options);
    try {
      return await this.execute(id, request, options);
    } finally {
      // A named sandbox is found again by its name, and so is one that is used at this moment.
      await this.destroy(id);
    }
  }

  async *download(id: string, path: Path, { signal }: CallOptions): AsyncGenerator<Uint8Array, void, undefined> {
    const { process, containerId } = this.#of(id);
    const args = { containerId, path: toContent(path, "path") };
    const release = await this.#slots.downloads.acquire(signal);
    const chunks: Uint8Array[] = [];
    let wake = () => {};
    let end: { error?: unknown } | undefined;
    const finish = (result: { error?: unknown }) => {
      end ??= result;
      wake();
    };
    const call = process.send("sandbox_download", args, {
      onLine: (line) => {
        if (typeof line.chunk !== "string") throw unexpected("a chunk is no text");
        chunks.push(fromBase64(line.chunk));
        wake();
      },
      resolve: () => {
        release();
        finish({});
      },
      reject: (error) => {
        release();
        finish({ error });
      },
    });
    const abort = () => finish({ error: signal?.reason });
    signal?.addEventListener("abort", abort, { once: true });
    try {
      for (;;) {
        const chunk = chunks.shift();
        if (chunk) {
          yield chunk;
          void process.write({ more: call, chunks: 1 });
        } else if (end) {
          if ("error" in end) throw end.error;
          return;
        } else {
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
        }
      }
    } finally {
      signal?.removeEventListener("abort", abort);
      // Not read to its end: it gives its slot back when the process has answered. For a call that was, no effect.
      void process.write({ cancel: call });
    }
  }

  async upload(
    id: string,
    path: Path,
    content: AsyncIterable<Uint8Array>,
    { signal }: CallOptions,
  ): Promise<wire.WriteData> {
    const { process, containerId } = this.#of(id);
    const args = { containerId, path: toContent(path, "path") };
    const release = await this.#slots.uploads.acquire(signal);
    let credit = WINDOW;
    let wake = () => {};
    let answer: { data: unknown } | { error: unknown } | undefined;
    let resolveAnswered = () => {};
    const answered = new Promise<undefined>((resolve) => {
      resolveAnswered = () => resolve(undefined);
    });
    const finish = (result: { data: unknown } | { error: unknown }) => {
      answer ??= result;
      wake();
      resolveAnswered();
    };
    const call = process.send("sandbox_upload", args, {
      onLine: (line) => {
        if (typeof line.more !== "number" || line.more < 1) throw unexpected("there are no more chunks");
        credit += line.more;
        wake();
      },
      resolve: (data) => {
        release();
        finish({ data });
      },
      reject: (error) => {
        release();
        finish({ error });
      },
    });
    const changed = () =>
      new Promise<void>((resolve) => {
        wake = resolve;
      });
    const abort = () => finish({ error: signal?.reason });
    if (signal?.aborted) abort();
    signal?.addEventListener("abort", abort, { once: true });
    let complete = false;
    const source = content[Symbol.asyncIterator]();
    try {
      while (!answer) {
        // A source that waits must not keep an answer, such as the end of the process, from being seen.
        const next = await Promise.race([source.next(), answered]);
        if (!next) break;
        if (next.done) {
          complete = true;
          void process.write({ chunk: call, end: true });
          break;
        }
        const piece = next.value;
        for (let start = 0; start < piece.byteLength && !answer; start += CHUNK) {
          while (credit === 0 && !answer) await changed();
          if (answer) break;
          credit -= 1;
          await process.write({ chunk: call, data: toBase64(piece.subarray(start, start + CHUNK)) });
        }
      }
      while (!answer) await changed();
      if ("error" in answer) throw answer.error;
      return answer.data as wire.WriteData;
    } finally {
      signal?.removeEventListener("abort", abort);
      // An error of the content itself, or an abort: nothing is written.
      if (!complete || signal?.aborted) void process.write({ cancel: call });
      // Its current step may never end: it is not awaited.
      if (!complete) source.return?.().then(undefined, () => {});
    }
  }

  async destroy(id: string): Promise<void> {
    const sandbox = this.#sandboxes.get(id);
    if (!sandbox) return;
    const { process, containerId } = sandbox;
    this.#sandboxes.delete(id);
    if (process.alive) await this.#destroy(process, containerId);
    // Node waits for no child of a thread that has ended, and whether this thread ends is not known here.
    if (!isMainThread && this.#sandboxes.size === 0 && this.#creating === 0 && process === this.#process) {
      this.#process = undefined;
      await process.close();
    }
  }

  async #destroy(process: ToolsProcess, containerId: string): Promise<void> {
    try {
      await this.#answer(process, "sandbox_destroy", { containerId }, {});
    } catch (error) {
      if (!(error instanceof SandboxGone || error instanceof NotFound)) throw error;
    }
  }

  /** The process that has this sandbox, and what it calls it. */
  #of(id: string): { process: ToolsProcess; containerId: string } {
    const sandbox = this.#sandboxes.get(id);
    if (sandbox?.process.end) throw sandbox.process.end;
    if (sandbox) return sandbox;
    throw errorOf({ kind: "gone", message: `the sandbox ${id} is gone`, hint: "create another one" });
  }

  async #start(): Promise<ToolsProcess> {
    if (!this.#process?.alive) {
      const binary = findBinary(this.#binary);
      try {
        this.#process = new ToolsProcess(binary, this.#args);
      } catch (cause) {
        throw notStarted(binary, cause);
      }
    }
    const process = this.#process;
    await process.ready;
    return process;
  }

  async #call(
    process: ToolsProcess,
    line: Limiter,
    tool: string,
    args: unknown,
    options: ExecuteOptions & { onLine?: ((line: Record<string, unknown>) => void) | undefined },
  ): Promise<unknown> {
    const release = await line.acquire(options.signal);
    return this.#answer(process, tool, args, options, release);
  }

  /** The answer to one call. The slot is held until the process has answered, even if the caller has left. */
  #answer(
    process: ToolsProcess,
    tool: string,
    args: unknown,
    options: ExecuteOptions & { onLine?: ((line: Record<string, unknown>) => void) | undefined },
    release: () => void = () => {},
  ): Promise<unknown> {
    const { signal, cancel, onLine } = options;
    return new Promise((resolve, reject) => {
      const settled =
        <T>(then: (value: T) => void) =>
        (value: T) => {
          release();
          signal?.removeEventListener("abort", stop);
          cancel?.removeEventListener("abort", stop);
          then(value);
        };
      const call = { onLine, resolve: settled(resolve), reject: settled(reject) };
      let id = 0;
      const stop = () => {
        void process.write({ cancel: id });
        if (signal?.aborted) reject(signal.reason as Error);
      };
      id = process.send(tool, args, call, onLine !== undefined);
      for (const each of [signal, cancel]) {
        if (each?.aborted) stop();
        else each?.addEventListener("abort", stop, { once: true });
      }
    });
  }
}
