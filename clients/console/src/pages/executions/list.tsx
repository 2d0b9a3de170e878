/** The list of executions: a page of 100 at a time, the latest first, kept up to date while it is looked at. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { get } from "../../lib/api";
import { safe } from "../../lib/format";
import { keep, usePoll } from "../../lib/load";
import { go, href, type Route, replace } from "../../lib/route";
import { useSession } from "../../lib/session";
import type { ExecutionList as Entries, ExecutionKind, ExecutionStatus, ExecutionSummary } from "../../lib/wire";
import { s } from "../../strings";
import { Badge, Button, type Column, Empty, ErrorBox, Field, Page, Select, Spinner, Table, Time } from "../../ui";
import { ScaledBar, Took } from "./timeline";
import { TONES, title, tone } from "./verdict";

const POLL_MS = 2000;
const PAGE = 100;
const HOUR_MS = 3_600_000;

/** How far back, by the name in the address. */
const RANGES = { hour: HOUR_MS, day: 24 * HOUR_MS, week: 7 * 24 * HOUR_MS };
type Range = "" | keyof typeof RANGES | "custom";

type Filters = {
  status: ExecutionStatus | "";
  kind: ExecutionKind | "";
  image: string;
  range: Range;
  since: string;
  until: string;
  subject: string;
};

function filtersOf(query: URLSearchParams): Filters {
  const text = (name: string) => query.get(name) ?? "";
  const range = text("range");
  return {
    status: text("status") as ExecutionStatus | "",
    kind: text("kind") as ExecutionKind | "",
    image: text("image"),
    range: range === "custom" || Object.hasOwn(RANGES, range) ? (range as Range) : "",
    since: text("since"),
    until: text("until"),
    subject: text("subject"),
  };
}

/** The local time of an input as the service wants it. */
function iso(local: string): string | undefined {
  const date = new Date(local);
  return local === "" || Number.isNaN(date.getTime()) ? undefined : date.toISOString();
}

/** The times between which executions are asked for. They are fixed for one visit of a page, as its cursor is. */
function bounds({ range, since, until }: Filters): { since?: string; until?: string } {
  if (range === "") return {};
  if (range === "custom") return { since: iso(since), until: iso(until) };
  return { since: new Date(Date.now() - RANGES[range]).toISOString() };
}

function place(filters: Filters, cursor?: string): string {
  const { range } = filters;
  const times = range === "custom" ? {} : { since: undefined, until: undefined };
  return href(["executions"], { ...filters, ...times, cursor });
}

function Runs({ row }: { row: ExecutionSummary }) {
  return (
    <span class="runs">
      <a href={href(["executions", row.id])}>
        <bdi>{title(row)}</bdi>
      </a>
      {title(row) !== row.id && <code class="muted">{row.id}</code>}
    </span>
  );
}

function columns(hasSubjects: boolean, own: string): Column<ExecutionSummary>[] {
  const all: Column<ExecutionSummary>[] = [
    {
      key: "status",
      head: s.executions.status,
      class: "tight",
      cell: (row) => <Badge tone={tone(row.status)}>{s.status[row.status] ?? safe(row.status)}</Badge>,
    },
    {
      key: "runs",
      head: s.executions.runs,
      class: "name",
      // Those of other subjects are rows alone: the service shows them to nobody else.
      cell: (row) => (row.subject && row.subject !== own ? <bdi>{title(row)}</bdi> : <Runs row={row} />),
    },
    {
      key: "kind",
      head: s.executions.kind,
      cell: (row) => (
        <>
          {s.kinds[row.kind]} {row.image && <code class="muted">{safe(row.image)}</code>}
        </>
      ),
    },
    { key: "timeline", head: s.executions.timeline, class: "bar", cell: (row) => <ScaledBar times={row} /> },
    { key: "took", head: s.executions.took, class: "number", cell: (row) => <Took times={row} /> },
    { key: "created", head: s.executions.created, class: "tight", cell: (row) => <Time at={row.created_at} /> },
  ];
  if (hasSubjects) {
    all.splice(2, 0, {
      key: "subject",
      head: s.executions.subject,
      cell: (row) => <bdi>{safe(row.subject ?? own)}</bdi>,
    });
  }
  return all;
}

