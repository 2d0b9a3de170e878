/** Lines out of pieces of bytes. */

/** The longest line: 64 MiB, and what is around it. */
const MAX_LINE = 80 * 1024 * 1024;

/** Splits bytes at newlines, as they come. */
export class LineSplitter {
  #parts: Buffer[] = [];
  #length = 0;

  /** The lines that this piece completes. */
  push(piece: Buffer): string[] {
    const lines: string[] = [];
    let start = 0;
    for (let end = piece.indexOf(10); end >= 0; end = piece.indexOf(10, start)) {
      lines.push(this.#finish(piece.subarray(start, end)));
      start = end + 1;
    }
    if (start < piece.length) {
      this.#length += piece.length - start;
      if (this.#length > MAX_LINE) throw new Error("a line is too long");
      this.#parts.push(piece.subarray(start));
    }
    return lines;
  }

  #finish(last: Buffer): string {
    if (this.#parts.length === 0) return last.toString("utf8");
    const line = Buffer.concat([...this.#parts, last]).toString("utf8");
    this.#parts = [];
    this.#length = 0;
    return line;
  }
}
