/** The service as it is now, for those who run it. */
import { get } from "../lib/api";
import { bytes, duration, safe } from "../lib/format";
import { keep, usePoll } from "../lib/load";
import { href } from "../lib/route";
import { useSession } from "../lib/session";
import { s } from "../strings";
import { Badge, type Column, Empty, ErrorBox, Meter, Page, Section, Spinner, Table, Time, type Tone } from "../ui";

const EVERY_MS = 5_000;

type Subject = {
  subject: string;
  queued: number;
  running: number;
  sandboxes: number;
  executions_today: number;
  cpu_ms_today: number;
  stored_bytes: number;
};

type Node = {
  node: string;
  name: string;
  state: "ready" | "draining" | "drained" | "away";
  address: string | null;
  version: string | null;
  running: number | null;
  slots: number | null;
  sandboxes: number;
  beat_age_ms: number | null;
  last_seen: string;
};

/** The answer of `/v1/service`. */
type Figures = {
  version: string;
  engine: string;
  uptime_ms: number;
  queued: number;
  max_queued: number;
  running: number;
  max_running: number;
  pool: Record<"kinds" | "target" | "ready" | "starting" | "claims" | "hits" | "failed", number> | null;
  sandboxes: Record<"starting" | "ready" | "paused" | "stopped", number>;
  subjects: Subject[];
  more_subjects: boolean;
  nodes: Node[];
};

export default function Service() {
  const session = useSession();
  return <Page title={s.service.title}>{session.can("admin") ? <Now /> : <Empty title={s.service.scope} />}</Page>;
}

function Now() {
  const { data, error, reload } = usePoll(
    (signal) => get<Figures>("/service", {}, signal),
    EVERY_MS,
    [],
    (before, now) => ({
      ...now,
      subjects: keep(before?.subjects, now.subjects, (it) => it.subject),
      nodes: keep(before?.nodes, now.nodes, (it) => it.node),
    }),
  );
  return (
    <>
      {error && <ErrorBox error={error} onRetry={reload} />}
      {!data && !error && <Spinner />}
      {data && <Shown figures={data} />}
    </>
  );
}

function Shown({ figures }: { figures: Figures }) {
  const { pool, sandboxes } = figures;
  const words = s.service;
  return (
    <>
      <div class="columns">
        <Section title={words.load}>
          <Meter label={words.running} value={figures.running} bound={figures.max_running} />
          <Meter label={words.queued} value={figures.queued} bound={figures.max_queued} />
          <Facts
            facts={[
              [words.version, safe(figures.version)],
              [words.engine, safe(figures.engine)],
              [words.uptime, duration(figures.uptime_ms)],
            ]}
          />
        </Section>
        <Section title={words.sandboxes}>
          <Facts
            facts={Object.entries(s.sandboxes.statuses).map(([key, label]) => [
              label,
              sandboxes[key as keyof typeof sandboxes],
            ])}
          />
        </Section>
        <Section title={words.pool}>
          {pool === null ? (
            <p class="muted">{words.noPool}</p>
          ) : (
            <Facts
              facts={[
                [words.ready, s.ui.of(String(pool.ready), String(pool.target))],
                [words.kinds, pool.kinds],
                [words.starting, pool.starting],
                [words.claims, pool.claims],
                [words.hits, pool.hits],
                [words.failed, pool.failed],
              ]}
            />
          )}
        </Section>
      </div>
      <Section title={words.subjects}>
        {figures.subjects.length === 0 ? (
          <Empty title={words.noSubjects} />
        ) : (
          <Table caption={words.subjects} columns={SUBJECTS} rows={figures.subjects} keyOf={(it) => it.subject} />
        )}
      </Section>
      {figures.more_subjects && <p class="muted">{words.moreSubjects}</p>}
      {figures.nodes.length > 0 && (
        <Section title={words.nodes}>
          <Table caption={words.nodes} columns={NODES} rows={figures.nodes} keyOf={(it) => it.node} />
        </Section>
      )}
      <p class="muted">{words.history}</p>
    </>
  );
}

function Facts({ facts }: { facts: [string, string | number][] }) {
  return (
    <dl class="facts">
      {facts.flatMap(([name, value]) => [
        <dt key={name}>{name}</dt>,
        <dd key={`${name} value`} class="figure">
          {value}
        </dd>,
      ])}
    </dl>
  );
}

const number = (
  key: keyof Subject & string,
  head: string,
  format: (n: number) => string = String,
): Column<Subject> => ({
  key,
  head,
  class: "number",
  cell: (it) => format(Number(it[key])),
});

const SUBJECTS: Column<Subject>[] = [
  {
    key: "subject",
    head: s.service.subject,
    class: "name",
    cell: (it) => (
      <a href={href(["executions"], { subject: it.subject })}>
        <bdi>{safe(it.subject)}</bdi>
      </a>
    ),
  },
  number("queued", s.service.queued),
  number("running", s.service.running),
  number("sandboxes", s.service.sandboxes),
  number("executions_today", s.service.today),
  number("cpu_ms_today", s.service.cpuToday, duration),
  number("stored_bytes", s.service.stored, bytes),
];

const STATES: Record<Node["state"], Tone> = { ready: "ok", draining: "warn", drained: "muted", away: "bad" };

const NODES: Column<Node>[] = [
  {
    key: "node",
    head: s.service.node,
    class: "name",
    cell: (it) => (
      <div>
        <bdi>{safe(it.name)}</bdi> <span class="muted small mono">{safe(it.node)}</span>
      </div>
    ),
  },
  {
    key: "state",
    head: s.service.state,
    class: "tight",
    cell: (it) => <Badge tone={STATES[it.state]}>{it.state}</Badge>,
  },
  { key: "address", head: s.service.address, class: "name", cell: (it) => <bdi>{safe(it.address ?? s.ui.none)}</bdi> },
  { key: "version", head: s.service.version, class: "tight", cell: (it) => safe(it.version ?? s.ui.none) },
  {
    key: "running",
    head: s.service.running,
    class: "number",
    cell: (it) => (it.running === null ? s.ui.none : s.ui.of(String(it.running), String(it.slots ?? "?"))),
  },
  { key: "sandboxes", head: s.service.sandboxes, class: "number", cell: (it) => it.sandboxes },
  { key: "seen", head: s.service.beat, class: "tight", cell: (it) => <Time at={it.last_seen} /> },
];
