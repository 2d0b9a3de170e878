/** Requests of executions: sent, sent again, and as commands for a terminal. */
import { ApiError, get, send } from "../../lib/api";
import { BEARER, curl, json } from "../../lib/curl";
import { cut, shell } from "../../lib/format";
import type { Content, Execution, ExecutionList, ExecutionRequest } from "../../lib/wire";

/** What was asked for, once it has ended: if it was small and had no secrets, as a service keeps no others. */
export function requestOf({ request }: Execution): ExecutionRequest | undefined {
  return request as ExecutionRequest | undefined;
}

/** The request whose answer has not come, or was lost, with its key. */
let pending: { text: string; key: string } | undefined;

const placeOf = (sandbox: string | null) => `${sandbox === null ? "" : `/sandboxes/${sandbox}`}/executions`;

/** Submits it, once even if the answer is lost and it is sent again. */
export async function submit(request: ExecutionRequest, sandbox: string | null = null): Promise<string> {
  const titled = { ...request, metadata: { title: titleOf(request), ...request.metadata } };
  const text = JSON.stringify(titled);
  if (pending?.text !== text) pending = { text, key: crypto.randomUUID() };
  const headers = { "Idempotency-Key": pending.key };
  const { id } = await send<{ id: string }>("POST", placeOf(sandbox), titled, { headers }).catch((error) => {
    if (error instanceof ApiError && error.status > 0) pending = undefined;
    throw error;
  });
  pending = undefined;
  return id;
}

/** The image of an execution, which only its entry in the list has. */
export async function imageOf({ id, created_at }: Execution): Promise<string | null | undefined> {
  const until = new Date(Date.parse(created_at) + 1).toISOString();
  const { executions } = await get<ExecutionList>("/executions", { since: created_at, until });
  return executions.find((each) => each.id === id)?.image;
}

function textOf(content: Content | null | undefined): string | undefined {
  return typeof content === "string" ? content : undefined;
}

/** What lists show: the beginning of what runs. */
function titleOf({ script, command }: ExecutionRequest): string {
  const program = [command?.program, ...(command?.args ?? [])].map((word) => shell(textOf(word) ?? "…")).join(" ");
  const source = textOf(script) ?? textOf(command?.shell) ?? program;
  const line = source.split("\n").find((each) => each.trim() !== "" && !each.trim().startsWith("--"));
  return cut((line ?? source).trim(), 80);
}

/** The commands that do the same from a terminal, or, without the request, that get what this execution is. */
export function commandLines(id: string, execution: Execution): { curl: string; sandboxctl: string } {
  const server = location.origin;
  const request = requestOf(execution);
  const find = `sandboxctl executions get ${id} --server ${shell(server)}`;
  if (!request) return { curl: curl(`/v1/executions/${id}`), sandboxctl: find };
  const run = () => `sandboxctl executions run --server ${shell(server)} --request ${shell(JSON.stringify(request))}`;
  return {
    curl: curl(`/v1${placeOf(execution.sandbox)}?wait=60`, [BEARER, ...json(request)]),
    sandboxctl: execution.sandbox === null ? (simple(request, server) ?? run()) : find,
  };
}

/** `run -c` or `exec`, if their flags can say it all. */
function simple(request: ExecutionRequest, server: string): string | undefined {
  const { script, args, command, image, limits, metadata: { title, ...metadata } = {}, ...more } = request;
  const others = { ...more, metadata };
  const isMore = Object.values(others).some((member) => member && Object.keys(member).length > 0);
  const { timeout_ms, memory_bytes, ...moreLimits } = limits ?? {};
  if (isMore || Object.keys(moreLimits).length > 0) return undefined;
  const flags = [`--server ${shell(server)}`];
  if (timeout_ms) flags.push(`--timeout ${timeout_ms}ms`);
  if (memory_bytes) flags.push(`--memory ${memory_bytes}B`);
  if (image && script) flags.push(`--image ${shell(image)}`);
  if (typeof script === "string") {
    for (const [name, value] of Object.entries(args ?? {})) {
      if (typeof value !== "string") return undefined;
      flags.push(`--arg ${shell(`${name}=${value}`)}`);
    }
    return `sandboxctl run ${flags.join(" ")} -c ${shell(script)}`;
  }
  if (typeof command?.shell === "string" && Object.keys(command).length === 1) {
    return `sandboxctl exec ${flags.join(" ")} ${image ? `${shell(image)} ` : ""}--shell ${shell(command.shell)}`;
  }
  return undefined;
}
