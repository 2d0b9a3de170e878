/** What is written in the playground. It stays while other pages are looked at. */
import { type TypedLimits, typedLimits } from "../../lib/typed";
import type { Execution } from "../../lib/wire";
import { s } from "../../strings";
import { imageOf } from "../executions/requests";
import { isCommand } from "../executions/verdict";

/** `limits` are those of `LIMITS`, by their names in the API. */
export type ScriptDraft = { source: string; args: string; limits: TypedLimits };
export type CommandDraft = Record<"image" | "shell" | "stdin" | "env" | "allow", string> & {
  inputs: File[];
  limits: TypedLimits;
};

/** The limits that the forms have. */
export const LIMITS = ["timeout_ms", "memory_bytes"] as const;

export const drafts: { script: ScriptDraft; command: CommandDraft; ran?: string } = {
  script: { source: s.playground.example, args: "", limits: {} },
  command: { image: "", shell: "", stdin: "", env: "", allow: "", inputs: [], limits: {} },
};

/** Takes over what the service knows of an execution's request. What runs is not in it, and stays as it is written. */
export async function draftLike(execution: Execution): Promise<"script" | "command"> {
  const { limits, network } = execution;
  const set = limits ? typedLimits(Object.fromEntries(LIMITS.map((name) => [name, limits[name]]))) : {};
  drafts.ran = undefined;
  if (!isCommand(execution)) {
    drafts.script = { ...drafts.script, limits: set };
    return "script";
  }
  const hosts = network?.contacted.map(({ host, port }) => `${host}:${port}`) ?? [];
  drafts.command = { ...drafts.command, image: (await imageOf(execution)) ?? "", limits: set, allow: hosts.join("\n") };
  return "command";
}
