/** The reference of the HTTP API, from the document that the service gives of itself. All of it is text. */
import { type ComponentChildren, Fragment } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { PageProps } from "../app";
import { shell } from "../lib/format";
import { useLoad } from "../lib/load";
import { href } from "../lib/route";
import { s } from "../strings";
import { Badge, Copy, Empty, Field, Loaded, Page, type Tone } from "../ui";
import {
  type ApiDocument,
  loadDocument,
  nameOf,
  type Operation,
  parts,
  resolved,
  type Schema,
  typeOf,
} from "./openapi";
import { useField } from "./sandboxes/parts";

const TONES: Record<string, Tone> = { GET: "info", POST: "ok", PUT: "warn", PATCH: "warn", DELETE: "bad" };
const words = s.reference;

type Route = { method: string; path: string; operation: Operation; text: string };

export default function Reference({ route }: PageProps) {
  const download = (
    <a class="button" href="/v1/openapi.json" download="openapi.json">
      {words.download}
    </a>
  );
  return (
    <Page title={words.title} actions={download}>
      <Loaded of={useLoad(loadDocument, [])}>
        {(document) => <Routes document={document} chosen={route.path[1]} />}
      </Loaded>
    </Page>
  );
}

function Routes({ document, chosen }: { document: ApiDocument; chosen: string | undefined }) {
  const filter = useField();
  const routes = useMemo(() => routesOf(document), [document]);
  const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = routes.filter(({ text }) => wanted.every((word) => text.includes(word)));
  const tagged = document.tags.map(({ name, description }) => {
    return { name, description, members: found.filter(({ operation }) => operation.tags.includes(name)) };
  });
  return (
    <div class="stack reference">
      <Prose text={document.info.description} />
      <div class="narrow">
        <Field label={words.filter} type="search" {...filter} placeholder={words.filterExample} />
      </div>
      <p role="status">{words.found(found.length, routes.length)}</p>
      {found.length === 0 && <Empty title={words.none} />}
      {tagged
        .filter(({ members }) => members.length > 0)
        .map(({ name, description, members }) => (
          <section key={name} class="section" aria-labelledby={`tag-${name}`}>
            <h2 id={`tag-${name}`}>{name}</h2>
            <Prose text={description} />
            {members.map((route) => (
              <RouteEntry
                key={route.operation.operationId}
                route={route}
                document={document}
                isChosen={route.operation.operationId === chosen}
              />
            ))}
          </section>
        ))}
    </div>
  );
}

function routesOf(document: ApiDocument): Route[] {
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => {
      const { summary, description, operationId } = operation;
      const text = [method, path, summary, description, operationId].join(" ").toLowerCase();
      return { method: method.toUpperCase(), path, operation, text };
    }),
  );
}

type EntryProps = { route: Route; document: ApiDocument; isChosen: boolean };

function RouteEntry({ route, document, isChosen }: EntryProps) {
  const { method, path, operation } = route;
  const summary = (
    <>
      <Badge tone={TONES[method]}>{method}</Badge> <code>{path}</code> <span class="muted">{operation.summary}</span>
    </>
  );
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (isChosen) place.current?.scrollIntoView();
  }, [isChosen]);
  return (
    <div ref={place}>
      <Lazy open={isChosen} summary={summary}>
        {() => <Details route={route} document={document} />}
      </Lazy>
    </div>
  );
}

function Details({ route, document }: { route: Route; document: ApiDocument }) {
  const { operationId, description, parameters = [], requestBody, responses, security = [] } = route.operation;
  const { components } = document;
  const scopes = security.flatMap((it) => Object.values(it).flat());
  const answers = Object.entries(responses).map(([status, answer]) => {
    return { status, ...resolved(answer, components.responses) };
  });
  const curl = curlOf(route);
  return (
    <div class="route">
      <Prose text={description} />
      <p>
        {words.scope}: {scopes.length > 0 ? <code>{scopes.join(" ")}</code> : words.noScope}
      </p>
      <h3>curl</h3>
      <pre class="code wrap">{curl}</pre>
      <div class="row">
        <Copy text={curl} />
        <a href={href(["reference", operationId])}>{words.link}</a>
      </div>
      {parameters.length > 0 && <h3>{words.parameters}</h3>}
      <dl class="members">
        {parameters.map((it) => (
          <Member key={`${it.in} ${it.name}`} name={it.name} schema={it.schema} isRequired={it.required}>
            <span class="muted">{words.in[it.in]}</span> <Prose text={it.description} isInline />
          </Member>
        ))}
      </dl>
      {Object.entries(requestBody?.content ?? {}).map(([type, { schema }]) => (
        <Fragment key={type}>
          <h3>
            {words.request} <code>{type}</code>
          </h3>
          {schema && <Members schema={schema} document={document} />}
        </Fragment>
      ))}
      <h3>{words.answers}</h3>
      {answers
        .filter(({ status }) => status < "400")
        .map(({ status, description: what, content = {} }) => (
          <div key={status}>
            <Badge tone="ok">{status}</Badge> <Prose text={what} isInline />
            {Object.values(content).map(({ schema = {} }, index) => (
              <Nested key={index} schemas={parts(schema)} document={document} />
            ))}
          </div>
        ))}
      <Lazy summary={words.errors}>
        {() =>
          answers
            .filter(({ status }) => status >= "400")
            .map(({ status, description: what }) => (
              <p key={status}>
                <Badge tone="bad">{status}</Badge> <Prose text={what} isInline />
              </p>
            ))
        }
      </Lazy>
    </div>
  );
}

