/** The code interpreter of a sandbox. */
import { parsed, shaped, unexpected } from "./core/answers.js";
import { errorOf, SandboxError } from "./core/errors.js";
import { LineSplitter } from "./core/lines.js";
import { expectOptions } from "./core/options.js";
import { processInfo, processRequest } from "./core/processes.js";
import { linked } from "./core/signals.js";
import type { SignalOption } from "./sandbox.js";
import type { Transport } from "./transport/transport.js";

const PORT = 49999;
/** What images with an interpreter have, and for how long it may take to be ready. */
const PROGRAM = "/usr/lib/code-interpreter/start";
const PATIENCE_MS = 60_000;
const IMAGE =
  "an image with the code interpreter, such as 'sandboxctl-e2b-code-interpreter' of templates/, has it; the sandbox " +
  "needs 'ports: [49999]' and 'processes: \"kept\"'";

/** A context: code that runs in it finds what code before it has defined. */
export interface CodeContext {
  id: string;
  language: string;
  cwd: string;
}

/** A value or a figure that code has shown. */
export interface CodeValue {
  /**
   * What it looks like in each format that it has: `text`, `html`, `markdown`, `svg`, `latex`, `json`, `javascript`,
   * `data` (the columns of a data frame), and in base64 `png`, `jpeg` and `pdf`.
   */
  formats: Record<string, unknown>;
  /** Whether it is the value of the last expression. */
  isMain: boolean;
}

/** What code has done. An error in it is a result. */
export interface CodeRun {
  stdout: string;
  stderr: string;
  values: CodeValue[];
  /** The text of the last expression's value. */
  text?: string | undefined;
  error?: { name: string; value: string; traceback: string } | undefined;
  /** Which one it is in its context, from 1 on. */
  count?: number | undefined;
}

/** How code runs. */
export interface CodeOptions extends SignalOption {
  /** `python`, unless it is another one (`bash`, `javascript`, `typescript`), or of a `context`. */
  language?: string | undefined;
  context?: CodeContext | string | undefined;
  envs?: Record<string, string> | undefined;
  /** After this time it is interrupted: the error `Timeout`. By default 300,000. */
  timeoutMs?: number | undefined;
  onStdout?: ((text: string) => void) | undefined;
  onStderr?: ((text: string) => void) | undefined;
  onValue?: ((value: CodeValue) => void) | undefined;
}

/**
 * The code interpreter of a sandbox whose image has one, and whose port 49999 is open. Code of a context finds what code
 * before it has defined. Without a context it runs in one of its language.
 */
export class Interpreter {
  readonly #open: () => Transport;
  readonly #id: string;

  /** @internal */
  constructor(open: () => Transport, id: string) {
    this.#open = open;
    this.#id = id;
  }

  /** Runs code. Whatever ends the wait interrupts it. */
  async runCode(code: string, options: CodeOptions = {}): Promise<CodeRun> {
    expectOptions(arguments, 2, RUN);
    const { language, context, envs, timeoutMs = 300_000, signal } = options;
    const limit = linked([signal], {
      ms: timeoutMs,
      reason: () =>
        errorOf({ kind: "timeout", message: `the code did not end within ${timeoutMs} ms`, owner: "client" }),
    });
    const run: CodeRun = { stdout: "", stderr: "", values: [] };
    const lines = new LineSplitter();
    const request = { code, language, context_id: typeof context === "object" ? context.id : context, env_vars: envs };
    try {
      for await (const piece of this.#pieces("POST", "execute", request, limit.signal)) {
        for (const line of lines.push(Buffer.from(piece))) {
          if (line !== "" && read(run, parsed(line), options)) return run;
        }
      }
    } catch (error) {
      throw limit.signal.aborted ? limit.signal.reason : error;
    } finally {
      limit.release();
    }
    throw unexpected("the output of the code breaks off");
  }

