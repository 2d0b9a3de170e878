/** What an execution used of its limits, and the hosts that it reached and did not. */
import { bytes, duration, safe } from "../../lib/format";
import type { ContactedHost, Execution, Limits as LimitSet, Network, RefusedHost } from "../../lib/wire";
import { s } from "../../strings";
import { type Column, Copy, Empty, Meter, Section, Table } from "../../ui";
import { limitName, limitText } from "./verdict";

export function Limits({ execution }: { execution: Execution }) {
  const { limits, usage, disk } = execution;
  if (!limits) return <Empty title={s.execution.noLimits} />;
  const shown = new Set<string>(["timeout_ms", "memory_bytes", "write_bytes"]);
  const others = (Object.entries(limits) as [keyof LimitSet, number][]).filter(([name]) => !shown.has(name));
  return (
    <div class="columns">
      <Section title={s.execution.usage}>
        <Meter label={s.usage.time} value={usage?.wall_ms} bound={limits.timeout_ms} format={duration} />
        <Meter
          label={s.usage.cpu}
          value={usage?.cpu_ms}
          bound={limits.timeout_ms * limits.cpus}
          format={(ms) =>
            ms === limits.timeout_ms * limits.cpus ? s.usage.cpuBound(limits.cpus, duration(ms)) : duration(ms)
          }
        />
        <Meter label={s.usage.memory} value={usage?.peak_memory_bytes} bound={limits.memory_bytes} format={bytes} />
        <Meter label={s.usage.written} value={usage?.written_bytes} bound={limits.write_bytes} format={bytes} />
        {disk && (
          <p class="hint">
            {s.usage.disk(bytes(disk.bytes), disk.entries, disk.bound)}
            {disk.reason && ` ${safe(disk.reason)}`}
          </p>
        )}
      </Section>
      <Section title={s.execution.otherLimits}>
        <dl class="facts">
          {others.map(([name, value]) => (
            <>
              <dt>{limitName(name)}</dt>
              <dd class="figure">{limitText(name, value)}</dd>
            </>
          ))}
        </dl>
      </Section>
    </div>
  );
}

const hostName = ({ host, port }: ContactedHost) => `${safe(host)}:${port}`;

const CONTACTED: Column<ContactedHost>[] = [
  { key: "host", head: s.execution.host, class: "name", cell: (row) => <bdi class="mono">{hostName(row)}</bdi> },
];

const REFUSED: Column<RefusedHost>[] = [
  { key: "host", head: s.execution.host, class: "name", cell: (row) => <bdi class="mono">{hostName(row)}</bdi> },
  { key: "reason", head: s.execution.reason, cell: (row) => <bdi>{safe(row.reason)}</bdi> },
  {
    key: "allow",
    head: s.execution.allow,
    cell: ({ allow }) =>
      allow.length === 0 ? (
        <span class="muted">{s.execution.noRule}</span>
      ) : (
        <ul class="stack-tight">
          {allow.map((rule) => (
            <li key={rule} class="row">
              <code>{safe(rule)}</code>
              <Copy text={rule} label={s.execution.copyRule} />
            </li>
          ))}
        </ul>
      ),
  },
];

const keyOf = ({ host, port }: ContactedHost) => `${host}:${port}`;

export function Hosts({ network }: { network: Network }) {
  return (
    <div class="stack">
      <Section title={s.execution.refused}>
        {network.refused.length === 0 ? (
          <p class="muted">{s.execution.noneRefused}</p>
        ) : (
          <Table caption={s.execution.refused} columns={REFUSED} rows={network.refused} keyOf={keyOf} />
        )}
      </Section>
      <Section title={s.execution.contacted}>
        {network.contacted.length === 0 ? (
          <p class="muted">{s.execution.noneContacted}</p>
        ) : (
          <Table caption={s.execution.contacted} columns={CONTACTED} rows={network.contacted} keyOf={keyOf} />
        )}
      </Section>
      {network.truncated && <p class="hint">{s.execution.moreHosts}</p>}
    </div>
  );
}
