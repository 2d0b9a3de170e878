/** Bytes of the API: text where they are UTF-8, and base64 elsewhere. */
import type { Content } from "./wire";

export function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

export function bytesOf(content: Content): Uint8Array {
  return typeof content === "string" ? new TextEncoder().encode(content) : fromBase64(content.b64);
}

export function contentOf(bytes: Uint8Array): Content {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    const text = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
    return { b64: btoa(text) };
  }
}

/** The path of an entry of a list: its bytes, where it is not UTF-8. */
export function pathOf({ path, path_b64 }: { path: string; path_b64?: string | null }): Content {
  return path_b64 ? { b64: path_b64 } : path;
}

/** A path as one segment of an address, with all that is not plain as `%XX`: no browser resolves a `..` in it. */
export function segment(path: Content): string {
  const encoded = Array.from(bytesOf(path), (byte) => {
    const character = String.fromCharCode(byte);
    return /[A-Za-z0-9_-]/.test(character) ? character : `%${byte.toString(16).padStart(2, "0")}`;
  });
  return encoded.join("");
}
