/** A command: the image that it runs in, a line for its shell, and its inputs. */
import { contentOf } from "../../lib/content";
import { bytes, safe } from "../../lib/format";
import { limitsOf, listed, pairs } from "../../lib/typed";
import type { CommandRequest, ExecutionRequest } from "../../lib/wire";
import { s } from "../../strings";
import { Button, Drop, Field } from "../../ui";
import { ImageField } from "../images";
import type { CommandDraft } from "./drafts";
import { LimitFields } from "./limits";

/** The request. Its files are sent in it, which holds up to some MiB; the service says if it is too much. */
export async function commandRequest(draft: CommandDraft): Promise<ExecutionRequest> {
  const command: CommandRequest = { shell: draft.shell };
  if (draft.stdin !== "") command.stdin = draft.stdin;
  if (draft.env.trim() !== "") command.env = pairs(draft.env);
  const request: ExecutionRequest = { command, ...limitsOf(draft.limits) };
  if (draft.image.trim() !== "") request.image = draft.image.trim();
  if (draft.allow.trim() !== "") request.network = { allow: listed(draft.allow) };
  if (draft.inputs.length > 0) {
    const contents = draft.inputs.map(async (file) => [file.name, contentOf(new Uint8Array(await file.arrayBuffer()))]);
    request.inputs = Object.fromEntries(await Promise.all(contents));
  }
  return request;
}

type Props = { draft: CommandDraft; onChange: (draft: CommandDraft) => void };

export function CommandForm({ draft, onChange }: Props) {
  const change = (members: Partial<CommandDraft>) => onChange({ ...draft, ...members });
  const p = s.playground;
  const field = (name: "shell" | "stdin" | "env" | "allow", rows: number) => (
    <Field
      label={p[name]}
      rows={rows}
      value={draft[name]}
      placeholder={s.examples[name]}
      onInput={(value) => change({ [name]: value })}
    />
  );
  return (
    <div class="stack">
      <div class="card form">
        <ImageField value={draft.image} onInput={(image) => change({ image })} />
        {field("shell", 5)}
        <Inputs files={draft.inputs} onChange={(inputs) => change({ inputs })} />
      </div>
      <details class="card">
        <summary>{p.more}</summary>
        <div class="form-row">
          {field("stdin", 2)}
          {field("env", 2)}
          {field("allow", 2)}
          <LimitFields limits={draft.limits} onChange={change} />
        </div>
      </details>
    </div>
  );
}

/** The files at `/in`. A name is there once. */
function Inputs({ files, onChange }: { files: File[]; onChange: (files: File[]) => void }) {
  const without = (names: string[]) => files.filter((file) => !names.includes(file.name));
  const add = (more: File[]) => onChange([...without(more.map((file) => file.name)), ...more]);
  return (
    <Drop label={s.playground.inputs} action={s.playground.choose} onFiles={add}>
      <p class="muted">{s.playground.inputsHint}</p>
      {files.map((file) => (
        <div key={file.name} class="row">
          <bdi class="mono">/in/{safe(file.name)}</bdi>
          <span class="muted small">{bytes(file.size)}</span>
          <Button
            label={s.playground.remove(safe(file.name))}
            kind="quiet"
            onClick={() => onChange(without([file.name]))}
          />
        </div>
      ))}
    </Drop>
  );
}
