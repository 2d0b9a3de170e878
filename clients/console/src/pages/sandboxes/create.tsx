/** A new sandbox, from the members of its spec. */
import { useState } from "preact/hooks";
import { send } from "../../lib/api";
import { shell } from "../../lib/format";
import { useLoad } from "../../lib/load";
import { go, href } from "../../lib/route";
import { s } from "../../strings";
import { Button, Copy, ErrorBox, Field, Page, Section, Select, Spinner } from "../../ui";
import { loadDocument } from "../openapi";
import { milliseconds, pairs } from "./parts";
import type { SandboxRequest, SandboxView } from "./wire";

type Form = {
  name: string;
  image: string;
  processes: "kept" | "per_command";
  ports: string;
  network: string;
  ttl: string;
  idle: "stop" | "freeze";
  idleTime: string;
  files: "io" | "all";
  env: string;
  metadata: string;
  /** As they are typed, by their names in the spec. */
  limits: Record<string, string>;
};

const EMPTY: Form = {
  name: "",
  image: "",
  processes: "kept",
  ports: "",
  network: "",
  ttl: "",
  idle: "stop",
  idleTime: "",
  files: "io",
  env: "",
  metadata: "",
  limits: {},
};

type Preset = keyof typeof s.newSandbox.presets;

const PRESETS: Record<Preset, Partial<Form>> = {
  terminal: { processes: "kept", ports: "" },
  server: { processes: "kept", ports: "8000" },
  commands: { processes: "per_command", ports: "" },
  scripts: { processes: "per_command", ports: "", image: "", network: "" },
};

