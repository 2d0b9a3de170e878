/** The list of executions: a page of 100 at a time, the latest first, kept up to date while it is looked at. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { get } from "../../lib/api";
import { safe } from "../../lib/format";
import { usePoll } from "../../lib/load";
import { go, href, type Route, replace } from "../../lib/route";
import { useSession } from "../../lib/session";
import type { ExecutionList as Entries, ExecutionStatus, ExecutionSummary } from "../../lib/wire";
import { s } from "../../strings";
import { Badge, Button, type Column, Field, Loaded, Page, Safe, Table, Time } from "../../ui";
import { Choice } from "../../ui/form";
import { ScaledBar, Took } from "./timeline";
import { statusText, TONES, title, tone } from "./verdict";

const POLL_MS = 2000;
const PAGE = 100;
const TYPING_MS = 400;

/** The page before one, by their cursors: those that were turned over in this visit. */
const before = new Map<string, string | undefined>();

/** How far back, in hours, by the name in the address. */
const RANGES: Record<string, number> = { hour: 1, day: 24, week: 7 * 24 };
const NONE = { status: "", kind: "", image: "", range: "", since: "", until: "", subject: "" };
type Filters = typeof NONE;

function filtersOf(query: URLSearchParams): Filters {
  const filters = { ...NONE };
  for (const name of Object.keys(NONE) as (keyof Filters)[]) filters[name] = query.get(name) ?? "";
  return filters;
}

/** The local time of an input as the service wants it. */
function iso(local: string): string | undefined {
  const date = new Date(local);
  return Number.isNaN(date.getTime()) ? undefined : date.toISOString();
}

/** The times between which executions are asked for. They are fixed for one visit of a page, as its cursor is. */
function bounds({ range, since, until }: Filters): { since?: string; until?: string } {
  if (range === "custom") return { since: iso(since), until: iso(until) };
  const hours = Object.hasOwn(RANGES, range) && RANGES[range];
  return hours ? { since: new Date(Date.now() - hours * 3_600_000).toISOString() } : {};
}

function place(filters: Filters, cursor?: string): string {
  const times = filters.range === "custom" ? {} : { since: undefined, until: undefined };
  return href(["executions"], { ...filters, ...times, cursor });
}

function columns(hasSubjects: boolean, own: string): Column<ExecutionSummary>[] {
  const e = s.executions;
  const subject: Column<ExecutionSummary> = { head: e.subject, cell: (row) => <Safe text={row.subject ?? own} /> };
  return [
    { head: e.status, class: "tight", cell: (row) => <Badge tone={tone(row.status)}>{statusText(row.status)}</Badge> },
    { head: e.runs, class: "name", cell: (row) => <Runs row={row} isOwn={!row.subject || row.subject === own} /> },
    ...(hasSubjects ? [subject] : []),
    { head: e.kind, cell: (row) => <Kind row={row} /> },
    { head: e.timeline, class: "bar", cell: (row) => <ScaledBar times={row} /> },
    { head: e.took, class: "number", cell: (row) => <Took times={row} /> },
    { head: e.created, class: "tight", cell: (row) => <Time at={row.created_at} /> },
  ];
}

/** What it is called. Those of other subjects are rows alone: the service shows them to no other subject. */
function Runs({ row, isOwn }: { row: ExecutionSummary; isOwn: boolean }) {
  const name = <bdi>{title(row)}</bdi>;
  return (
    <span class="runs">
      {isOwn ? <a href={href(["executions", row.id])}>{name}</a> : name}
      {title(row) !== row.id && <code class="muted">{row.id}</code>}
    </span>
  );
}

function Kind({ row }: { row: ExecutionSummary }) {
  return (
    <>
      {s.kinds[row.kind]} {row.image && <code class="muted">{safe(row.image)}</code>}
    </>
  );
}

export function ExecutionList({ route }: { route: Route }) {
  const session = useSession();
  const isAdmin = session.can("admin");
  const query = route.query.toString();
  const filters = useMemo(() => filtersOf(route.query), [query]);
  const cursor = route.query.get("cursor") ?? undefined;
  const times = useMemo(() => bounds(filters), [filters]);
  const list = usePoll(
    (signal) => {
      const { status, kind, image, subject } = filters;
      const members = { status, kind, image, subject: isAdmin ? subject : undefined, ...times, cursor, limit: PAGE };
      return get<Entries>("/executions", members, signal);
    },
    POLL_MS,
    [query],
  );
  const heads = useMemo(() => columns(filters.subject !== "", session.subject), [filters.subject, session.subject]);
  const isFiltered = cursor !== undefined || Object.values(filters).some((value) => value !== "");
  const next = list.data?.next_cursor;
  const older = (target: string) => {
    before.set(target, cursor);
    go(place(filters, target));
  };
  const run = (
    <a class="button primary" href={href(["playground"])}>
      {s.executions.run}
    </a>
  );
  return (
    <Page title={s.executions.title} actions={run}>
      <FilterForm filters={filters} isAdmin={isAdmin} />
      <Loaded
        of={list}
        isEmpty={({ executions }) => executions.length === 0}
        none={isFiltered ? s.executions.noneMatch : s.executions.none}
      >
        {({ executions }) => (
          <Table caption={s.executions.title} columns={heads} rows={executions} keyOf={(row) => row.id} />
        )}
      </Loaded>
      <nav class="row" aria-label={s.executions.pages}>
        {cursor && <Button label={s.executions.newest} onClick={() => go(place(filters))} />}
        {cursor && before.has(cursor) && (
          <Button label={s.executions.newer} onClick={() => go(place(filters, before.get(cursor)))} />
        )}
        {next && <Button label={s.executions.older} onClick={() => older(next)} />}
      </nav>
    </Page>
  );
}

function FilterForm({ filters, isAdmin }: { filters: Filters; isAdmin: boolean }) {
  const [draft, setDraft] = useState(filters);
  useEffect(() => setDraft(filters), [filters]);
  // What is typed is asked for when the typing has paused.
  useEffect(() => {
    if (place(draft) === place(filters)) return;
    const timer = setTimeout(() => replace(place(draft)), TYPING_MS);
    return () => clearTimeout(timer);
  }, [draft]);
  const e = s.executions;
  const choice = (name: "status" | "kind" | "range", of: Record<string, string>) => {
    const onChange = (value: string) => replace(place({ ...draft, [name]: value }));
    return <Choice label={e[name]} value={draft[name]} of={of} onChange={onChange} />;
  };
  const field = (name: "image" | "since" | "until" | "subject", type: "search" | "datetime-local", hint?: string) => (
    <Field
      label={e[name]}
      type={type}
      placeholder={hint}
      value={draft[name]}
      onInput={(value) => setDraft({ ...draft, [name]: value })}
    />
  );
  const statuses = (Object.keys(TONES) as ExecutionStatus[]).map((status) => [status, statusText(status)]);
  return (
    <search class="filters" aria-label={e.filters}>
      {choice("status", { "": e.any, ...Object.fromEntries(statuses) })}
      {choice("kind", { "": e.any, ...s.kinds })}
      {field("image", "search")}
      {choice("range", e.ranges)}
      {draft.range === "custom" && field("since", "datetime-local")}
      {draft.range === "custom" && field("until", "datetime-local")}
      {isAdmin && field("subject", "search", e.subjectHint)}
    </search>
  );
}
