/** What an execution used of its limits, and the hosts that it reached and did not. */
import { bytes, duration, limitName, safe } from "../../lib/format";
import type { ContactedHost, Execution, Network, RefusedHost } from "../../lib/wire";
import { s } from "../../strings";
import { type Column, Copy, Empty, Meter, Safe, Section, Table } from "../../ui";
import { Facts } from "../../ui/form";
import { limitText } from "./verdict";

export function Limits({ execution }: { execution: Execution }) {
  const { limits, usage, disk } = execution;
  if (!limits) return <Empty title={s.usage.none} />;
  const { timeout_ms, memory_bytes, write_bytes, ...others } = limits;
  const cpu = timeout_ms * limits.cpus;
  return (
    <div class="columns">
      <Section title={s.usage.title}>
        <Meter label={s.usage.time} value={usage?.wall_ms} bound={timeout_ms} format={duration} />
        <Meter label={s.usage.cpu(limits.cpus)} value={usage?.cpu_ms} bound={cpu} format={duration} />
        <Meter label={s.usage.memory} value={usage?.peak_memory_bytes} bound={memory_bytes} format={bytes} />
        <Meter label={s.usage.written} value={usage?.written_bytes} bound={write_bytes} format={bytes} />
        {disk && (
          <p class="hint">
            {s.usage.disk(bytes(disk.bytes), disk.entries, disk.bound)} {disk.reason && safe(disk.reason)}
          </p>
        )}
      </Section>
      <Section title={s.usage.others}>
        <Facts of={Object.entries(others).map(([name, value]) => [limitName(name), limitText(name, value)])} />
      </Section>
    </div>
  );
}

const keyOf = ({ host, port }: ContactedHost) => `${host}:${port}`;
const host = {
  head: s.hosts.host,
  class: "name",
  cell: (row: ContactedHost) => <bdi class="mono">{safe(keyOf(row))}</bdi>,
};

const REFUSED: Column<RefusedHost>[] = [
  host,
  { head: s.hosts.reason, cell: (row) => <Safe text={row.reason} /> },
  { head: s.hosts.allow, cell: ({ allow }) => <Rules allow={allow} /> },
];

function Rules({ allow }: { allow: string[] }) {
  if (allow.length === 0) return <span class="muted">{s.hosts.noRule}</span>;
  return (
    <ul class="stack-tight">
      {allow.map((rule) => (
        <li key={rule} class="row">
          <code>{safe(rule)}</code>
          <Copy text={safe(rule)} label={s.hosts.copy} />
        </li>
      ))}
    </ul>
  );
}

export function Hosts({ network: { refused, contacted, truncated } }: { network: Network }) {
  const rows = (title: string, none: string, all: ContactedHost[], columns: readonly Column<never>[]) => (
    <Section title={title}>
      {all.length === 0 && <p class="muted">{none}</p>}
      {all.length > 0 && (
        <Table caption={title} columns={columns as Column<ContactedHost>[]} rows={all} keyOf={keyOf} />
      )}
    </Section>
  );
  return (
    <div class="stack">
      {rows(s.hosts.refused, s.hosts.noneRefused, refused, REFUSED)}
      {rows(s.hosts.contacted, s.hosts.noneContacted, contacted, [host])}
      {truncated && <p class="hint">{s.hosts.more}</p>}
    </div>
  );
}
