/** The process on this machine that keeps the sandboxes of this program. */
import { isMainThread } from "node:worker_threads";
import { isObject, type SandboxError } from "../core/errors.js";
import { LineSplitter } from "../core/lines.js";
import { PROTOCOL } from "../core/version.js";
import { findBinary } from "./binary.js";
import { Child, environment } from "./child.js";
import { HttpTransport } from "./http.js";
import { Connections } from "./request.js";

/** The time for its first line. */
const HELLO_MS = 30_000;
/** The time between the end of its connections and its own. */
const LEAVE_MS = 2_000;

/** `sandboxctl serve --private`. */
export class LocalProcess {
  readonly #child: Child;
  readonly #ended: Promise<SandboxError>;
  /** Calls of it, when it takes some. */
  readonly transport: Promise<HttpTransport>;
  /** Sandboxes that there are, and that are being made. */
  #sandboxes = 0;

  /** `args` are those of `sandboxctl serve --private`. */
  constructor(binary: string | undefined, args: readonly string[]) {
    let end = (_: SandboxError) => {};
    this.#ended = new Promise((resolve) => {
      end = resolve;
    });
    let ready = (_: HttpTransport) => {};
    const began = new Promise<HttpTransport>((resolve) => {
      ready = resolve;
    });
    const lines = new LineSplitter();
    const receive = (piece: Buffer) => {
      for (const line of lines.push(piece)) {
        const hello: unknown = JSON.parse(line);
        if (!isObject(hello) || typeof hello.socket !== "string") throw new Error("the first line names no socket");
        if (hello.protocol !== PROTOCOL) return this.#child.mismatch(hello);
        this.#child.answered();
        ready(new HttpTransport({ name: "the process", connections: new Connections(hello.socket), local: this }));
      }
    };
    // An image is fetched, as by `exec`.
    const env = environment({ SANDBOXCTL_PROGRAMS_PULL: "missing" });
    this.#child = new Child(findBinary(binary), args, env, receive, (error) => end(error));
    const timer = setTimeout(() => this.#child.fail("did not answer in time"), HELLO_MS);
    const failed = this.#ended.then((error) => Promise.reject(error));
    this.transport = Promise.race([began, failed]).finally(() => {
      clearTimeout(timer);
      this.#child.rest();
    });
    this.transport.catch(() => {});
  }

  /** Whether it takes calls. */
  get alive(): boolean {
    return this.#child.end === undefined;
  }

  /** How it ended, if it ends within a moment: a connection was lost. */
  async ended(): Promise<SandboxError | undefined> {
    let timer: NodeJS.Timeout | undefined;
    const waited = new Promise<undefined>((resolve) => {
      timer = setTimeout(() => resolve(undefined), LEAVE_MS);
    });
    return Promise.race([this.#ended, waited]).finally(() => clearTimeout(timer));
  }

  /** A sandbox is made in it. */
  enter(): void {
    this.#sandboxes += 1;
  }

  /** A sandbox has ended, or was not made. */
  async leave(): Promise<void> {
    this.#sandboxes -= 1;
    // Node waits for no child of a thread that has ended, and whether this thread ends is not known here.
    if (!isMainThread && this.#sandboxes === 0) await this.#child.close();
  }
}
