/** The sandboxes of the caller, a page at a time. */
import { useState } from "preact/hooks";
import { get, type Query } from "../../lib/api";
import { cut } from "../../lib/format";
import { keep, usePoll } from "../../lib/load";
import { go, href } from "../../lib/route";
import { s } from "../../strings";
import { Button, type Column, Empty, ErrorBox, Field, Page, Select, Spinner, Table, Time } from "../../ui";
import { metadataText, pairs, Safe, StatusBadge } from "./parts";
import type { SandboxList, SandboxView } from "./wire";

const EVERY_MS = 5_000;
const PAGE = 50;
const MAX_METADATA = 120;
const STATUSES = ["", "starting", "ready", "paused", "stopped"] as const;

const COLUMNS: Column<SandboxView>[] = [
  { key: "name", head: s.sandboxes.name, class: "name", cell: (view) => <Named view={view} /> },
  { key: "status", head: s.sandboxes.status, class: "tight", cell: (view) => <StatusBadge view={view} /> },
  {
    key: "image",
    head: s.sandboxes.image,
    class: "name",
    cell: (view) => <Safe text={view.spec.image ?? s.sandboxes.noImage} />,
  },
  {
    key: "metadata",
    head: s.sandboxes.metadata,
    class: "name",
    cell: (view) => <Safe text={cut(metadataText(view.metadata), MAX_METADATA)} />,
  },
  { key: "processes", head: s.sandboxes.processes, class: "number", cell: (view) => view.processes ?? s.ui.none },
  { key: "created", head: s.sandboxes.created, class: "tight", cell: (view) => <Time at={view.created_at} /> },
  { key: "expires", head: s.sandboxes.expires, class: "tight", cell: (view) => <Time at={view.expires_at} /> },
];

function Named({ view }: { view: SandboxView }) {
  return (
    <div>
      <a href={href(["sandboxes", view.id])}>
        <Safe text={view.name ?? view.id} />
      </a>
      {view.name !== null && <div class="muted small mono">{view.id}</div>}
    </div>
  );
}

type Filters = { name: string; status: string; metadata: string };

export function List({ query }: { query: URLSearchParams }) {
  const cursor = query.get("cursor") ?? undefined;
  const filters = {
    name: query.get("name") ?? "",
    status: query.get("status") ?? "",
    metadata: query.get("metadata") ?? "",
  };
  const isFiltered = Object.values(filters).some(Boolean);
  const { data, error, reload } = usePoll(
    (signal) => get<SandboxList>("/sandboxes", queryOf(filters, cursor), signal),
    EVERY_MS,
    [query.toString()],
    (before, now) => ({ ...now, sandboxes: keep(before?.sandboxes, now.sandboxes, (view) => view.id) }),
  );
  return (
    <Page
      title={s.sandboxes.title}
      actions={
        <a class="button primary" href={href(["sandboxes", "new"])}>
          {s.sandboxes.create}
        </a>
      }
    >
      <FilterForm key={query.toString()} filters={filters} />
      {error && <ErrorBox error={error} onRetry={reload} />}
      {!data && !error && <Spinner />}
      {data && data.sandboxes.length === 0 && (
        <Empty title={isFiltered ? s.sandboxes.noneFound : s.sandboxes.none}>
          {isFiltered ? <a href={href(["sandboxes"])}>{s.sandboxes.reset}</a> : s.sandboxes.noneText}
        </Empty>
      )}
      {data && data.sandboxes.length > 0 && (
        <Table caption={s.sandboxes.title} columns={COLUMNS} rows={data.sandboxes} keyOf={(view) => view.id} />
      )}
      {(cursor || data?.next_cursor) && (
        <nav class="row" aria-label={s.sandboxes.pages}>
          {cursor && <a href={href(["sandboxes"], filters)}>{s.sandboxes.first}</a>}
          {data?.next_cursor && (
            <a href={href(["sandboxes"], { ...filters, cursor: data.next_cursor })}>{s.sandboxes.next}</a>
          )}
        </nav>
      )}
    </Page>
  );
}

function queryOf({ name, status, metadata }: Filters, cursor: string | undefined): Query {
  const wanted = Object.entries(pairs(metadata, /[,\n]/)).map(([key, value]) => [`metadata.${key}`, value]);
  return { limit: PAGE, name, status, cursor, ...Object.fromEntries(wanted) };
}

function FilterForm({ filters }: { filters: Filters }) {
  const [name, setName] = useState(filters.name);
  const [metadata, setMetadata] = useState(filters.metadata);
  const apply = (status: string) => go(href(["sandboxes"], { name: name.trim(), status, metadata: metadata.trim() }));
  return (
    <search aria-label={s.sandboxes.filters}>
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          apply(filters.status);
        }}
      >
        <Field label={s.sandboxes.name} type="search" value={name} onInput={setName} />
        <Select
          label={s.sandboxes.status}
          value={filters.status}
          options={STATUSES.map((value) => ({
            value: value as string,
            label: value === "" ? s.sandboxes.anyStatus : s.sandboxes.statuses[value],
          }))}
          onChange={apply}
        />
        <Field
          label={s.sandboxes.metadata}
          type="search"
          value={metadata}
          placeholder={s.sandboxes.metadataFilter}
          onInput={setMetadata}
        />
        <Button submit>{s.sandboxes.apply}</Button>
      </form>
    </search>
  );
}