/** A request as it is typed. Words in capitals are to be replaced. */
function curlOf({ method, path, operation }: Route): string {
  const { requestBody, security = [] } = operation;
  const json = requestBody?.content["application/json"];
  const lines = ["curl -sS"];
  if (method !== "GET" && !(method === "POST" && json)) lines.push(`-X ${method}`);
  if (security.length > 0) lines.push(`-H "Authorization: Bearer $SANDBOXCTL_TOKEN"`);
  if (json) lines.push("-H 'Content-Type: application/json'", `-d ${shell(JSON.stringify(json.example ?? {}))}`);
  else if (requestBody) lines.push("-H 'Content-Type: application/octet-stream'", "--data-binary @FILE");
  const place = path.replace(/\{(\w+)\}/g, (_, name: string) => name.toUpperCase());
  return [...lines, shell(`${location.origin}${place}`)].join(" \\\n  ");
}

type MemberProps = { name: string; schema: Schema; isRequired: boolean | undefined; children: ComponentChildren };

function Member({ name, schema, isRequired, children }: MemberProps) {
  const initial = schema.default ?? undefined;
  return (
    <>
      <dt>
        <code>{name}</code> <span class="muted">{typeOf(schema)}</span>
        {isRequired && <Badge>{words.required}</Badge>}
      </dt>
      <dd>
        {children} {initial !== undefined && <code>{words.default(JSON.stringify(initial))}</code>}
      </dd>
    </>
  );
}

/** The members of an object, or the forms that something may have. What they refer to is looked up when it is opened. */
function Members({ schema: given, document }: { schema: Schema; document: ApiDocument }) {
  const schema = resolved(given, document.components.schemas);
  const { properties, required, oneOf, anyOf } = schema;
  const forms = oneOf ?? anyOf ?? [];
  return (
    <>
      <Prose text={schema.description} />
      {properties ? (
        <dl class="members">
          {Object.entries(properties).map(([name, member]) => (
            <Member key={name} name={name} schema={member} isRequired={required?.includes(name)}>
              <Prose text={member.description} isInline />
              <Nested schemas={parts(member)} document={document} />
            </Member>
          ))}
        </dl>
      ) : (
        <p>
          <code>{typeOf({ ...schema, oneOf: undefined, anyOf: undefined })}</code>
        </p>
      )}
      {!properties && <Nested schemas={forms.flatMap(parts)} document={document} />}
    </>
  );
}

function Nested({ schemas, document }: { schemas: Schema[]; document: ApiDocument }) {
  return schemas.map((schema, index) => (
    <Lazy key={index} summary={<code>{labelOf(schema)}</code>}>
      {() => <Members schema={schema} document={document} />}
    </Lazy>
  ));
}

/** Of a form of several its word: the member with one possible value. */
function labelOf({ $ref, properties = {} }: Schema): string {
  if ($ref) return nameOf($ref);
  const word = Object.entries(properties).find(([, member]) => member.const !== undefined);
  return word ? `${word[0]}: ${JSON.stringify(word[1].const)}` : Object.keys(properties).join(", ");
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

/** A description: paragraphs, lists, and code between backticks. */
function Prose({ text = "", isInline = false }: { text?: string | undefined; isInline?: boolean }) {
  if (isInline) return <span>{withCode(text)}</span>;
  const paragraphs = text.split(/\n{2,}|\n(?=- )/).filter(Boolean);
  return paragraphs.map((paragraph, index) => <p key={index}>{withCode(paragraph.replace(/^- /, "• "))}</p>);
}

function withCode(text: string): ComponentChildren {
  return text.split("`").map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part));
}
