/** When an execution waited, was started, ran and ended, as a bar. */
import { useEffect, useState } from "preact/hooks";
import { duration } from "../../lib/format";
import type { ExecutionStatus, Timing } from "../../lib/wire";
import { s } from "../../strings";
import { tone } from "./verdict";

type Times = { status: ExecutionStatus; created_at: string; started_at: string | null; ended_at: string | null };
type Props = { times: Times & { timing?: Timing | null } };

/** Now, or when it ended. It goes on only while something is under way. */
function useEnd({ ended_at }: Times): number {
  const [, tick] = useState(0);
  useEffect(() => {
    if (ended_at) return;
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, [ended_at]);
  return ended_at ? Date.parse(ended_at) : Date.now();
}

/** The parts so far. Lists do not know how long the start took. */
function parts({ times }: Props, end: number): { name: "queue" | "start" | "run"; ms: number; class: string }[] {
  const created = Date.parse(times.created_at);
  const started = times.started_at ? Date.parse(times.started_at) : end;
  const run = `run ${tone(times.status)}`;
  const known = times.ended_at && times.timing;
  const found = [
    { name: "queue" as const, ms: known ? (known.queued_ms ?? 0) : Math.max(0, started - created), class: "queue" },
    { name: "start" as const, ms: known ? (known.start_ms ?? 0) : 0, class: "start" },
    { name: "run" as const, ms: known ? known.run_ms : Math.max(0, end - started), class: run },
  ];
  return known ? found : found.filter((part) => part.name !== "start");
}

const text = (part: { name: "queue" | "start" | "run"; ms: number }) => `${s.timeline[part.name]} ${duration(part.ms)}`;

/** A bar as wide as its place, with its parts in proportion; in words for those who do not see it. */
function Bar({ times }: Props) {
  const all = parts({ times }, useEnd(times));
  const label = all.map(text).join(", ");
  return (
    <span class="timeline" role="img" aria-label={label} title={label}>
      {all.map((part) => (
        <span key={part.name} class={part.class} style={{ flexGrow: part.ms }} />
      ))}
    </span>
  );
}

/** A bar as long as it took, on one scale for all: logarithmic, from 1 ms to 10 minutes. */
export function ScaledBar({ times }: Props) {
  const ms = useEnd(times) - Date.parse(times.created_at);
  const share = Math.log10(Math.max(ms, 1)) / Math.log10(600_000);
  return (
    <div style={{ width: `${Math.min(Math.max(share, 0.05), 1) * 100}%` }}>
      <Bar times={times} />
    </div>
  );
}

/** From its begin to its end, or until now. */
export function Took({ times }: Props) {
  const end = useEnd(times);
  if (!times.started_at) return <span class="muted">{s.ui.none}</span>;
  return <span class="figure">{duration(Math.max(0, end - Date.parse(times.started_at)))}</span>;
}

/** The bar with what its parts mean. */
export function Timeline({ times }: Props) {
  const end = useEnd(times);
  return (
    <div class="timeline-box">
      <Bar times={times} />
      <ul class="row small timeline-keys">
        {parts({ times }, end).map((part) => (
          <li key={part.name} class="row">
            <span class={`key ${part.class}`} />
            {text(part)}
          </li>
        ))}
        {times.timing?.start && <li class="muted">{s.timeline[times.timing.start]}</li>}
      </ul>
    </div>
  );
}
