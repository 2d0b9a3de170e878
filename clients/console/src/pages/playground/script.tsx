/** A Luau script, its arguments, and what `check` says of it. */
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { send, sleep } from "../../lib/api";
import { safe } from "../../lib/format";
import type { CheckProblem, ExecutionRequest } from "../../lib/wire";
import { s } from "../../strings";
import { Badge, Field } from "../../ui";
import type { EditorProps } from "./editor";
import { LimitFields, limitsOf } from "./limits";

export type ScriptDraft = { source: string; args: string; timeout: string; memory: string };

export function scriptRequest(draft: ScriptDraft): ExecutionRequest {
  return { script: draft.source, ...argsOf(draft.args), ...limitsOf(draft) };
}

/** The arguments of a script: a JSON object, or nothing. */
function argsOf(text: string): { args?: Record<string, unknown> } {
  if (text.trim() === "") return {};
  const value: unknown = parsed(text);
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(s.playground.argsObject);
  return { args: value as Record<string, unknown> };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(s.playground.argsJson(safe((error as Error).message)));
  }
}

const TYPING_MS = 400;

/** What is wrong with a script, when its typing has paused. */
function useCheck(source: string): CheckProblem[] {
  const [problems, setProblems] = useState<CheckProblem[]>([]);
  useEffect(() => {
    const abort = new AbortController();
    const check = async () => {
      await sleep(TYPING_MS, abort.signal);
      if (abort.signal.aborted) return;
      const answer = await send<{ problems: CheckProblem[] }>(
        "POST",
        "/check",
        { script: source },
        { signal: abort.signal },
      );
      setProblems(answer.problems);
    };
    // Without the checker, running it says what is wrong.
    check().catch(() => !abort.signal.aborted && setProblems([]));
    return () => abort.abort();
  }, [source]);
  return problems;
}

/** The editor is large, and loaded only here. Until then a plain text area takes what is typed. */
function useEditor(): ComponentType<EditorProps> | undefined {
  const [editor, setEditor] = useState<{ component: ComponentType<EditorProps> }>();
  useEffect(() => {
    let gone = false;
    import("./editor").then(
      (module) => !gone && setEditor({ component: module.Editor }),
      () => {},
    );
    return () => {
      gone = true;
    };
  }, []);
  return editor?.component;
}

type Props = { draft: ScriptDraft; onChange: (draft: ScriptDraft) => void };

export function ScriptForm({ draft, onChange }: Props) {
  const problems = useCheck(draft.source);
  const Editor = useEditor();
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
              <bdi>{safe(problem.message)}</bdi>
            </li>
          ))}
        </ul>
      </div>
      <div class="card form-row">
        <Field
          label={s.playground.args}
          rows={2}
          value={draft.args}
          placeholder={'{"name": "value"}'}
          onInput={(args) => change({ args })}
        />
        <LimitFields draft={draft} onChange={change} />
      </div>
    </div>
  );
}
