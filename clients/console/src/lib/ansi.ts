/**
 * Output of a guest, as rows of coloured text. A row keeps its bytes as they came; spans are made for the rows that are
 * seen. Of the escape sequences only colours and styles have an effect; every other one is dropped.
 */
import { s } from "../strings";
import { fromBase64 } from "./content";
import { safeText } from "./format";
import type { ExecutionEvent } from "./wire";

export const FLAGS = ["bold", "dim", "italic", "underline", "inverse"] as const;

/** How text looks. `fg` and `bg` are 0-255 of the palette, or `rgb(r,g,b)`. */
export type Style = { fg?: number | string; bg?: number | string } & { [flag in (typeof FLAGS)[number]]?: boolean };

export type Span = { text: string; style: Style };

/** Where a row came from. */
export type Source = "stdout" | "stderr" | "log" | "warn" | "note";

export type Row = { text: string; style: Style; source: Source; continued: boolean };

const PLAIN: Style = {};

// CSI, OSC and the other strings (ended by BEL or ST), and two-character escapes; 8-bit forms of them too.
const ESCAPE =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one.
  /(?:\u001b\[|\u009b)([0-?]{0,256})[ -/]{0,16}([@-~])|(?:\u001b[\]PX^_]|[\u0090\u0098\u009d-\u009f])[^\u0007\u001b\u009c]{0,4096}(?:\u0007|\u001b\\|\u009c)?|\u001b[ -/]{0,4}[0-Z\\`-~]?/g;

const ON: Record<number, (typeof FLAGS)[number]> = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse" };
const OFF: Record<number, (keyof Style)[]> = {
  ...{ 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 39: ["fg"], 49: ["bg"] },
};

/** The style after the parameters of an SGR sequence. */
function styled(before: Style, parameters: string): Style {
  const codes = parameters.split(/[;:]/).map((part) => (part === "" ? 0 : Number(part)));
  let style: Style = { ...before };
  for (let i = 0; i < codes.length; i += 1) {
    const code = codes[i] ?? 0;
    const on = ON[code];
    const ground = code < 40 || (code >= 90 && code < 100) ? "fg" : "bg";
    if (code === 0) style = {};
    else if (on) style[on] = true;
    else if (OFF[code]) for (const name of OFF[code]) delete style[name];
    else if (code >= 30 && code <= 47 && code % 10 < 8) style[ground] = code % 10;
    else if (code >= 90 && code <= 107 && code % 10 < 8) style[ground] = (code % 10) + 8;
    else if ((code === 38 || code === 48) && codes[i + 1] === 5) {
      style[ground] = Math.min(codes[i + 2] ?? 0, 255);
      i += 2;
    } else if ((code === 38 || code === 48) && codes[i + 1] === 2) {
      const parts = [2, 3, 4].map((at) => Math.min(codes[i + at] ?? 0, 255));
      style[ground] = `rgb(${parts.join()})`;
      i += 4;
    }
  }
  return style;
}

/** The style at the end of a text. */
export function styleAfter(text: string, style: Style): Style {
  if (!text.includes("\u001b") && !text.includes("\u009b")) return style;
  let current = style;
  // Only what comes after the last reset counts.
  const reset = Math.max(text.lastIndexOf("\u001b[0m"), text.lastIndexOf("\u001b[m"));
  for (const match of text.slice(Math.max(reset, 0)).matchAll(ESCAPE)) {
    if (match[2] === "m") current = styled(current, match[1] ?? "");
  }
  return current;
}

/** A text as spans. */
export function spans(row: string, style: Style = PLAIN): Span[] {
  const text = row.replace(/\r$/, "");
  const found: Span[] = [];
  let current = style;
  let end = 0;
  const add = (part: string) => {
    if (part !== "") found.push({ text: safeText(part), style: current });
  };
  for (const match of text.matchAll(ESCAPE)) {
    add(text.slice(end, match.index));
    end = match.index + match[0].length;
    if (match[2] === "m") current = styled(current, match[1] ?? "");
  }
  add(text.slice(end));
  return found;
}

/** The most rows and characters that are kept; the oldest go first. */
const MAX_ROWS = 200_000;
const MAX_CHARACTERS = 16 * 1024 * 1024;
/** Longer lines go on in the next row. */
const MAX_ROW = 500;

/** How long changes are collected until listeners are called, in milliseconds. */
const NOTIFY_MS = 80;

/** The output so far. */
export class OutputBuffer {
  /** The rows that are kept. */
  rows: Row[] = [];
  /** How many rows before them are not. */
  dropped = 0;
  #characters = 0;
  #open: Row | null = null;
  /** How each source goes on. */
  #styles = new Map<Source, Style>();
  #listeners = new Set<() => void>();
  #timer = 0;

  /** Adds output; its last line may go on in the next piece. */
  push(text: string, source: Source = "stdout"): void {
    if (this.#open?.source !== source) this.#leave();
    let start = 0;
    while (start < text.length) {
      const newline = text.indexOf("\n", start);
      this.#append(text.slice(start, newline < 0 ? text.length : newline), source);
      if (newline < 0) break;
      this.#close(source);
      start = newline + 1;
    }
    this.#trim();
    this.#notify();
  }

  /** Adds whole lines, which no escape sequence colours. */
  line(text: string, source: Source): void {
    this.#leave();
    this.push(`${text}\n`, source);
    this.#styles.delete(source);
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** What is kept, without escape sequences. */
  text(): string {
    return this.rows
      .map((row, index) => {
        const text = spans(row.text)
          .map((span) => span.text)
          .join("");
        return this.rows[index + 1]?.continued ? text : `${text}\n`;
      })
      .join("");
  }

  #append(piece: string, source: Source): void {
    let rest = piece;
    while (rest !== "" || !this.#open) {
      this.#open ??= this.#row(source, false);
      let room = MAX_ROW - this.#open.text.length;
      if (room <= 0) {
        this.#leave();
        this.#open = this.#row(source, true);
        room = MAX_ROW;
      }
      let length = Math.min(room, rest.length);
      // A row does not end within a character, or within an escape sequence that is not absurdly long.
      if (length < rest.length) {
        const last = rest.charCodeAt(length - 1);
        if (last >= 0xd800 && last < 0xdc00 && length > 1) length -= 1;
        const begin = rest.lastIndexOf("\u001b", length - 1);
        if (begin > 0 && length - begin < 32 && !/[@-Z\\^-~]/.test(rest.slice(begin + 2, length))) length = begin;
      }
      this.#open.text += rest.slice(0, length);
      this.#rewind(this.#open);
      this.#characters += length;
      rest = rest.slice(length);
      if (rest === "") break;
      if (length < room) {
        this.#leave();
        this.#open = this.#row(source, true);
      }
    }
  }

  /** A carriage return begins the line again, as progress bars do. */
  #rewind(row: Row): void {
    const end = row.text.endsWith("\r") ? row.text.length - 1 : row.text.length;
    const last = row.text.lastIndexOf("\r", end - 1);
    if (last < 0) return;
    row.style = styleAfter(row.text.slice(0, last), row.style);
    row.text = row.text.slice(last + 1);
  }

  #close(source: Source): void {
    const row = this.#open ?? this.#row(source, false);
    this.#open = row;
    this.#leave();
    row.text = row.text.replace(/\r$/, "");
  }

  /** The next output is in another row. */
  #leave(): void {
    const row = this.#open;
    if (row) this.#styles.set(row.source, styleAfter(row.text, row.style));
    this.#open = null;
  }

  #row(source: Source, continued: boolean): Row {
    const row: Row = { text: "", style: this.#styles.get(source) ?? PLAIN, source, continued };
    this.rows.push(row);
    return row;
  }

  #trim(): void {
    if (this.rows.length <= MAX_ROWS && this.#characters <= MAX_CHARACTERS) return;
    let count = Math.max(0, this.rows.length - Math.floor(MAX_ROWS * 0.9));
    // Anew: carriage returns took some away.
    let characters = this.rows.reduce((sum, { text }) => sum + text.length, 0);
    for (let i = 0; i < count; i += 1) characters -= this.rows[i]?.text.length ?? 0;
    while (characters > MAX_CHARACTERS * 0.9 && count < this.rows.length - 1) {
      characters -= this.rows[count]?.text.length ?? 0;
      count += 1;
    }
    this.rows.splice(0, count);
    this.dropped += count;
    this.#characters = characters;
  }

  #notify(): void {
    if (this.#timer !== 0) return;
    this.#timer = window.setTimeout(() => {
      this.#timer = 0;
      for (const listener of [...this.#listeners]) listener();
    }, NOTIFY_MS);
  }
}

/** Writes events into a buffer: output as whole characters, whatever the pieces in which it came. */
export function writer(output: OutputBuffer): (event: ExecutionEvent) => void {
  const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  const encoder = new TextEncoder();
  return ({ event, text, stream, encoding, level }) => {
    if (event === "omitted") output.line(s.output.omitted, "note");
    if (typeof text !== "string") return;
    if (event === "log") output.line(text, level === "warn" ? "warn" : level === "truncated" ? "note" : "log");
    if (event !== "output") return;
    const source = stream ?? "stdout";
    const bytes = encoding === "base64" ? fromBase64(text) : encoder.encode(text);
    output.push(decoders[source].decode(bytes, { stream: true }), source);
  };
}
