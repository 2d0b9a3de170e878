/** A command: the image that it runs in, a line for its shell, and its inputs. */
import { useRef, useState } from "preact/hooks";
import { bytes, safe } from "../../lib/format";
import type { CommandRequest, Content, ExecutionRequest } from "../../lib/wire";
import { s } from "../../strings";
import { Button, Field } from "../../ui";
import { LimitFields, limitsOf } from "./limits";

export type CommandDraft = {
  image: string;
  shell: string;
  stdin: string;
  env: string;
  allow: string;
  inputs: File[];
  timeout: string;
  memory: string;
};

const lines = (text: string) => text.split("\n").filter((line) => line.trim() !== "");

/** The request. Its files are sent in it, which holds up to some MiB; the service says if it is too much. */
export async function commandRequest(draft: CommandDraft): Promise<ExecutionRequest> {
  const command: CommandRequest = { shell: draft.shell };
  if (draft.stdin !== "") command.stdin = draft.stdin;
  if (draft.env.trim() !== "") command.env = Object.fromEntries(lines(draft.env).map(variable));
  const request: ExecutionRequest = { command, ...limitsOf(draft) };
  if (draft.image.trim() !== "") request.image = draft.image.trim();
  if (draft.allow.trim() !== "") request.network = { allow: lines(draft.allow).map((rule) => rule.trim()) };
  if (draft.inputs.length > 0) {
    const contents = draft.inputs.map(async (file): Promise<[string, Content]> => [file.name, await content(file)]);
    request.inputs = Object.fromEntries(await Promise.all(contents));
  }
  return request;
}

function variable(line: string): [string, string] {
  const at = line.indexOf("=");
  if (at < 1) throw new Error(s.playground.envLine(safe(line)));
  return [line.slice(0, at).trim(), line.slice(at + 1)];
}

/** A file as text where it is, and otherwise as base64. */
async function content(file: File): Promise<Content> {
  const data = new Uint8Array(await file.arrayBuffer());
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
  } catch {
    let text = "";
    for (let at = 0; at < data.length; at += 0x8000) text += String.fromCharCode(...data.subarray(at, at + 0x8000));
    return { b64: btoa(text) };
  }
}

type Props = { draft: CommandDraft; onChange: (draft: CommandDraft) => void };

export function CommandForm({ draft, onChange }: Props) {
  const change = (members: Partial<CommandDraft>) => onChange({ ...draft, ...members });
  return (
    <div class="stack">
      <div class="card form">
        <Field
          label={s.playground.image}
          value={draft.image}
          placeholder="python:3.13-slim"
          hint={s.playground.imageHint}
          onInput={(image) => change({ image })}
        />
        <Field
          label={s.playground.shell}
          rows={5}
          value={draft.shell}
          placeholder="echo hello; ls /in"
          onInput={(shell) => change({ shell })}
        />
        <Inputs files={draft.inputs} onChange={(inputs) => change({ inputs })} />
      </div>
      <details class="card">
        <summary>{s.playground.more}</summary>
        <div class="form-row">
          <Field label={s.playground.stdin} rows={2} value={draft.stdin} onInput={(stdin) => change({ stdin })} />
          <Field
            label={s.playground.env}
            rows={2}
            value={draft.env}
            placeholder="NAME=value"
            onInput={(env) => change({ env })}
          />
          <Field
            label={s.playground.allow}
            rows={2}
            value={draft.allow}
            placeholder="pypi.org:443"
            onInput={(allow) => change({ allow })}
          />
          <LimitFields draft={draft} onChange={change} />
        </div>
      </details>
    </div>
  );
}

/** The files at `/in`: chosen or dropped. */
function Inputs({ files, onChange }: { files: File[]; onChange: (files: File[]) => void }) {
  const chooser = useRef<HTMLInputElement>(null);
  const [over, setOver] = useState(false);
  const add = (more: FileList | null | undefined) => {
    const added = [...(more ?? [])];
    const names = new Set(added.map((file) => file.name));
    if (added.length > 0) onChange([...files.filter((file) => !names.has(file.name)), ...added]);
  };
  return (
    <fieldset
      class={`drop ${over ? "over" : ""}`}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        add(event.dataTransfer?.files);
      }}
    >
      <legend>{s.playground.inputs}</legend>
      <input
        ref={chooser}
        type="file"
        multiple
        hidden
        aria-label={s.playground.inputs}
        onChange={(event) => {
          add(event.currentTarget.files);
          event.currentTarget.value = "";
        }}
      />
      <ul class="stack-tight">
        {files.map((file) => (
          <li key={file.name} class="row">
            <bdi class="mono">/in/{safe(file.name)}</bdi>
            <span class="muted small">{bytes(file.size)}</span>
            <Button
              kind="quiet"
              aria-label={s.playground.removeOf(safe(file.name))}
              onClick={() => onChange(files.filter((each) => each !== file))}
            >
              {s.playground.remove}
            </Button>
          </li>
        ))}
      </ul>
      <div class="row">
        <Button onClick={() => chooser.current?.click()}>{s.playground.choose}</Button>
        <span class="hint">{s.playground.inputsHint}</span>
      </div>
    </fieldset>
  );
}
