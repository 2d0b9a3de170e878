/** A Luau script, its arguments, and what `check` says of it. */
import { useEffect, useState } from "preact/hooks";
import { send, sleep } from "../../lib/api";
import { safe } from "../../lib/format";
import { useLoad } from "../../lib/load";
import { limitsOf } from "../../lib/typed";
import type { ExecutionRequest, ScriptCheck, ScriptProblem } from "../../lib/wire";
import { s } from "../../strings";
import { Badge, Field, Safe } from "../../ui";
import type { ScriptDraft } from "./drafts";
import { LimitFields } from "./limits";

export function scriptRequest(draft: ScriptDraft): ExecutionRequest {
  return { script: draft.source, ...argsOf(draft.args), ...limitsOf(draft.limits) };
}

/** The arguments of a script: a JSON object, or nothing. */
function argsOf(text: string): { args?: Record<string, unknown> } {
  if (text.trim() === "") return {};
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(s.playground.argsJson(safe((error as Error).message)));
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(s.playground.argsObject);
  return { args: value as Record<string, unknown> };
}

const TYPING_MS = 400;

/** What is wrong with a script, when its typing has paused; until then, what was. */
function useCheck(script: string): ScriptProblem[] {
  const [problems, setProblems] = useState<ScriptProblem[]>([]);
  const { data, error } = useLoad(
    async (signal) => {
      await sleep(TYPING_MS, signal);
      return send<ScriptCheck>("POST", "/check", { script }, { signal });
    },
    [script],
  );
  // Without the checker, running it says what is wrong.
  useEffect(() => {
    if (data || error) setProblems(data?.problems ?? []);
  }, [data, error]);
  return problems;
}

type Props = { draft: ScriptDraft; onChange: (draft: ScriptDraft) => void };

export function ScriptForm({ draft, onChange }: Props) {
  const problems = useCheck(draft.source);
  // The editor is large, and loaded only here. Until then a plain text area takes what is typed.
  const Editor = useLoad(() => import("./editor"), []).data?.Editor;
  const change = (members: Partial<ScriptDraft>) => onChange({ ...draft, ...members });
  return (
    <div class="stack">
      <div class="stack-tight">
        {Editor ? (
          <Editor
            label={s.playground.editor}
            value={draft.source}
            problems={problems}
            onChange={(source) => change({ source })}
          />
        ) : (
          <Field label={s.playground.editor} rows={16} value={draft.source} onInput={(source) => change({ source })} />
        )}
        <ul class="problems" aria-live="polite" aria-label={s.playground.problems}>
          {problems.map((problem) => (
            <li key={`${problem.line}-${problem.message}`} class="row">
              <Badge tone={problem.severity === "error" ? "bad" : "warn"}>{s.playground.line(problem.line)}</Badge>
              <Safe text={problem.message} />
            </li>
          ))}
        </ul>
      </div>
      <div class="card form-row">
        <Field
          label={s.playground.args}
          rows={2}
          value={draft.args}
          placeholder={s.examples.args}
          onInput={(args) => change({ args })}
        />
        <LimitFields limits={draft.limits} onChange={change} />
      </div>
    </div>
  );
}
