/** The service as it is now, for those who run it. */
import { get } from "../lib/api";
import { bytes, duration, safe } from "../lib/format";
import { usePoll } from "../lib/load";
import { href } from "../lib/route";
import type { NodeStatus, ServiceStatus, SubjectStatus } from "../lib/wire";
import { s } from "../strings";
import { Badge, type Column, Empty, Loaded, Meter, Page, Safe, Section, Table, Time } from "../ui";
import { Facts } from "../ui/form";

const EVERY_MS = 5_000;
const words = s.service;

const TONES = { ready: "ok", draining: "warn", drained: "muted", away: "bad" } as const;

export default function Service() {
  const loaded = usePoll((signal) => get<ServiceStatus>("/service", {}, signal), EVERY_MS, []);
  return (
    <Page title={words.title}>
      <Loaded of={loaded}>{(figures) => <Shown figures={figures} />}</Loaded>
    </Page>
  );
}

const grouped = (n: number) => n.toLocaleString("en");

/** Figures by the names that the strings have for them. */
function named<Names extends string>(
  names: Record<Names, string>,
  counts: Record<NoInfer<Names>, number>,
): [string, number][] {
  return Object.entries<string>(names).map(([key, label]) => [label, counts[key as Names]]);
}

function Shown({ figures }: { figures: ServiceStatus }) {
  const { version, engine, uptime_ms, pool, sandboxes, subjects, nodes } = figures;
  const names = nodes.length > 0 ? words.cluster : words.alone;
  const about = { [words.version]: safe(version), [words.engine]: safe(engine), [words.uptime]: duration(uptime_ms) };
  return (
    <>
      <div class="thirds">
        <Section title={names.load}>
          <Meter label={words.running} value={figures.running} bound={figures.max_running} format={grouped} />
          <Meter label={names.queued} value={figures.queued} bound={figures.max_queued} format={grouped} />
          <Facts of={Object.entries(about)} />
        </Section>
        <Section title={words.sandboxes}>
          <Facts of={named(s.sandboxes.statuses, sandboxes)} />
        </Section>
        <Section title={words.pool}>
          {pool ? (
            <Facts of={[[words.ready, s.ui.of(`${pool.ready}`, `${pool.target}`)], ...named(words.pools, pool)]} />
          ) : (
            <p class="muted">{words.noPool}</p>
          )}
        </Section>
      </div>
      <Section title={words.subjects}>
        {subjects.length === 0 && <Empty title={words.noSubjects} />}
        {subjects.length > 0 && (
          <Table caption={words.subjects} columns={SUBJECTS} rows={subjects} keyOf={({ subject }) => subject} />
        )}
      </Section>
      {figures.more_subjects && <p class="muted">{words.moreSubjects}</p>}
      {nodes.length > 0 && (
        <Section title={words.nodes}>
          <Table caption={words.nodes} columns={NODES} rows={nodes} keyOf={({ node }) => node} />
        </Section>
      )}
      <p class="muted">{words.history}</p>
    </>
  );
}

const SUBJECTS: Column<SubjectStatus>[] = [
  {
    head: words.subject,
    class: "name",
    cell: ({ subject }) => <a href={href(["executions"], { subject })}>{safe(subject)}</a>,
  },
  { head: words.queued, class: "number", cell: ({ queued }) => queued },
  { head: words.running, class: "number", cell: ({ running }) => running },
  { head: words.sandboxes, class: "number", cell: ({ sandboxes }) => sandboxes },
  { head: words.today, class: "number", cell: ({ executions_today }) => grouped(executions_today) },
  { head: words.cpuToday, class: "number", cell: ({ cpu_ms_today }) => duration(cpu_ms_today) },
  { head: words.stored, class: "number", cell: ({ stored_bytes }) => bytes(stored_bytes) },
];

const load = ({ running, slots }: NodeStatus) =>
  running === null ? s.ui.none : s.ui.of(`${running}`, `${slots ?? "?"}`);

const NODES: Column<NodeStatus>[] = [
  { head: words.node, class: "name", cell: ({ name, node }) => <Safe text={`${name} (${node})`} /> },
  { head: words.state, class: "tight", cell: ({ state }) => <Badge tone={TONES[state]}>{safe(state)}</Badge> },
  { head: words.address, class: "name", cell: ({ address }) => <Safe text={address ?? s.ui.none} /> },
  { head: words.version, class: "tight", cell: ({ version }) => <Safe text={version ?? s.ui.none} /> },
  { head: words.running, class: "number", cell: load },
  { head: words.sandboxes, class: "number", cell: ({ sandboxes }) => sandboxes },
  { head: words.beat, class: "tight", cell: ({ last_seen }) => <Time at={last_seen} /> },
];
