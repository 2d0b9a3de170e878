/** Server-sent events out of the pieces of a body. */
import { unexpected } from "./answers.js";

/** One event. */
export interface ServerEvent {
  id: string;
  data: string;
}

/** The most that one event may have. */
const MAX_EVENT = 64 * 1024 * 1024;

/** Splits text into events, as it comes. */
export class EventParser {
  /** The line so far: one without a newline comes in many pieces, which are joined once. */
  #parts: string[] = [];
  #length = 0;
  #id = "";
  #data: string[] = [];
  #dataLength = 0;

  /** The events that this piece completes. */
  push(piece: string): ServerEvent[] {
    this.#length += piece.length;
    if (this.#length + this.#dataLength > MAX_EVENT) throw unexpected("an event is too long");
    this.#parts.push(piece);
    if (!piece.includes("\n")) return [];
    const events: ServerEvent[] = [];
    const lines = this.#parts.join("").split("\n");
    const rest = lines.pop() ?? "";
    this.#parts = [rest];
    this.#length = rest.length;
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "") {
        if (this.#data.length > 0) events.push({ id: this.#id, data: this.#data.join("\n") });
        this.#data = [];
        this.#dataLength = 0;
        continue;
      }
      const colon = line.indexOf(":");
      if (colon === 0) continue;
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "data") {
        this.#data.push(value);
        this.#dataLength += value.length + 1;
      } else if (field === "id") this.#id = value;
    }
    return events;
  }
}
