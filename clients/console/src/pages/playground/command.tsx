/** A command: the image that it runs in, a line for its shell, and its inputs. */
import { bytes, safe } from "../../lib/format";
import type { CommandRequest, Content, ExecutionRequest } from "../../lib/wire";
import { s } from "../../strings";
import { Button, Drop, Field } from "../../ui";
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
  const p = s.playground;
  const field = (name: "shell" | "stdin" | "env" | "allow", rows: number, placeholder?: string) => (
    <Field
      label={p[name]}
      rows={rows}
      value={draft[name]}
      placeholder={placeholder}
      onInput={(value) => change({ [name]: value })}
    />
  );
  return (
    <div class="stack">
      <div class="card form">
        <Field
          label={p.image}
          value={draft.image}
          placeholder="python:3.13-slim"
          hint={p.imageHint}
          onInput={(image) => change({ image })}
        />
        {field("shell", 5, "echo hello; ls /in")}
        <Inputs files={draft.inputs} onChange={(inputs) => change({ inputs })} />
      </div>
      <details class="card">
        <summary>{p.more}</summary>
        <div class="form-row">
          {field("stdin", 2)}
          {field("env", 2, "NAME=value")}
          {field("allow", 2, "pypi.org:443")}
          <LimitFields draft={draft} onChange={change} />
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
