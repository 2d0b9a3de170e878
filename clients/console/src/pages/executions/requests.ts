/** The requests that this page has sent. The service forgets them when they start, so only these can be sent again. */
import { ApiError, get, send } from "../../lib/api";
import { BEARER, curl, json } from "../../lib/curl";
import { cut, shell } from "../../lib/format";
import type { Content, Execution, ExecutionList, ExecutionRequest } from "../../lib/wire";

const MAX_KEPT = 100;
const sent = new Map<string, ExecutionRequest>();

export function requestOf(id: string): ExecutionRequest | undefined {
  return sent.get(id);
}

/** The request whose answer has not come, or was lost, with its key. */
let pending: { text: string; key: string } | undefined;

/** Submits it, once even if the answer is lost and it is sent again. */
export async function submit(request: ExecutionRequest): Promise<string> {
  const titled = { ...request, metadata: { title: titleOf(request), ...request.metadata } };
  const text = JSON.stringify(titled);
  if (pending?.text !== text) pending = { text, key: crypto.randomUUID() };
  const headers = { "Idempotency-Key": pending.key };
  const { id } = await send<{ id: string }>("POST", "/executions", titled, { headers }).catch((error) => {
    if (error instanceof ApiError && error.status > 0) pending = undefined;
    throw error;
  });
  pending = undefined;
  sent.set(id, request);
  const oldest = sent.keys().next().value;
  if (sent.size > MAX_KEPT && oldest !== undefined) sent.delete(oldest);
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
  const source = textOf(script) ?? textOf(command?.shell) ?? textOf(command?.program) ?? "";
  const line = source.split("\n").find((each) => each.trim() !== "" && !each.trim().startsWith("--"));
  return cut((line ?? source).trim(), 80);
}

/** The commands that do the same from a terminal, or, without the request, that get what this execution is. */
export function commandLines(id: string, request: ExecutionRequest | undefined): { curl: string; sandboxctl: string } {
  const server = location.origin;
  if (!request) {
    return {
      curl: curl(`/v1/executions/${id}`),
      sandboxctl: `sandboxctl executions get ${id} --server ${shell(server)}`,
    };
  }
  const run = () => `sandboxctl executions run --server ${shell(server)} --request ${shell(JSON.stringify(request))}`;
  return {
    curl: curl("/v1/executions?wait=60", [BEARER, ...json(request)]),
    sandboxctl: simple(request, server) ?? run(),
  };
}

/** `run -c` or `exec`, if their flags can say it all. */
function simple(request: ExecutionRequest, server: string): string | undefined {
  const { script, args, command, image, limits, ...others } = request;
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
