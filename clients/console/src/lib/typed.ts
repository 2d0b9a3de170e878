/** What people type, as the API has it, and back. An empty text is nothing: the service's default counts then. */
import { s } from "../strings";
import type { LimitsRequest } from "./wire";

// The largest first, and of two that divide a number the one that is written.
const TIMES = { d: 86_400_000, h: 3_600_000, m: 60_000, s: 1000, ms: 1 };
const [K, M, G] = [2 ** 10, 2 ** 20, 2 ** 30];
const SIZES = { GiB: G, MiB: M, KiB: K, GB: 1e9, MB: 1e6, KB: 1e3, B: 1, G, M, K };

function measured(text: string, units: Record<string, number>, wrong: (text: string) => string): number | undefined {
  if (text.trim() === "") return undefined;
  const [, figure, unit] = /^(\d+(?:\.\d+)?)\s*([a-z]+)$/i.exec(text.trim()) ?? [];
  const found = Object.entries(units).find(([name]) => name.toLowerCase() === unit?.toLowerCase());
  if (!found) throw new Error(wrong(text));
  return Math.round(Number(figure) * found[1]);
}

/** `30m`, `1.5h` or `2d` in milliseconds. */
export function milliseconds(text: string): number | undefined {
  return measured(text, TIMES, s.typed.badTime);
}

/** A limit by its name: a time, a size such as `512MiB`, or a number. */
function limit(name: string, text: string): number | undefined {
  if (name.endsWith("_ms")) return milliseconds(text);
  if (name.endsWith("_bytes")) return measured(text, SIZES, s.typed.badSize);
  if (text.trim() === "") return undefined;
  if (!Number.isFinite(Number(text))) throw new Error(s.typed.badNumber(text));
  return Number(text);
}

/** Limits as they are typed, by their names in the API. */
export type TypedLimits = Record<string, string>;

/** Those that were typed. */
export function limitsOf(typed: TypedLimits): { limits?: LimitsRequest } {
  const set = Object.entries(typed).map(([name, text]) => [name, limit(name, text)] as const);
  const limits = Object.fromEntries(set.filter(([, value]) => value !== undefined));
  return Object.keys(limits).length > 0 ? { limits } : {};
}

/** The same text again, for limits of a request or of a document. */
export function typedLimits(limits: LimitsRequest): TypedLimits {
  const written = ([name, value]: [string, number]) => {
    const units: Record<string, number> = name.endsWith("_ms") ? TIMES : name.endsWith("_bytes") ? SIZES : {};
    const [unit, factor] = Object.entries(units).find(([, each]) => value % each === 0) ?? ["", 1];
    return [name, `${value / factor}${unit}`];
  };
  const set = Object.entries(limits).filter((entry): entry is [string, number] => typeof entry[1] === "number");
  return Object.fromEntries(set.map(written));
}

/** Words between spaces, commas or lines. */
export const listed = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean);

/** `NAME=value`, one a line, or with commas between. */
export function pairs(text: string, separator: RegExp = /\n/): Record<string, string> {
  const lines = text.split(separator).filter((line) => line.trim() !== "");
  const split = lines.map((line) => {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(s.typed.badPair(line.trim()));
    return [line.slice(0, at).trim(), line.slice(at + 1)];
  });
  return Object.fromEntries(split);
}
