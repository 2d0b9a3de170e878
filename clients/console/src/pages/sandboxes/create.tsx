/** A new sandbox, from the members of its spec. */
import { useState } from "preact/hooks";
import { send } from "../../lib/api";
import { shell } from "../../lib/format";
import { useLoad } from "../../lib/load";
import { go, href } from "../../lib/route";
import { s } from "../../strings";
import { Copy, Field, Loaded, Page, Section } from "../../ui";
import { Choice, Form } from "../../ui/form";
import { loadDocument } from "../openapi";
import { milliseconds, pairs } from "./parts";
import type { SandboxRequest, SandboxView } from "./wire";

const words = s.newSandbox;
const TEXTS = { name: "", image: "", ports: "", network: "", ttl: "", idleTime: "", env: "", metadata: "" };
const EMPTY = {
  ...TEXTS,
  processes: "kept" as keyof typeof words.processesOf,
  idle: "stop" as keyof typeof words.idles,
  files: "io" as keyof typeof s.sandboxes.scopes,
  /** As they are typed, by their names in the spec. */
  limits: {} as Record<string, string>,
};
type Draft = typeof EMPTY;

export function Create() {
  const [form, setForm] = useState<Draft>(EMPTY);
  const change = (members: Partial<Draft>) => setForm((before) => ({ ...before, ...members }));
  const field = (name: keyof typeof TEXTS, hint: string) => {
    return { label: words[name], hint, value: form[name], onInput: (value: string) => change({ [name]: value }) };
  };
  const submit = async () => {
    const { id } = await send<SandboxView>("POST", "/sandboxes", requestOf(form));
    go(href(["sandboxes", id]));
  };
  return (
    <Page title={words.title}>
      <div class="stack narrow">
        <Form action={words.submit} onSubmit={submit} onCancel={() => go(href(["sandboxes"]))}>
          <Section title={words.basics}>
            <Field {...field("name", words.nameHint)} />
            <Field {...field("image", words.imageHint)} />
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
    </Page>
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
                  label={name}
                  hint={schema.description?.replaceAll("\n", " ").replaceAll("`", "")}
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
    const head = `curl -sS -H "Authorization: Bearer $SANDBOXCTL_TOKEN" -H 'Content-Type: application/json'`;
    text = `${head} \\\n  -d ${shell(JSON.stringify(requestOf(form)))} ${location.origin}/v1/sandboxes`;
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
  const allow = form.network.split(/[\s,]+/).filter(Boolean);
  return {
    name: form.name.trim() || undefined,
    spec: {
      image: form.image.trim() || undefined,
      processes: form.processes === "kept" ? "kept" : undefined,
      ports: portsOf(form.ports),
      network: allow.length > 0 ? { allow } : undefined,
      files: form.files === "all" ? "all" : undefined,
      env: some(pairs(form.env)),
      limits: some(limitsOf(form.limits)),
    },
    ttl_ms: milliseconds(form.ttl),
    idle: form.idle === "freeze" ? "freeze" : undefined,
    idle_ms: milliseconds(form.idleTime),
    metadata: some(pairs(form.metadata)),
  };
}

function portsOf(text: string): number[] | "any" | undefined {
  const listed = text.split(/[\s,]+/).filter(Boolean);
  if (listed.length === 0) return undefined;
  if (listed.length === 1 && listed[0] === "any") return "any";
  return listed.map((word) => {
    const port = Number(word);
    if (!Number.isInteger(port) || port < 1 || port > 65_535) throw new Error(words.badPort(word));
    return port;
  });
}

function limitsOf(typed: Draft["limits"]): Record<string, number> {
  const set = Object.entries(typed).filter(([, text]) => text.trim() !== "");
  const numbers = set.map(([name, text]) => {
    if (!Number.isFinite(Number(text))) throw new Error(words.badNumber(name));
    return [name, Number(text)];
  });
  return Object.fromEntries(numbers);
}
