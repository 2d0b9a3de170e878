/** The sandboxes of the caller, a page at a time. */
import { get, type Query } from "../../lib/api";
import { cut } from "../../lib/format";
import { usePoll } from "../../lib/load";
import { go, href } from "../../lib/route";
import { pairs } from "../../lib/typed";
import { s } from "../../strings";
import { Button, type Column, Empty, Field, Loaded, Page, Safe, Table, Time } from "../../ui";
import { Choice, useField } from "../../ui/form";
import type { SandboxList, SandboxView } from "./calls";
import { StatusBadge } from "./parts";

const EVERY_MS = 5_000;
const PAGE = 50;
const MAX_METADATA = 120;

const words = s.sandboxes;
const COLUMNS: Column<SandboxView>[] = [
  { head: words.name, class: "name", cell: (view) => <Named view={view} /> },
  { head: words.status, class: "tight", cell: (view) => <StatusBadge view={view} /> },
  { head: words.image, class: "name", cell: ({ spec }) => <Safe text={spec.image ?? words.noImage} /> },
  { head: words.metadata, class: "name", cell: ({ metadata }) => <Safe text={metadataText(metadata)} /> },
  { head: words.processes, class: "number", cell: ({ processes }) => processes ?? s.ui.none },
  { head: words.created, class: "tight", cell: ({ created_at }) => <Time at={created_at} /> },
  { head: words.expires, class: "tight", cell: ({ expires_at }) => <Time at={expires_at} /> },
];

function Named({ view: { id, name } }: { view: SandboxView }) {
  return (
    <div>
      <a href={href(["sandboxes", id])}>
        <Safe text={name ?? id} />
      </a>
      {name !== null && <div class="muted small mono">{id}</div>}
    </div>
  );
}

function metadataText(metadata: SandboxView["metadata"]): string {
  const word = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value));
  const members = Object.entries(metadata).map(([key, value]) => `${key}=${word(value)}`);
  return cut(members.join(", "), MAX_METADATA);
}

type Filters = { name: string; status: string; metadata: string };

export function List({ query }: { query: URLSearchParams }) {
  const of = (name: string) => query.get(name) ?? "";
  const cursor = of("cursor");
  const filters: Filters = { name: of("name"), status: of("status"), metadata: of("metadata") };
  const isFiltered = Object.values(filters).some(Boolean);
  const loaded = usePoll(async (signal) => get<SandboxList>("/sandboxes", queryOf(filters, cursor), signal), EVERY_MS, [
    query.toString(),
  ]);
  const create = (
    <a class="button primary" href={href(["sandboxes", "new"])}>
      {words.create}
    </a>
  );
  return (
    <Page title={words.title} actions={create}>
      <FilterForm key={query.toString()} filters={filters} />
      <Loaded of={loaded}>
        {({ sandboxes, next_cursor }) => (
          <>
            {sandboxes.length > 0 ? (
              <Table caption={words.title} columns={COLUMNS} rows={sandboxes} keyOf={(view) => view.id} />
            ) : (
              <Empty title={isFiltered ? words.noneFound : words.none}>
                {isFiltered ? <a href={href(["sandboxes"])}>{words.reset}</a> : words.noneText}
              </Empty>
            )}
            <nav class="row" aria-label={words.pages} hidden={!cursor && !next_cursor}>
              {cursor && <a href={href(["sandboxes"], filters)}>{words.first}</a>}
              {next_cursor && <a href={href(["sandboxes"], { ...filters, cursor: next_cursor })}>{words.next}</a>}
            </nav>
          </>
        )}
      </Loaded>
    </Page>
  );
}

function queryOf({ name, status, metadata }: Filters, cursor: string): Query {
  const members = Object.entries(pairs(metadata, /[,\n]/)).map(([key, value]) => [`metadata.${key}`, value]);
  return { limit: PAGE, name, status, cursor, ...Object.fromEntries(members) };
}

function FilterForm({ filters }: { filters: Filters }) {
  const name = useField(filters.name);
  const metadata = useField(filters.metadata);
  const apply = (status: string) =>
    go(href(["sandboxes"], { name: name.value.trim(), status, metadata: metadata.value.trim() }));
  const submit = (event: Event) => {
    event.preventDefault();
    apply(filters.status);
  };
  return (
    <search aria-label={words.filters}>
      <form class="filters" onSubmit={submit}>
        <Field label={words.name} type="search" {...name} />
        <Choice
          label={words.status}
          value={filters.status}
          of={{ "": words.anyStatus, ...words.statuses }}
          onChange={apply}
        />
        <Field label={words.metadata} type="search" {...metadata} placeholder={words.metadataFilter} />
        <div>
          <Button submit label={words.apply} />
        </div>
      </form>
    </search>
  );
}
