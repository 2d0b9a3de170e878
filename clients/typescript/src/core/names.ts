/** `snake_case` of the wire to `camelCase` of this package, and back. */
import { fromBase64, unexpected } from "./answers.js";

type CamelName<S extends string> = S extends `${infer A}_${infer B}` ? `${A}${Capitalize<CamelName<B>>}` : S;

/** The same data with names in `camelCase`, at every depth. */
export type Camel<T> = T extends (infer E)[]
  ? Camel<E>[]
  : T extends object
    ? { [K in keyof T as K extends string ? CamelName<K> : K]: Camel<T[K]> }
    : T;

/** How deep data of the API's own may be. */
const DEPTH = 64;

/** A name in `camelCase`. */
export function camelName(name: string): string {
  return name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

/** A name in `snake_case`. */
export function snakeName(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/**
 * Data with names in `camelCase`. A member `x_b64` becomes `xBytes`. It is for the API's own data alone: a script's
 * result keeps its names.
 */
export function camel(value: unknown, depth = 0): unknown {
  if (depth > DEPTH) throw unexpected("it is nested too deeply");
  if (Array.isArray(value)) return value.map((each) => camel(each, depth + 1));
  if (typeof value !== "object" || value === null) return value;
  const out: Record<string, unknown> = {};
  for (const [name, member] of Object.entries(value)) {
    if (name.endsWith("_b64") && typeof member === "string") {
      out[`${camelName(name.slice(0, -4))}Bytes`] = fromBase64(member);
    } else {
      out[camelName(name)] = camel(member, depth + 1);
    }
  }
  return out;
}

/** The members that are given, with names in `snake_case`. */
export function snake(options: object): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const [name, member] of Object.entries(options)) {
    if (member !== undefined) out[snakeName(name)] = member;
  }
  return out;
}
