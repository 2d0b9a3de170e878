/** The calls of the tables that the clients of all languages share: clients/conformance. */
import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { type FileChange, Process, type ProcessEvent, type Sandbox, type Terminal } from "../src/index.js";

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

/** Names of the caller's own, which stay as they are. */
const OWN = ["args", "env", "envs", "metadata", "secrets"];

/** Arguments of the table as this client has them. What a script or a command is given keeps its names. */
export function given(value: unknown, renamed = true): unknown {
  if (isBytes(value)) return bytes(value);
  if (Array.isArray(value)) return value.map((each) => given(each, renamed));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, member]) => [
      renamed ? camelName(name) : name,
      given(member, renamed && !OWN.includes(name)),
    ]),
  );
}

/** The last process that was started in a sandbox. */
const started = new WeakMap<Sandbox, Process>();

/** What is read of a process: to its end, or until its stdout has a text. */
async function read(events: AsyncIterable<ProcessEvent>, until: string | undefined) {
  const found = {
    stdout: "",
    stderr: "",
    stdoutBytes: new Uint8Array(),
    omitted: false,
    exitCode: null as number | null,
  };
  for await (const { type, text, bytes, exitCode } of events) {
    found[type === "stderr" ? "stderr" : "stdout"] += text;
    if (type === "stdout") found.stdoutBytes = new Uint8Array(Buffer.concat([found.stdoutBytes, bytes]));
    found.omitted ||= type === "omitted";
    if (type === "end") found.exitCode = exitCode;
    if (until !== undefined && found.stdout.includes(until)) break;
  }
  return found;
}

/** Calls a method of the last process. */
async function ofProcess(process: Process, name: string, args: Record<string, never>): Promise<unknown> {
  const { text, data, signal, to, cols, rows } = args;
  switch (name) {
    case "read":
    case "read_until":
      return read(process, text);
    case "send":
      return (process as Terminal).send(data as never);
    case "send_stdin":
      return process.sendStdin(data as never);
    case "signal":
      return process.signal(signal as never, to);
    case "resize":
      return process.resize(cols as never, rows as never);
    case "wait":
      return process.wait(args);
    default:
      return process[camelName(name) as "getInfo" | "closeStdin" | "kill" | "stop"]();
  }
}

/** Makes a call of the table. */
export async function call(s: Sandbox, step: Call, more: object = {}): Promise<unknown> {
  const args = { ...(given(step.with) as Record<string, never>), ...more };
  const [of, name] = step.call.split(".");
  if (of === "process") return ofProcess(started.get(s) as Process, name as string, args);
  const result = await ofSandbox(s, step.call, args);
  if (result instanceof Process) started.set(s, result);
  return result;
}

/** Calls a method with the arguments of the table. */
async function ofSandbox(s: Sandbox, method: string, args: Record<string, never>): Promise<unknown> {
  const { path, from, to, content, old, new: replacement, pattern, pieces, script, command, ...options } = args;
  const { files } = s;
  switch (method) {
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
    case "files.chmod":
      return files.chmod(path as never, args.permissions as never, { recursive: args.recursive ?? false });
    case "files.symlink":
      return files.symlink(path as never, args.target as never);
    case "files.set_metadata":
      return files.setMetadata(path as never, args.metadata as never);
    case "files.watch": {
      const { during, last, ...how } = options as { during?: unknown; last?: unknown };
      const seen: FileChange[] = [];
      const changes = await files.watch(path, how);
      for (const each of during as never as Call[]) await call(s, each);
      for await (const change of changes) {
        seen.push(change);
        if (`${change.change},${change.name}` === String(last)) break;
      }
      return seen;
    }
    case "files.read":
    case "files.read_bytes":
    case "files.mkdir":
    case "files.touch":
    case "files.remove":
    case "files.exists":
    case "files.read_link":
    case "files.stat": {
      return files[camelName(method.slice("files.".length)) as "read"](path as never, options);
    }
    case "run_script":
      return s.runScript(script as never, options);
    case "commands.run":
      return s.commands.run(command as never, options);
    case "commands.follow": {
      const events: ProcessEvent[] = [];
      for await (const event of await s.commands.run(command as never, { background: true })) events.push(event);
      return events;
    }
    case "commands.list":
      return s.commands.list();
    case "commands.connect":
      return s.commands.connect(args.process as never);
    case "ports.list":
      return s.ports.list();
    case "ports.exchange": {
      const forward = await s.ports.forward(args.port as never);
      const socket = connect({ port: forward.port, host: forward.host, allowHalfOpen: true });
      socket.end(args.text);
      let text = "";
      for await (const piece of socket) text += piece;
      await forward.close();
      return text;
    }
    case "pty.create":
      return s.pty.create(args);
    case "set_timeout":
      return s.setTimeout(args.timeoutMs as never);
    case "close":
    case "get_info":
    case "pause":
    case "resume":
      return s[camelName(method) as "close" | "getInfo" | "pause" | "resume"]();
    default:
      throw new Error(`the table has the call ${method}, which this client does not know`);
  }
}
