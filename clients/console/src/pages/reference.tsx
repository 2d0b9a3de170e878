/** The reference of the HTTP API, from the document that the service gives of itself. All of it is text. */
import { type ComponentChildren, Fragment } from "preact";
import { useMemo, useState } from "preact/hooks";
import { shell } from "../lib/format";
import { useLoad } from "../lib/load";
import { href, useRoute } from "../lib/route";
import { s } from "../strings";
import { Badge, Copy, Empty, ErrorBox, Field, Page, Spinner, type Tone } from "../ui";
import {
  type ApiDocument,
  loadDocument,
  nameOf,
  type Operation,
  type Parameter,
  parts,
  resolved,
  type Schema,
  typeOf,
} from "./openapi";

const TONES: Record<string, Tone> = { GET: "info", POST: "ok", PUT: "warn", PATCH: "warn", DELETE: "bad" };

type Route = { method: string; path: string; operation: Operation; words: string };

export default function Reference() {
  const { data, error, reload } = useLoad(loadDocument, []);
  return (
    <Page
      title={s.reference.title}
      actions={
        <a class="button" href="/v1/openapi.json" download="openapi.json">
          {s.reference.download}
        </a>
      }
    >
      {error && <ErrorBox error={error} onRetry={reload} />}
      {!data && !error && <Spinner />}
      {data && <Routes document={data} />}
    </Page>
  );
}

function Routes({ document }: { document: ApiDocument }) {
  const [filter, setFilter] = useState("");
  const chosen = useRoute().path[1];
  const routes = useMemo(() => routesOf(document), [document]);
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = routes.filter((route) => words.every((word) => route.words.includes(word)));
  return (
    <div class="stack reference">
      <Prose text={document.info.description ?? ""} />
      <div class="narrow">
        <Field
          label={s.reference.filter}
          type="search"
          value={filter}
          placeholder={s.reference.filterExample}
          onInput={setFilter}
        />
      </div>
      <p role="status">{s.reference.found(found.length, routes.length)}</p>
      {found.length === 0 && <Empty title={s.reference.none} />}
      {document.tags.map((tag) => {
        const tagged = found.filter((route) => route.operation.tags.includes(tag.name));
        return (
          tagged.length > 0 && (
            <section key={tag.name} class="section" aria-labelledby={`tag-${tag.name}`}>
              <h2 id={`tag-${tag.name}`}>{tag.name}</h2>
              <Prose text={tag.description ?? ""} />
              {tagged.map((route) => (
                <Lazy
                  key={route.operation.operationId}
                  open={route.operation.operationId === chosen}
                  summary={
                    <>
                      <Badge tone={TONES[route.method]}>{route.method}</Badge> <code>{route.path}</code>{" "}
                      <span class="muted">{route.operation.summary}</span>
                    </>
                  }
                >
                  {() => <Details route={route} document={document} />}
                </Lazy>
              ))}
            </section>
          )
        );
      })}
    </div>
  );
}

function Details({ route, document }: { route: Route; document: ApiDocument }) {
  const { operation } = route;
  const scopes = (operation.security ?? []).flatMap((it) => Object.values(it).flat());
  const parameters = operation.parameters ?? [];
  const answers = Object.entries(operation.responses).map(
    ([status, response]) =>
      [status, (response.$ref && document.components.responses[nameOf(response.$ref)]) || response] as const,
  );
  return (
    <div class="route">
      <Prose text={operation.description ?? ""} />
      <p>
        {s.reference.scope}: {scopes.length > 0 ? <Codes values={scopes} /> : s.reference.noScope}
      </p>
      <h3>curl</h3>
      <Curl route={route} />
      {parameters.length > 0 && <Parameters parameters={parameters} />}
      {Object.entries(operation.requestBody?.content ?? {}).map(([type, media]) => (
        <section key={type}>
          <h3>
            {s.reference.request} <code>{type}</code>
          </h3>
          {media.schema && <Members schema={media.schema} document={document} />}
          {media.example !== undefined && <pre class="code">{JSON.stringify(media.example, null, 2)}</pre>}
        </section>
      ))}
      <h3>{s.reference.answers}</h3>
      {answers
        .filter(([status]) => status < "400")
        .map(([status, response]) => (
          <div key={status}>
            <Badge tone="ok">{status}</Badge> <Prose text={response.description ?? ""} inline />
            {Object.values(response.content ?? {})
              .flatMap(({ schema }) => (schema ? parts(schema) : []))
              .map((part, index) => (
                <Nested key={index} schema={part} document={document} />
              ))}
          </div>
        ))}
      <Lazy summary={s.reference.errors}>
        {() => (
          <dl class="members">
            {answers
              .filter(([status]) => status >= "400")
              .map(([status, response]) => (
                <Fragment key={status}>
                  <dt>
                    <Badge tone="bad">{status}</Badge>
                  </dt>
                  <dd>
                    <Prose text={response.description ?? ""} inline />
                  </dd>
                </Fragment>
              ))}
          </dl>
        )}
      </Lazy>
      <p>
        <a href={href(["reference", operation.operationId])}>{s.reference.link}</a>
      </p>
    </div>
  );
}

function Parameters({ parameters }: { parameters: Parameter[] }) {
  return (
    <section>
      <h3>{s.reference.parameters}</h3>
      <dl class="members">
        {parameters.map((it) => (
          <Member key={`${it.in} ${it.name}`} name={it.name} schema={it.schema} required={it.required ?? false}>
            <span class="muted">{s.reference.in[it.in]}</span> <Prose text={it.description ?? ""} inline />
          </Member>
        ))}
      </dl>
    </section>
  );
}

