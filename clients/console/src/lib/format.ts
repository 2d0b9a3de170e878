/** Figures and text for people. */
import { s } from "../strings";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** `1.5 MiB` */
export function bytes(n: number): string {
  let value = n;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : Number(value.toFixed(1))} ${UNITS[unit]}`;
}

/** `350 ms`, `4.2 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h` */
export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${Number(seconds.toFixed(seconds < 10 ? 2 : 1))} s`;
  const whole = Math.floor(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

const TIMES = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** A point of time in the reader's time zone. */
export function time(iso: string): string {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? safe(iso) : TIMES.format(date);
}

/** The unit of a distance from this many milliseconds on, and its name. */
const DISTANCES: [number, number, string][] = [
  [47.5 * 3_600_000, 24 * 3_600_000, "d"],
  [59.5 * 60_000, 3_600_000, "h"],
  [59_500, 60_000, "min"],
];

/** `just now`, `5 min ago`, `in 2 h` */
export function ago(iso: string, now = Date.now()): string {
  const ms = now - new Date(iso).getTime();
  if (Number.isNaN(ms)) return safe(iso);
  const distance = Math.abs(ms);
  if (distance < 5000) return s.ui.justNow;
  const [, size, unit] = DISTANCES.find(([from]) => distance >= from) ?? [0, 1000, "s"];
  const text = `${Math.round(distance / size)} ${unit}`;
  return ms < 0 ? s.ui.later(text) : s.ui.ago(text);
}

// Control characters, those that change the direction of text or have no width, and halves of surrogate pairs.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;

function visible(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  // It asks for a coloured form of the emoji before it.
  if (code === 0xfe0f) return character;
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
}

/** A name or a short text of a guest on one line: what could not be seen, or would move other text, is made visible. */
export function safe(text: string): string {
  return text.replace(HIDDEN, visible);
}

/** The same for a text of several lines: line feeds and tabs stay. */
export function safeText(text: string): string {
  return text.replace(HIDDEN, (character) =>
    character === "\n" || character === "\t" ? character : visible(character),
  );
}

/** A name of the API in words: `script_error`. */
export const spaced = (name: string): string => safe(name).replaceAll("_", " ");

/** The name of a limit, whose figure is written with its unit. */
export function limitName(name: string): string {
  const bare = name.replace(/_(ms|bytes)$/, "");
  return s.limitNames[bare] ?? `${bare.charAt(0).toUpperCase()}${spaced(bare.slice(1))}`;
}

/** The first characters, and an ellipsis for the others. */
export function cut(text: string, length: number): string {
  return text.length <= length ? text : `${text.slice(0, length)}\u2026`;
}

/** An argument of a POSIX shell. */
export function shell(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
