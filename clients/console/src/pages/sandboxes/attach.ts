/**
 * A connection to a process of a sandbox, in the WebSocket subprotocol `sandboxctl.process.1`. It comes back after a
 * loss, and goes on after the last event that it had.
 */
import { ApiError, get, subprotocols, url } from "../../lib/api";
import type { ExecutionEvent, Problem, ProcessView } from "../../lib/wire";
import { s } from "../../strings";
import { processPath } from "./calls";

/** What is sent of an input in one message; the service takes 64 KiB. */
const PIECE = 32 * 1024;
/** Input that waits here for the service. More is not taken. */
const MAX_WAITING_INPUT = 4 * 1024 * 1024;
/** Output that waits to be shown. With more the connection is closed until it is shown: a page cannot slow a socket. */
const MAX_WAITING_OUTPUT = 2 * 1024 * 1024;
/** A byte for the stream, and the event's number in eight. */
const HEADER = 9;
const FIRST_WAIT = 500;
const LONGEST_WAIT = 10_000;

/** `lost`: it is tried again. `ended` and `gone` are the end: of the process, or of all that there was to connect to. */
export type AttachState = "connecting" | "live" | "lost" | "ended" | "gone";

interface AttachEvents {
  /** Output, in order. `done` is called when it is shown. */
  output(bytes: Uint8Array, done: () => void): void;
  /** `exit`, `end`, and `omitted`, where output is no longer kept. */
  event(event: ExecutionEvent): void;
  /** What the service refused. */
  problem(problem: Problem): void;
  state(state: AttachState, why?: unknown): void;
}

export class Attachment {
  #socket: WebSocket | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #wait = FIRST_WAIT;
  /** The number of the last event that came. */
  #after = 0;
  #waitingOutput = 0;
  /** Closed by us, until what came is shown. */
  #isCatchingUp = false;
  #isClosed = false;
  #size: string | undefined;

  constructor(
    readonly sandbox: string,
    readonly process: ProcessView,
    readonly events: AttachEvents,
  ) {
    this.#connect();
  }

  /** Whether output is what was printed before this page came: what a terminal answers to it is not meant. */
  get isReplay(): boolean {
    return this.#after <= this.process.last_event;
  }

  /** Sends input. It is not taken without a connection: keys that are typed into nothing must not arrive later. */
  input(bytes: Uint8Array): void {
    const socket = this.#socket;
    if (socket?.readyState !== WebSocket.OPEN) return;
    if (socket.bufferedAmount + bytes.byteLength > MAX_WAITING_INPUT) return;
    for (let start = 0; start < bytes.byteLength; start += PIECE) socket.send(bytes.slice(start, start + PIECE));
  }

  resize(cols: number, rows: number): void {
    this.#size = JSON.stringify({ resize: { cols, rows } });
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(this.#size);
  }

  /** Ends the connection. The process goes on. */
  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.#drop();
  }

  #drop(): void {
    const socket = this.#socket;
    this.#socket = undefined;
    socket?.close(1000);
  }

  #connect(): void {
    const { id, generation } = this.process;
    const path = processPath(this.sandbox, id, "/attach");
    const target = new URL(url(path, { after: this.#after, generation }), location.href);
    target.protocol = target.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(target, subprotocols("sandboxctl.process.1"));
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.#wait = FIRST_WAIT;
      this.events.state("live");
      if (this.#size) socket.send(this.#size);
    };
    socket.onmessage = ({ data }) => {
      if (this.#socket !== socket) return;
      if (typeof data === "string") this.#text(JSON.parse(data));
      else this.#binary(new Uint8Array(data));
    };
    socket.onclose = ({ code, reason }) => {
      if (this.#socket !== socket) return;
      if (code === 1000) this.#finish("ended");
      else if (code === 1008 || code === 1009) this.#finish("gone", new Error(reason || s.terminal.refused(code)));
      else this.#lost();
    };
  }

  #text(message: ExecutionEvent | { problem: Problem }): void {
    if ("problem" in message) {
      this.events.problem(message.problem);
      return;
    }
    this.#after = Math.max(this.#after, message.seq);
    this.events.event(message);
    // The service closes too, but a proxy between may lose that.
    if (message.event === "end") this.#finish("ended");
  }

  #binary(message: Uint8Array): void {
    if (message.byteLength < HEADER) return;
    this.#after = Number(new DataView(message.buffer).getBigUint64(1));
    const bytes = message.subarray(HEADER);
    this.#waitingOutput += bytes.byteLength;
    this.events.output(bytes, () => {
      this.#waitingOutput -= bytes.byteLength;
      if (!this.#isCatchingUp || this.#waitingOutput > 0) return;
      this.#isCatchingUp = false;
      if (!this.#isClosed) this.#connect();
    });
    if (this.#waitingOutput > MAX_WAITING_OUTPUT) {
      this.#isCatchingUp = true;
      this.#drop();
    }
  }

  #lost(): void {
    this.#socket = undefined;
    this.events.state("lost");
    this.#timer = setTimeout(() => void this.#again(), this.#wait);
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT);
  }

  /** A browser does not say why a WebSocket was refused, so the process is asked for first. */
  async #again(): Promise<void> {
    const { id, generation } = this.process;
    const error = await get(processPath(this.sandbox, id), { generation }).then(
      () => undefined,
      (failure) => failure,
    );
    if (this.#isClosed) return;
    // Anything that a service says of itself (503, a node that is away) may pass.
    const isFinal = error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429;
    if (isFinal) this.#finish("gone", error);
    else if (error) this.#lost();
    else this.#connect();
  }

  #finish(state: "ended" | "gone", why?: unknown): void {
    this.close();
    this.events.state(state, why);
  }
}