export function ExecutionList({ route }: { route: Route }) {
  const session = useSession();
  const query = route.query.toString();
  const filters = useMemo(() => filtersOf(route.query), [query]);
  const cursor = route.query.get("cursor") ?? undefined;
  const times = useMemo(() => bounds(filters), [filters]);
  const { data, error, loading, reload } = usePoll(
    (signal) => {
      const { status, kind, image, subject } = filters;
      const members = { status, kind, image, subject: session.can("admin") ? subject : undefined };
      return get<Entries>("/executions", { ...members, ...times, cursor, limit: PAGE }, signal);
    },
    POLL_MS,
    [query],
    (before, now) => {
      const executions = keep(before?.executions, now.executions, (row) => row.id);
      const isSame = before && executions === before.executions && now.next_cursor === before.next_cursor;
      return isSame ? before : { ...now, executions };
    },
  );
  const heads = useMemo(() => columns(filters.subject !== "", session.subject), [filters.subject, session.subject]);
  const isFiltered = Object.values(filters).some((value) => value !== "");
  const next = data?.next_cursor;
  return (
    <Page
      title={s.executions.title}
      actions={
        <a class="button primary" href={href(["playground"])}>
          {s.executions.run}
        </a>
      }
    >
      <FilterForm filters={filters} isAdmin={session.can("admin")} />
      {error && <ErrorBox error={error} onRetry={reload} />}
      {!data && loading && <Spinner />}
      {data && data.executions.length === 0 && (
        <Empty title={isFiltered || cursor ? s.executions.noneMatch : s.executions.none}>
          {!isFiltered && !cursor && <p>{s.executions.noneText}</p>}
        </Empty>
      )}
      {data && data.executions.length > 0 && (
        <Table caption={s.executions.title} columns={heads} rows={data.executions} keyOf={(row) => row.id} />
      )}
      {(cursor || next) && (
        <nav class="row" aria-label={s.executions.pages}>
          {cursor && (
            <>
              <Button onClick={() => go(place(filters))}>{s.executions.newest}</Button>
              <Button onClick={() => history.back()}>{s.executions.newer}</Button>
            </>
          )}
          {next && <Button onClick={() => go(place(filters, next))}>{s.executions.older}</Button>}
        </nav>
      )}
    </Page>
  );
}

const TYPING_MS = 400;

function FilterForm({ filters, isAdmin }: { filters: Filters; isAdmin: boolean }) {
  const [draft, setDraft] = useState(filters);
  useEffect(() => setDraft(filters), [filters]);
  // What is typed is asked for when the typing has paused.
  useEffect(() => {
    if (place(draft) === place(filters)) return;
    const timer = setTimeout(() => replace(place(draft)), TYPING_MS);
    return () => clearTimeout(timer);
  }, [draft]);
  const change = (members: Partial<Filters>) => {
    const changed = { ...draft, ...members };
    setDraft(changed);
    replace(place(changed));
  };
  const any = { value: "" as const, label: s.executions.any };
  const statuses = Object.keys(TONES) as ExecutionStatus[];
  return (
    <search class="filters" aria-label={s.executions.filters}>
      <Select
        label={s.executions.status}
        value={draft.status}
        options={[any, ...statuses.map((value) => ({ value, label: s.status[value] }))]}
        onChange={(status) => change({ status })}
      />
      <Select
        label={s.executions.kind}
        value={draft.kind}
        options={[any, { value: "script", label: s.kinds.script }, { value: "command", label: s.kinds.command }]}
        onChange={(kind) => change({ kind })}
      />
      <Field
        label={s.executions.image}
        type="search"
        value={draft.image}
        onInput={(image) => setDraft({ ...draft, image })}
      />
      <Select
        label={s.executions.range}
        value={draft.range}
        options={(["", "hour", "day", "week", "custom"] as const).map((value) => ({
          value,
          label: s.executions.ranges[value || "all"],
        }))}
        onChange={(range) => change({ range })}
      />
      {draft.range === "custom" && (
        <>
          <Field
            label={s.executions.since}
            type="datetime-local"
            value={draft.since}
            onInput={(since) => setDraft({ ...draft, since })}
          />
          <Field
            label={s.executions.until}
            type="datetime-local"
            value={draft.until}
            onInput={(until) => setDraft({ ...draft, until })}
          />
        </>
      )}
      {isAdmin && (
        <Field
          label={s.executions.subject}
          type="search"
          value={draft.subject}
          placeholder={s.executions.subjectHint}
          onInput={(subject) => setDraft({ ...draft, subject })}
        />
      )}
    </search>
  );
}
