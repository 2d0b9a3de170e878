#!/usr/bin/env node
// Stands in for `sandboxctl tools --stdio`: it speaks the line protocol for clients, over files in memory. What it is
// asked by the names of sandboxes, scripts and environment variables, the tests need and the real one does not do.
import { createInterface } from "node:readline";

if (process.argv.includes("--version")) {
  console.log("sandboxctl 0.0.9 (fake)");
  process.exit(0);
}
if (process.env.FAKE === "silent-death") {
  process.stderr.write("error: no engine answers\n");
  process.exit(125);
}

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const answer = (id, data) => say({ id, type: "text", data, metadata: { durationMs: 0 } });
const refuse = (id, kind, error) => say({ id, error, metadata: { kind, retryable: false } });
const sandboxes = new Map();
const open = new Map();
let most = 0;

const envelope = (data) => ({ success: true, data, error: null, metadata: { duration_ms: 0 } });
const failure = (kind, message) => ({
  success: false,
  data: null,
  error: { kind, message },
  metadata: { duration_ms: 0 },
});

function operate(files, operation) {
  const path = operation.path.b64 ?? operation.path;
  switch (operation.operation) {
    case "write":
      files.set(path, Buffer.from(operation.content, operation.encoding === "base64" ? "base64" : "utf8"));
      return envelope({ path: `/io/${path}`, bytes_written: files.get(path).length, created: true });
    case "read": {
      const content = files.get(path);
      if (!content) return failure("not_found", `${path}: No such file or directory`);
      return envelope({ path, content: content.toString(operation.encoding === "base64" ? "base64" : "utf8") });
    }
    case "exists":
      return envelope({ path, exists: files.has(path), type: files.has(path) ? "file" : null });
    default:
      return failure("invalid_request", `operation: ${operation.operation}`);
  }
}

const common = {
  exit_code: 0,
  error: null,
  engine: "embedded",
  files_touched: [],
  files_touched_truncated: false,
  network: null,
  limits: null,
  usage: null,
  timing: null,
};
const document = (status, result) => ({
  schema: "sandboxctl.result/1",
  id: "x",
  status,
  result,
  logs: [],
  logs_truncated: false,
  ...common,
});

function call({ id, tool, args, stream }) {
  if (open.has(id)) return refuse(id, "invalid_request", "the id is in use");
  if (tool !== "sandbox_init" && !sandboxes.has(args.containerId)) {
    return refuse(id, "invalid_request", `Container '${args.containerId}' not registered`);
  }
  const files = sandboxes.get(args.containerId);
  switch (tool) {
    case "sandbox_init":
      sandboxes.set(args.containerId, new Map([["init", Buffer.from(JSON.stringify({ ...args, pid: process.pid }))]]));
      return answer(id, {
        containerId: args.containerId,
        sandboxId: `s-${args.containerId}`,
        dockerId: "d",
        mountPath: "/io",
      });
    case "sandbox_destroy":
      sandboxes.delete(args.containerId);
      return answer(id, { containerId: args.containerId, removed: true });
    case "sandbox_operation":
      if (args.operation.path === "pending") return void open.set(id, {});
      if (args.operation.path === "count") return answer(id, envelope({ path: "", content: `${open.size} ${most}` }));
      if (args.operation.path === "die") process.kill(process.pid, "SIGKILL");
      return answer(id, operate(files, args.operation));
    case "sandbox_execute": {
      const script = args.request.script;
      if (script === "wait") {
        open.set(id, { cancelled: () => answer(id, document("cancelled", null)) });
        most = Math.max(most, open.size);
        if (stream) say({ id, event: { seq: 1, time: "", event: "log", level: "print", text: "waiting" } });
        return;
      }
      if (script === "slow") {
        // Answered when 24 of them are there, or the last one: more that came at once would be counted until then.
        open.set(id, { slow: true });
        most = Math.max(most, open.size);
        const slow = () => [...open].filter(([, entry]) => entry.slow).map(([each]) => each);
        if (slow().length < 24 && !args.request.args.last) return;
        return void setImmediate(() => {
          for (const each of slow()) {
            open.delete(each);
            answer(each, document("ok", most));
          }
        });
      }
      return answer(id, document("ok", args.request));
    }
    case "sandbox_download": {
      const content = files.get(args.path.b64 ?? args.path);
      if (!content) return refuse(id, "not_found", `${args.path}: No such file or directory`);
      const transfer = {
        credit: 8,
        at: 0,
        more: (n) => {
          transfer.credit += n;
          pump();
        },
      };
      const pump = () => {
        while (transfer.credit > 0 && transfer.at < content.length) {
          transfer.credit -= 1;
          say({ id, chunk: content.subarray(transfer.at, transfer.at + 65536).toString("base64") });
          transfer.at += 65536;
        }
        if (transfer.at >= content.length && open.delete(id)) answer(id, { bytes: content.length });
      };
      open.set(id, transfer);
      return pump();
    }
    case "sandbox_upload":
      if (args.path === "refused") return refuse(id, "not_allowed", "refused");
      return void open.set(id, { pieces: [], files, path: args.path.b64 ?? args.path });
    default:
      return refuse(id, "invalid_request", `tool: ${tool}`);
  }
}

createInterface({ input: process.stdin, crlfDelay: Infinity })
  .on("line", (text) => {
    const line = JSON.parse(text);
    if (line.hello) {
      if (process.env.FAKE === "old")
        return say({ id: null, error: "a line is a call", metadata: { kind: "invalid_request" } });
      return say({ hello: { protocol: process.env.FAKE === "newer" ? 2 : 1, version: "0.0.9", engine: "embedded" } });
    }
    if (line.cancel !== undefined) {
      const entry = open.get(line.cancel);
      if (!open.delete(line.cancel)) return;
      if (entry.cancelled) return entry.cancelled();
      return refuse(line.cancel, "cancelled", "cancelled");
    }
    if (line.more !== undefined) return open.get(line.more)?.more(line.chunks);
    if (line.chunk !== undefined) {
      const upload = open.get(line.chunk);
      if (!upload) return;
      if (!line.end) {
        upload.pieces.push(Buffer.from(line.data, "base64"));
        return say({ id: line.chunk, more: 1 });
      }
      open.delete(line.chunk);
      const content = Buffer.concat(upload.pieces);
      upload.files.set(upload.path, content);
      return answer(line.chunk, { path: upload.path, bytes_written: content.length, created: true });
    }
    return call(line);
  })
  .on("close", () => process.exit(0));
