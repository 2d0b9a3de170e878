/** Bytes, text and base64, and what is sent of them. */
import { errorOf } from "./errors.js";
import type { Content } from "./wire.js";

/** A path: text, or the bytes of one that is not UTF-8. */
export type Path = string | Uint8Array;

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const lossy = new TextDecoder("utf-8", { ignoreBOM: true });

/** Base64 in the standard alphabet, padded. */
export function toBase64(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
}

/** Text of bytes; what is not UTF-8 becomes U+FFFD. */
export function toText(bytes: Uint8Array): string {
  return lossy.decode(bytes);
}

/** Text of bytes, or undefined if they are not UTF-8. */
export function textOf(bytes: Uint8Array): string | undefined {
  try {
    return strict.decode(bytes);
  } catch {
    return undefined;
  }
}

/** Bytes of text in UTF-8. */
export function toBytes(text: string): Uint8Array {
  return new Uint8Array(Buffer.from(text, "utf8"));
}

/** What is sent, as JSON. */
export function encoded(value: unknown): string {
  const text = JSON.stringify(value);
  // An escape is half of a character, or the backslash and the letters themselves.
  if (text.includes("\\ud")) {
    JSON.stringify(value, (name, member: unknown) => {
      wellFormed(name);
      return typeof member === "string" ? wellFormed(member) : member;
    });
  }
  return text;
}

/** Text in which no character is only a half, such as "\ud83d": such a text has no bytes. */
function wellFormed(text: string): string {
  const half = /\p{Surrogate}/u.exec(text)?.[0];
  if (half === undefined) return text;
  const message = `text that is no Unicode: it has ${JSON.stringify(half)} alone`;
  throw errorOf({ kind: "encoding", message, hint: "give bytes" });
}

function bytesOf(path: Uint8Array): Uint8Array {
  if (path instanceof Uint8Array) return path;
  throw new TypeError(`path: text or bytes are expected, not ${typeof path}`);
}

/** Text, or bytes as `{"b64"}`. */
export function toContent(value: string | Uint8Array, name = ""): Content {
  if (typeof value !== "string" && !(value instanceof Uint8Array)) {
    const given = Array.isArray(value) ? "a list" : typeof value;
    throw new TypeError(`${name}${name && ": "}text or bytes are expected, not ${given}`);
  }
  return typeof value === "string" ? value : (textOf(value) ?? { b64: toBase64(value) });
}

/** Percent-encodes a path byte by byte as one segment, so that no URL parser resolves its dots. */
export function pathSegment(path: Path): string {
  const bytes = typeof path === "string" ? toBytes(wellFormed(path)) : bytesOf(path);
  let out = "";
  for (const byte of bytes) {
    const char = String.fromCharCode(byte);
    out += /[A-Za-z0-9._~-]/.test(char) ? char : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  }
  return out === "." || out === ".." ? `.%2F${out}` : out;
}
