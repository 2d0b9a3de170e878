/** Bytes, text and base64, and names in either of two spellings. */
import type { Content } from "./wire.js";

/** A path: text, or the bytes of one that is not UTF-8. */
export type Path = string | Uint8Array;

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const lossy = new TextDecoder("utf-8", { ignoreBOM: true });

/** Base64 in the standard alphabet, padded. */
export function toBase64(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
}

/** The bytes of base64. */
export function fromBase64(text: string): Uint8Array {
  const buffer = Buffer.from(text, "base64");
  return new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength);
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

/** Text, or bytes as `{"b64"}`. Text that is no Unicode (a lone surrogate) cannot be sent. */
export function toContent(value: string | Uint8Array): Content {
  if (typeof value !== "string" && !(value instanceof Uint8Array)) {
    throw new TypeError(`text or bytes are expected, not ${typeof value}`);
  }
  return typeof value === "string" ? value : (textOf(value) ?? { b64: toBase64(value) });
}

/** The members that name a path in a request: `path`, or `path_b64` if it is not UTF-8. */
export function pathMembers(name: string, path: Path): Record<string, string> {
  if (typeof path === "string") return { [name]: path };
  const plain = textOf(path);
  return plain === undefined ? { [`${name}_b64`]: toBase64(path) } : { [name]: plain };
}

/** Percent-encodes a path byte by byte as one segment, so that no URL parser resolves its dots. */
export function pathSegment(path: Path): string {
  const bytes = typeof path === "string" ? Buffer.from(path, "utf8") : path;
  let out = "";
  for (const byte of bytes) {
    const char = String.fromCharCode(byte);
    out += /[A-Za-z0-9._~-]/.test(char) ? char : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  }
  return out === "." || out === ".." ? `.%2F${out}` : out;
}
