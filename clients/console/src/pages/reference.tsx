/** The reference of the HTTP API, from the document that the service gives of itself. All of it is text. */
import { type ComponentChildren, Fragment } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { PageProps } from "../app";
import { BEARER, curl, json } from "../lib/curl";
import { useLoad } from "../lib/load";
import { href } from "../lib/route";
import { s } from "../strings";
import { Badge, Copy, Field, Loaded, Page, Section, type Tone } from "../ui";
import { useField } from "../ui/form";
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

const TONES: Record<string, Tone> = { GET: "info", POST: "ok", PUT: "warn", PATCH: "warn", DELETE: "bad" };
const words = s.reference;

type Route = { method: string; path: string; operation: Operation; text: string };

export default function Reference({ route }: PageProps) {
  const download = <a href="/v1/openapi.json">openapi.json</a>;
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
  const entry = (route: Route) => {
    const { method, path, operation } = route;
    const summary = (
      <>
        <Badge tone={TONES[method]}>{method}</Badge> <code>{path}</code> <span class="muted">{operation.summary}</span>
      </>
    );
    return (
      <Lazy key={operation.operationId} isChosen={operation.operationId === chosen} summary={summary}>
        {() => <Details route={route} />}
      </Lazy>
    );
  };
  return (
    <div class="stack reference">
      <Prose text={document.info.description} />
      <div class="narrow">
        <Field label={words.filter} type="search" {...filter} placeholder={words.filterExample} />
      </div>
      <p role="status">{words.found(found.length, routes.length)}</p>
      {document.tags.map(({ name, description }) => {
        const members = found.filter(({ operation }) => operation.tags.includes(name));
        if (members.length === 0) return null;
        return (
          <Section key={name} title={name}>
            <Prose text={description} />
            <div>{members.map(entry)}</div>
          </Section>
        );
      })}
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

function Details({ route }: { route: Route }) {
  const { operationId, description, parameters = [], requestBody, responses, security = [] } = route.operation;
  const scopes = security.flatMap((it) => Object.values(it).flat()).join(" ");
  const answers = Object.entries(responses).map(([status, answer]) => ({ status, ...resolved(answer, "responses") }));
  const curl = curlOf(route);
  return (
    <div class="route">
      <Prose text={description} />
      <p>
        {words.scope}: <code>{scopes || words.noScope}</code>
      </p>
      <pre class="code wrap">{curl}</pre>
      <div class="row">
        <Copy text={curl} />
        <a href={href(["reference", operationId])}>{words.link}</a>
      </div>
      {parameters.length > 0 && <h3>{words.parameters}</h3>}
      <List members={parameters.map((it) => ({ ...it, note: words.in[it.in] }))} />
      {Object.entries(requestBody?.content ?? {}).map(([type, { schema = {} }]) => (
        <Fragment key={type}>
          <h3>{words.request(type)}</h3>
          <Members schema={schema} />
        </Fragment>
      ))}
      <h3>{words.answers}</h3>
      {answers
        .filter(({ status }) => status < "400")
        .map(({ status, description: what, content = {} }) => (
          <div key={status}>
            <Badge tone="ok">{status}</Badge> <Prose text={what} isInline />
            <Nested schemas={Object.values(content).flatMap(({ schema = {} }) => parts(schema))} />
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
  const body = requestBody?.content["application/json"];
  const options: string[] = [];
  if (method !== "GET" && !(method === "POST" && body)) options.push(`-X ${method}`);
  if (security.length > 0) options.push(BEARER);
  if (body) options.push(...json(body.example ?? {}));
  else if (requestBody) options.push("-H 'Content-Type: application/octet-stream'", "--data-binary @FILE");
  const place = path.replace(/\{(\w+)\}/g, (_, name: string) => name.toUpperCase());
  return curl(place, options);
}

type Member = { name: string; schema: Schema; required?: boolean; description?: string; note?: string };

function List({ members }: { members: Member[] }) {
  return (
    <dl class="members">
      {members.map(({ name, schema, required, description, note }) => (
        <Fragment key={name}>
          <dt>
            <code>{name}</code> <span class="muted">{[typeOf(schema), note].filter(Boolean).join(", ")}</span>
            {required && <Badge>{words.required}</Badge>}
            {(schema.default ?? undefined) !== undefined && (
              <Badge>{words.default(JSON.stringify(schema.default))}</Badge>
            )}
          </dt>
          <dd>
            <Prose text={description} isInline />
            <Nested schemas={parts(schema)} />
          </dd>
        </Fragment>
      ))}
    </dl>
  );
}

/** The members of an object, or the forms that something may have. What they refer to is looked up when it is opened. */
function Members({ schema }: { schema: Schema }) {
  const { description, properties, required, ...rest } = resolved(schema, "schemas");
  const members = Object.entries(properties ?? {}).map(([name, member]) => {
    return { name, schema: member, required: required?.includes(name), description: member.description };
  });
  return (
    <>
      <Prose text={description} />
      {properties ? <List members={members} /> : <code>{typeOf(rest)}</code>}
      {!properties && <Nested schemas={parts(rest)} />}
    </>
  );
}

function Nested({ schemas }: { schemas: Schema[] }) {
  const entries = schemas.map((schema, index) => (
    <Lazy key={index} summary={<code>{labelOf(schema)}</code>}>
      {() => <Members schema={schema} />}
    </Lazy>
  ));
  return <div>{entries}</div>;
}

/** Of a form of several its word: the member with one possible value. */
function labelOf({ $ref, properties = {} }: Schema): string {
  if ($ref) return nameOf($ref);
  const word = Object.entries(properties).find(([, member]) => member.const !== undefined);
  return word ? `${word[0]}: ${JSON.stringify(word[1].const)}` : Object.keys(properties).join(", ");
}

type LazyProps = { summary: ComponentChildren; isChosen?: boolean; children: () => ComponentChildren };

/** What is closed is not made: the document is large, and schemas refer to each other. */
function Lazy({ summary, isChosen = false, children }: LazyProps) {
  const place = useRef<HTMLDetailsElement>(null);
  const [isOpen, setOpen] = useState(isChosen);
  useEffect(() => {
    if (isChosen) place.current?.scrollIntoView();
  }, [isChosen]);
  return (
    <details ref={place} open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
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