type MemberProps = { name: string; schema: Schema; required: boolean; children: ComponentChildren };

function Member({ name, schema, required, children }: MemberProps) {
  return (
    <>
      <dt>
        <code>{name}</code> <span class="muted">{typeOf(schema)}</span>{" "}
        {required && <Badge>{s.reference.required}</Badge>}
      </dt>
      <dd>
        {children}
        {schema.default !== undefined && schema.default !== null && (
          <>
            {" "}
            {s.reference.default} <code>{JSON.stringify(schema.default)}</code>
          </>
        )}
      </dd>
    </>
  );
}

/** The members of an object, or the forms that something may have. What they refer to is looked up when it is opened. */
function Members({ schema: given, document }: { schema: Schema; document: ApiDocument }) {
  const schema = resolved(given, document);
  const forms = schema.oneOf ?? schema.anyOf;
  return (
    <>
      <Prose text={schema.description ?? ""} />
      {schema.properties && (
        <dl class="members">
          {Object.entries(schema.properties).map(([name, member]) => (
            <Member key={name} name={name} schema={member} required={schema.required?.includes(name) ?? false}>
              <Prose text={member.description ?? ""} inline />
              {parts(member).map((part, index) => (
                <Nested key={index} schema={part} document={document} />
              ))}
            </Member>
          ))}
        </dl>
      )}
      {!schema.properties && forms && (
        <ul>
          {forms.map((form, index) => (
            <li key={index}>
              {parts(form).length > 0 ? <Nested schema={form} document={document} /> : <code>{typeOf(form)}</code>}
            </li>
          ))}
        </ul>
      )}
      {!schema.properties && !forms && <code>{typeOf(schema)}</code>}
    </>
  );
}

function Nested({ schema, document }: { schema: Schema; document: ApiDocument }) {
  return <Lazy summary={<code>{labelOf(schema)}</code>}>{() => <Members schema={schema} document={document} />}</Lazy>;
}

/** Of a form of several its word: the member with one possible value. */
function labelOf(schema: Schema): string {
  if (schema.$ref) return nameOf(schema.$ref);
  const word = Object.entries(schema.properties ?? {}).find(([, member]) => member.const !== undefined);
  return word ? `${word[0]}: ${JSON.stringify(word[1].const)}` : Object.keys(schema.properties ?? {}).join(", ");
}

type LazyProps = { summary: ComponentChildren; open?: boolean; children: () => ComponentChildren };

/** What is closed is not made: the document is large, and schemas refer to each other. */
function Lazy({ summary, open = false, children }: LazyProps) {
  const [isOpen, setOpen] = useState(open);
  return (
    <details open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{summary}</summary>
      {isOpen && children()}
    </details>
  );
}

function Curl({ route }: { route: Route }) {
  const text = curlOf(route, location.origin);
  return (
    <>
      <pre class="code wrap">{text}</pre>
      <div class="row">
        <Copy text={text} />
      </div>
    </>
  );
}

/** A request as it is typed. Words in capitals are to be replaced. */
function curlOf({ method, path, operation }: Pick<Route, "method" | "path" | "operation">, origin: string): string {
  const place = path.replace(/\{(\w+)\}/g, (_, name: string) => name.toUpperCase());
  const needed = (operation.parameters ?? []).filter((it) => it.in === "query" && it.required);
  const query = needed.map((it) => `${it.name}=${it.name.toUpperCase()}`).join("&");
  const content = operation.requestBody?.content ?? {};
  const json = content["application/json"];
  const words = ["curl -sS"];
  if (method !== "GET" && !(method === "POST" && json)) words.push(`-X ${method}`);
  if ((operation.security ?? []).length > 0) words.push(`-H "Authorization: Bearer $SANDBOXCTL_TOKEN"`);
  if (json) words.push("-H 'Content-Type: application/json'", `-d ${shell(JSON.stringify(json.example ?? {}))}`);
  else if (content["application/octet-stream"]) {
    words.push("-H 'Content-Type: application/octet-stream'", "--data-binary @FILE");
  }
  words.push(shell(`${origin}${place}${query ? `?${query}` : ""}`));
  return words.join(" \\\n  ");
}

function routesOf(document: ApiDocument): Route[] {
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => {
      const { summary = "", description = "", operationId } = operation;
      const words = [method, path, summary, description, operationId].join(" ").toLowerCase();
      return { method: method.toUpperCase(), path, operation, words };
    }),
  );
}

function Codes({ values }: { values: string[] }) {
  return (
    <>
      {values.map((value) => (
        <code key={value}>{value}</code>
      ))}
    </>
  );
}

/** A description: paragraphs, lists, and code between backticks. */
function Prose({ text, inline = false }: { text: string; inline?: boolean }) {
  if (text === "") return null;
  if (inline) return <span>{withCode(text.replaceAll("\n", " "))}</span>;
  return (
    <>
      {text.split(/\n{2,}/).map((paragraph, index) =>
        paragraph.startsWith("- ") ? (
          <ul key={index} class="bullets">
            {paragraph
              .slice(2)
              .split(/\n- /)
              .map((item, at) => (
                <li key={at}>{withCode(item.replaceAll("\n", " "))}</li>
              ))}
          </ul>
        ) : (
          <p key={index}>{withCode(paragraph.replaceAll("\n", " "))}</p>
        ),
      )}
    </>
  );
}

function withCode(text: string): ComponentChildren {
  return text.split("`").map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part));
}
