/** What a server or the process says, read strictly: a malformed answer is a `SandboxError`, and nothing else. */
import { errorOf, isObject, type SandboxError } from "./errors.js";

const KINDS = {
  text: (value: unknown) => typeof value === "string",
  integer: (value: unknown) => Number.isInteger(value),
  flag: (value: unknown) => typeof value === "boolean",
  object: isObject,
  texts: (value: unknown) => Array.isArray(value) && value.every((each) => typeof each === "string"),
};

/** What members an object has. One whose name ends with "?" may be missing or null; `[shape]` is a list. */
export interface Shape {
  readonly [member: string]: keyof typeof KINDS | Shape | readonly [Shape];
}

/** The error of a malformed answer. */
export function unexpected(why: string): SandboxError {
  const hint = "is this sandboxctl, and of the client's version?";
  return errorOf({ kind: "internal", message: `unexpected answer: ${why}`, hint });
}

/** The JSON of an answer. */
export function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw unexpected("not JSON");
  }
}

/** The object that an answer is, with members of these kinds. What else it has is left to later versions. */
export function shaped(value: unknown, shape: Shape): Record<string, unknown> {
  if (!isObject(value)) throw unexpected("not an object");
  for (const [key, kind] of Object.entries(shape)) {
    const name = key.replace("?", "");
    const member = Object.hasOwn(value, name) ? value[name] : undefined;
    if ((member === undefined || member === null) && name !== key) continue;
    if (typeof kind === "string") {
      if (!KINDS[kind](member)) throw unexpected(`\`${name}\` is not: ${kind}`);
    } else if (Array.isArray(kind)) {
      if (!Array.isArray(member)) throw unexpected(`\`${name}\` is not a list`);
      for (const each of member) shaped(each, kind[0] as Shape);
    } else {
      shaped(member, kind as Shape);
    }
  }
  return value;
}

/** Whether a text may be an id, and a part of a URL. */
export function isIdentifier(text: string): boolean {
  return /^[A-Za-z0-9_-]{1,128}$/.test(text);
}

/** The id of an answer, which may be a part of a URL. */
export function identifier(answer: unknown): string {
  const id = shaped(answer, { id: "text" }).id as string;
  if (!isIdentifier(id)) throw unexpected(`${JSON.stringify(id.slice(0, 200))} is not an id`);
  return id;
}

/** The bytes of base64. */
export function fromBase64(text: string): Uint8Array {
  const buffer = Buffer.from(text, "base64");
  // What is no base64 is left out.
  const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  if (text.length % 4 !== 0 || buffer.length !== (text.length / 4) * 3 - padding) throw unexpected("not base64");
  return new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength);
}

const FAILURE: Shape = { kind: "text", message: "text", "hint?": "text", "line?": "integer", "traceback?": "text" };
const NOTE: Shape = { kind: "text", message: "text", "hint?": "text" };
const HOST: Shape = { host: "text", port: "integer" };

/** The envelope of an operation. */
export const ENVELOPE: Shape = { success: "flag", "data?": "object", "error?": FAILURE };

const EXECUTION: Shape = {
  "id?": "text",
  status: "text",
  "error?": FAILURE,
  files_touched: [{ name: "text", "name_b64?": "text", op: "text", bytes: "integer" }],
  files_touched_truncated: "flag",
  "engine?": "text",
  "network?": { contacted: [HOST], refused: [{ ...HOST, reason: "text", allow: "texts" }], truncated: "flag" },
  "limits?": "object",
  "usage?": "object",
  "notes?": [NOTE],
  "timing?": "object",
};

/** The documents of executions, by their schemas. */
export const DOCUMENTS: Readonly<Record<string, Shape>> = {
  "sandboxctl.result/1": { ...EXECUTION, logs: "texts", logs_truncated: "flag" },
  "sandboxctl.exec/1": {
    ...EXECUTION,
    "exit_code?": "integer",
    "signal?": "integer",
    stdout: "text",
    "stdout_encoding?": "text",
    stdout_truncated: "flag",
    stderr: "text",
    "stderr_encoding?": "text",
    stderr_truncated: "flag",
  },
};

const EVENT: Shape = {
  seq: "integer",
  event: "text",
  "stream?": "text",
  "encoding?": "text",
  "text?": "text",
  "level?": "text",
  "host?": { ...HOST, reason: "text" },
  "exit_code?": "integer",
  "signal?": "integer",
};

/** The events that have more than their name. */
const EVENTS: Readonly<Record<string, Shape>> = {
  output: { stream: "text", text: "text" },
  log: { text: "text" },
};

/** An event of an execution. */
export function eventOf(value: unknown): Record<string, unknown> {
  const event = shaped(value, EVENT);
  return shaped(event, EVENTS[event.event as string] ?? {});
}