export function Create() {
  const [form, setForm] = useState<Form>(EMPTY);
  const [preset, setPreset] = useState<Preset>("terminal");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const field = (name: "name" | "image" | "ports" | "network" | "ttl" | "idleTime" | "env" | "metadata") => ({
    label: s.newSandbox[name],
    value: form[name],
    onInput: (value: string) => setForm((before) => ({ ...before, [name]: value })),
  });
  const submit = async () => {
    setError(undefined);
    setBusy(true);
    try {
      const { id } = await send<SandboxView>("POST", "/sandboxes", requestOf(form));
      go(href(["sandboxes", id]));
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  const words = s.newSandbox;
  return (
    <Page title={words.title}>
      <form
        class="form narrow"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <Section title={words.basics}>
          <Select
            label={words.preset}
            value={preset}
            options={optionsOf(words.presets)}
            onChange={(value) => {
              setPreset(value);
              setForm((before) => ({ ...before, ...PRESETS[value] }));
            }}
          />
          <Field {...field("name")} hint={words.nameHint} />
          {preset !== "scripts" && <Field {...field("image")} hint={words.imageHint} />}
          <Select
            label={words.processes}
            value={form.processes}
            options={optionsOf(words.processesOf)}
            onChange={(processes) => setForm({ ...form, processes })}
          />
          <Field {...field("ports")} hint={words.portsHint} />
          <Field {...field("network")} hint={words.networkHint} rows={2} />
          <Field {...field("ttl")} hint={words.time} />
        </Section>
        <details>
          <summary>{words.more}</summary>
          <div class="section">
            <Select
              label={words.idle}
              value={form.idle}
              options={optionsOf(words.idles)}
              onChange={(idle) => setForm({ ...form, idle })}
            />
            <Field {...field("idleTime")} hint={words.time} />
            <Select
              label={words.files}
              value={form.files}
              options={optionsOf(s.sandboxes.scopes)}
              onChange={(files) => setForm({ ...form, files })}
            />
            <Field {...field("env")} hint={words.envHint} rows={3} />
            <Field {...field("metadata")} hint={words.metadataHint} rows={3} />
          </div>
        </details>
        <Limits limits={form.limits} onChange={(limits) => setForm({ ...form, limits })} />
        {error !== undefined && <ErrorBox error={error} />}
        <div class="row">
          <Button kind="primary" submit busy={busy}>
            {words.submit}
          </Button>
          <a href={href(["sandboxes"])}>{s.ui.cancel}</a>
        </div>
        <Equivalent form={form} />
      </form>
    </Page>
  );
}

/** The limits that the service knows, as it describes them. */
function Limits({ limits, onChange }: { limits: Form["limits"]; onChange: (limits: Form["limits"]) => void }) {
  const { data, error, reload } = useLoad(loadDocument, []);
  if (error) return <ErrorBox error={error} onRetry={reload} />;
  if (!data) return <Spinner />;
  const members = data.components.schemas.LimitsRequest?.properties ?? {};
  return (
    <details>
      <summary>{s.newSandbox.limits}</summary>
      <div class="section">
        <p class="hint">{s.newSandbox.limitsText}</p>
        <div class="fields">
          {Object.entries(members).map(([name, schema]) => (
            <Field
              key={name}
              label={name}
              hint={schema.description?.replaceAll("\n", " ").replaceAll("`", "")}
              value={limits[name] ?? ""}
              onInput={(value) => onChange({ ...limits, [name]: value })}
            />
          ))}
        </div>
      </div>
    </details>
  );
}

function Equivalent({ form }: { form: Form }) {
  let text: string;
  try {
    const body = shell(JSON.stringify(requestOf(form)));
    const head = `curl -sS -H "Authorization: Bearer $SANDBOXCTL_TOKEN" -H 'Content-Type: application/json'`;
    text = `${head} \\\n  -d ${body} ${location.origin}/v1/sandboxes`;
  } catch (error) {
    text = (error as Error).message;
  }
  return (
    <details>
      <summary>{s.newSandbox.request}</summary>
      <pre class="code wrap">{text}</pre>
      <div class="row">
        <Copy text={text} />
      </div>
    </details>
  );
}

/** What is sent: members that are left empty are left out, so that the service's defaults count. */
function requestOf(form: Form): SandboxRequest {
  const lines = (text: string) =>
    text
      .split(/[\n,]/)
      .map((line) => line.trim())
      .filter(Boolean);
  const allow = lines(form.network);
  const env = pairs(form.env);
  const metadata = pairs(form.metadata);
  const limits = limitsOf(form.limits);
  const ports = portsOf(form.ports);
  const ttl = milliseconds(form.ttl);
  const idle = milliseconds(form.idleTime);
  const some = (value: object) => Object.keys(value).length > 0;
  return {
    ...(form.name.trim() && { name: form.name.trim() }),
    spec: {
      ...(form.image.trim() && { image: form.image.trim() }),
      ...(form.processes === "kept" && { processes: form.processes }),
      ...(ports && { ports }),
      ...(allow.length > 0 && { network: { allow } }),
      ...(form.files === "all" && { files: form.files }),
      ...(some(env) && { env }),
      ...(some(limits) && { limits }),
    },
    ...(ttl !== undefined && { ttl_ms: ttl }),
    ...(form.idle === "freeze" && { idle: form.idle }),
    ...(idle !== undefined && { idle_ms: idle }),
    ...(some(metadata) && { metadata }),
  };
}

function portsOf(text: string): number[] | "any" | undefined {
  const words = text.split(/[\s,]+/).filter(Boolean);
  if (words.length === 0) return undefined;
  if (words.length === 1 && words[0] === "any") return "any";
  return words.map((word) => {
    const port = Number(word);
    if (!Number.isInteger(port) || port < 1 || port > 65_535) throw new Error(s.newSandbox.badPort(word));
    return port;
  });
}

function limitsOf(typed: Form["limits"]): Record<string, number> {
  const set = Object.entries(typed).filter(([, text]) => text.trim() !== "");
  return Object.fromEntries(
    set.map(([name, text]) => {
      const value = Number(text);
      if (!Number.isFinite(value)) throw new Error(s.newSandbox.badNumber(name));
      return [name, value];
    }),
  );
}

function optionsOf<T extends string>(labels: Record<T, string>): { value: T; label: string }[] {
  return Object.entries<string>(labels).map(([value, label]) => ({ value: value as T, label }));
}
