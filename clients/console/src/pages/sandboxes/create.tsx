/** A new sandbox, from the members of its spec. */
import { useState } from "preact/hooks";
import { get, send } from "../../lib/api";
import { BEARER, curl, json } from "../../lib/curl";
import { limitName } from "../../lib/format";
import { useLoad } from "../../lib/load";
import { go, href } from "../../lib/route";
import { limitsOf, listed, milliseconds, pairs, type TypedLimits, typedLimits } from "../../lib/typed";
import { s } from "../../strings";
import { Copy, Field, Loaded, Page, Section } from "../../ui";
import { Choice, Form } from "../../ui/form";
import { ImageField } from "../images";
import { loadDocument } from "../openapi";
import { type SandboxRequest, type SandboxView, sandboxPath } from "./calls";

const words = s.newSandbox;
const TEXTS = { name: "", image: "", ports: "", network: "", ttl: "", idleTime: "", env: "", metadata: "" };
const EMPTY = {
  ...TEXTS,
  processes: "kept" as keyof typeof words.processesOf,
  idle: "stop" as keyof typeof words.idles,
  files: "io" as keyof typeof s.sandboxes.scopes,
  limits: {} as TypedLimits,
  /** What the form has no input for, from the sandbox that it is like. */
  others: {} as Pick<SandboxRequest, "metadata" | "spec">,
};
type Draft = typeof EMPTY;

/** The texts of a record, a line each, and what is no line. */
function typedPairs<T>(record: Record<string, T> = {}): [string, Record<string, T>] {
  const isLine = ([, value]: [string, T]) => typeof value === "string" && !value.includes("\n");
  const lines = Object.entries(record).filter(isLine);
  const others = Object.entries(record).filter((entry) => !isLine(entry));
  return [lines.map((entry) => entry.join("=")).join("\n"), Object.fromEntries(others)];
}

/** The form for a sandbox like this one, under another name. */
function draftOf(view: SandboxView): Draft {
  const { image, ports, network, processes, files, env, limits, ...spec } = view.spec;
  const [envText, otherEnv] = typedPairs(env);
  const [metadataText, metadata] = typedPairs(view.metadata);
  return {
    ...EMPTY,
    image: image ?? "",
    ports: typeof ports === "string" ? ports : (ports ?? []).join(", "),
    network: (network?.allow ?? []).join("\n"),
    env: envText,
    metadata: metadataText,
    processes: processes ?? "per_command",
    idle: view.idle,
    files: files ?? "io",
    limits: typedLimits(limits ?? {}),
    others: { metadata, spec: { ...spec, env: otherEnv } },
  };
}

/** With the id of a sandbox the form begins with what that has. */
export function Create({ like }: { like: string | null }) {
  const loaded = useLoad(
    async (signal) => (like ? draftOf(await get<SandboxView>(sandboxPath(like), {}, signal)) : EMPTY),
    [like],
  );
  return (
    <Page title={words.title}>
      <Loaded of={loaded}>{(draft) => <Creation key={like} draft={draft} />}</Loaded>
    </Page>
  );
}

function Creation({ draft }: { draft: Draft }) {
  const [form, setForm] = useState(draft);
  const change = (members: Partial<Draft>) => setForm((before) => ({ ...before, ...members }));
  const field = (name: Exclude<keyof typeof TEXTS, "image">, hint: string) => {
    return { label: words[name], hint, value: form[name], onInput: (value: string) => change({ [name]: value }) };
  };
  const submit = async () => {
    const { id } = await send<SandboxView>("POST", "/sandboxes", requestOf(form));
    go(href(["sandboxes", id]));
  };
  return (
    <div class="stack narrow">
      <Form action={words.submit} onSubmit={submit} onCancel={() => go(href(["sandboxes"]))}>
        <Section title={words.basics}>
          <Field {...field("name", words.nameHint)} />
          <ImageField value={form.image} onInput={(image) => change({ image })} />
          <Choice
            label={words.processes}
            value={form.processes}
            of={words.processesOf}
            onChange={(processes) => change({ processes })}
          />
          <Field {...field("ports", words.portsHint)} />
          <Field {...field("network", words.networkHint)} rows={2} />
          <Field {...field("ttl", words.time)} />
        </Section>
        <details>
          <summary>{words.more}</summary>
          <div class="section">
            <Choice label={words.idle} value={form.idle} of={words.idles} onChange={(idle) => change({ idle })} />
            <Field {...field("idleTime", words.time)} />
            <Choice
              label={words.files}
              value={form.files}
              of={s.sandboxes.scopes}
              onChange={(files) => change({ files })}
            />
            <Field {...field("env", words.envHint)} rows={3} />
            <Field {...field("metadata", words.metadataHint)} rows={3} />
          </div>
        </details>
        <Limits limits={form.limits} onChange={(limits) => change({ limits })} />
      </Form>
      <Equivalent form={form} />
    </div>
  );
}

/** The limits that the service knows, as it describes them. */
function Limits({ limits, onChange }: { limits: Draft["limits"]; onChange: (limits: Draft["limits"]) => void }) {
  return (
    <details>
      <summary>{words.limits}</summary>
      <div class="section">
        <p class="hint">{words.limitsText}</p>
        <Loaded of={useLoad(loadDocument, [])}>
          {({ components }) => (
            <div class="fields">
              {Object.entries(components.schemas.LimitsRequest?.properties ?? {}).map(([name, schema]) => (
                <Field
                  key={name}
                  label={limitName(name)}
                  hint={schema.description?.replace(/,? in bytes|`/g, "").replaceAll("\n", " ")}
                  value={limits[name] ?? ""}
                  onInput={(value) => onChange({ ...limits, [name]: value })}
                />
              ))}
            </div>
          )}
        </Loaded>
      </div>
    </details>
  );
}

function Equivalent({ form }: { form: Draft }) {
  let text: string;
  try {
    text = curl("/v1/sandboxes", [BEARER, ...json(requestOf(form))]);
  } catch (error) {
    text = (error as Error).message;
  }
  return (
    <details>
      <summary>{words.request}</summary>
      <pre class="code wrap">{text}</pre>
      <Copy text={text} />
    </details>
  );
}

/** What is sent: members that are left empty are left out, so that the service's defaults count. */
function requestOf(form: Draft): SandboxRequest {
  const some = <T extends object>(value: T) => (Object.keys(value).length > 0 ? value : undefined);
  const allow = listed(form.network);
  const { spec, metadata } = form.others;
  return {
    name: form.name.trim() || undefined,
    spec: {
      ...spec,
      image: form.image.trim() || undefined,
      processes: form.processes === "kept" ? "kept" : undefined,
      ports: portsOf(form.ports),
      network: allow.length > 0 ? { allow } : undefined,
      files: form.files === "all" ? "all" : undefined,
      env: some({ ...spec?.env, ...pairs(form.env) }),
      ...limitsOf(form.limits),
    },
    ttl_ms: milliseconds(form.ttl),
    idle: form.idle === "freeze" ? "freeze" : undefined,
    idle_ms: milliseconds(form.idleTime),
    metadata: some({ ...metadata, ...pairs(form.metadata) }),
  };
}

function portsOf(text: string): number[] | "any" | undefined {
  const entries = listed(text);
  if (entries.length === 0) return undefined;
  if (entries.length === 1 && entries[0] === "any") return "any";
  return entries.map((word) => {
    const port = Number(word);
    if (!Number.isInteger(port) || port < 1 || port > 65_535) throw new Error(words.badPort(word));
    return port;
  });
}
