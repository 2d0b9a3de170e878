/** The calls of the tables that the clients of all languages share: clients/conformance. */
import { readFileSync } from "node:fs";
import type { Sandbox } from "../src/index.js";

/** A call of a table. */
export interface Call {
  call: string;
  with: Record<string, unknown>;
}

/** The rows of a table. */
export function rows<Row>(name: string): Row[] {
  // The compiled tests are one directory deeper than their sources.
  return JSON.parse(readFileSync(new URL(`../../../conformance/${name}.json`, import.meta.url), "utf8")) as Row[];
}

export const camelName = (name: string) => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
export const snakeName = (name: string) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
export const isBytes = (value: unknown): value is { b64: string } =>
  typeof value === "object" && value !== null && Object.keys(value).join() === "b64";
export const bytes = (value: { b64: string }) => new Uint8Array(Buffer.from(value.b64, "base64"));

/** Arguments of the table as this client has them. What a script or a command is given keeps its names. */
function given(value: unknown, renamed = true): unknown {
  if (isBytes(value)) return bytes(value);
  if (Array.isArray(value)) return value.map((each) => given(each, renamed));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, member]) => [
      renamed ? camelName(name) : name,
      given(member, renamed && !["args", "env", "secrets"].includes(name)),
    ]),
  );
}

/** Calls a method with the arguments of the table. */
export async function call(s: Sandbox, step: Call, more: object = {}): Promise<unknown> {
  const args = { ...(given(step.with) as Record<string, never>), ...more };
  const { path, from, to, content, old, new: replacement, pattern, pieces, script, command, ...options } = args;
  const { files } = s;
  switch (step.call) {
    case "files.write":
      return files.write(path as never, content as never, options);
    case "files.write_stream":
      return files.write(path as never, pieces as never);
    case "files.read_stream": {
      const read: Uint8Array[] = [];
      for await (const piece of files.readStream(path as never)) read.push(piece);
      return new Uint8Array(Buffer.concat(read));
    }
    case "files.edit":
      return files.edit(path as never, old as never, replacement as never, options);
    case "files.move":
      return files.move(from as never, to as never, options);
    case "files.copy":
      return files.copy(from as never, to as never, options);
    case "files.glob":
      return files.glob(pattern as never, { ...options, ...(path === undefined ? {} : { path }) });
    case "files.grep":
      return files.grep(pattern as never, { ...options, ...(path === undefined ? {} : { path }) });
    case "files.list":
      return files.list(path ?? ".", options);
    case "files.read":
    case "files.read_bytes":
    case "files.mkdir":
    case "files.touch":
    case "files.remove":
    case "files.exists":
    case "files.stat": {
      const method = camelName(step.call.slice("files.".length)) as "read";
      return files[method](path as never, options);
    }
    case "run_script":
      return s.runScript(script as never, options);
    case "commands.run":
      return s.commands.run(command as never, options);
    case "close":
      return s.close();
    default:
      throw new Error(`the table has the call ${step.call}, which this client does not know`);
  }
}