  /** Creates a context, whose code begins in the directory `cwd`. */
  async createContext(options: { language?: string; cwd?: string } & SignalOption = {}): Promise<CodeContext> {
    expectOptions(arguments, 1, ["language", "cwd", "signal"]);
    const { signal, ...body } = options;
    return contextOf(await this.#json("POST", "contexts", body, signal));
  }

  /** All contexts. */
  async listContexts(options: SignalOption = {}): Promise<CodeContext[]> {
    expectOptions(arguments, 1, ["signal"]);
    const found = await this.#json("GET", "contexts", undefined, options.signal);
    return (found as unknown[]).map(contextOf);
  }

  /** Forgets what code of the context has defined. */
  async restartContext(context: CodeContext | string, options: SignalOption = {}): Promise<void> {
    expectOptions(arguments, 2, ["signal"]);
    await this.#json("POST", `contexts/${idOf(context)}/restart`, {}, options.signal);
  }

  /** Ends a context. */
  async removeContext(context: CodeContext | string, options: SignalOption = {}): Promise<void> {
    expectOptions(arguments, 2, ["signal"]);
    await this.#json("DELETE", `contexts/${idOf(context)}`, undefined, options.signal);
  }

  async #json(method: string, path: string, body: unknown, signal?: AbortSignal): Promise<unknown> {
    const parts: Uint8Array[] = [];
    for await (const piece of this.#pieces(method, path, body, signal)) parts.push(piece);
    return parsed(Buffer.concat(parts).toString("utf8"));
  }

  /** The answer as it comes. An interpreter that does not run is started first. */
  async *#pieces(
    method: string,
    path: string,
    json: unknown,
    signal?: AbortSignal,
  ): AsyncGenerator<Uint8Array, void, undefined> {
    const ask = { method, path, json, replay: false };
    try {
      yield* this.#open().port(this.#id, PORT, ask, { signal });
      return;
    } catch (error) {
      if (!isClosed(error)) throw error;
    }
    await this.#start(signal);
    yield* this.#open().port(this.#id, PORT, ask, { signal });
  }

  async #start(signal?: AbortSignal): Promise<void> {
    const request = processRequest(PROGRAM, { args: [], tag: "code-interpreter" });
    const failed = (kind: SandboxError["kind"], message: string, cause: unknown) =>
      errorOf({ kind, message: `the code interpreter does not start: ${message}`, hint: IMAGE, cause });
    const view = await this.#open()
      .startProcess(this.#id, request, { signal })
      .catch((error) => {
        throw error instanceof SandboxError ? failed(error.kind, error.message, error) : error;
      });
    const { id } = processInfo(view);
    const health = { method: "GET", path: "health", json: undefined, replay: true };
    for (const until = performance.now() + PATIENCE_MS; ; ) {
      try {
        for await (const _ of this.#open().port(this.#id, PORT, health, { signal }));
        return;
      } catch (error) {
        if (!isClosed(error)) throw error;
        const path = `processes/${id}`;
        const state = await this.#open().ask(this.#id, { method: "GET", path, replay: true }, { signal });
        const ended = shaped(state, { state: "text" }).state !== "running";
        if (ended || performance.now() > until) throw failed("unavailable", "it is not ready", error);
      }
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

const RUN = ["language", "context", "envs", "timeoutMs", "onStdout", "onStderr", "onValue", "signal"];
/** Of a result, what is not a format. */
const MEMBERS = ["type", "is_main_result", "extra"];

/** Adds an event to what code has done, and says whether it is the last. */
function read(run: CodeRun, value: unknown, { onStdout, onStderr, onValue }: CodeOptions): boolean {
  const event = value as Record<string, unknown>;
  switch (shaped(value, { type: "text" }).type) {
    case "stdout":
    case "stderr": {
      const text = String(event.text ?? "");
      run[event.type as "stdout" | "stderr"] += text;
      (event.type === "stdout" ? onStdout : onStderr)?.(text);
      return false;
    }
    case "result": {
      const formats = Object.entries(event).filter(([name, each]) => !MEMBERS.includes(name) && each !== null);
      const shown = { formats: Object.fromEntries(formats), isMain: event.is_main_result === true };
      run.values.push(shown);
      if (shown.isMain && typeof event.text === "string") run.text = event.text;
      onValue?.(shown);
      return false;
    }
    case "error":
      run.error = shaped(value, { name: "text", value: "text", traceback: "text" }) as CodeRun["error"];
      return false;
    case "number_of_executions":
      run.count = Number(event.execution_count);
      return false;
    default:
      return event.type === "end_of_execution";
  }
}

const isClosed = (error: unknown) => error instanceof SandboxError && String(error.kind) === "port_closed";

const idOf = (context: CodeContext | string) => encodeURIComponent(typeof context === "string" ? context : context.id);

const contextOf = (view: unknown) =>
  shaped(view, { id: "text", language: "text", cwd: "text" }) as unknown as CodeContext;
