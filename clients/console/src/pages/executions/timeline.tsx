/** When an execution waited, was started, ran and ended, as a bar. */
import { useEffect, useState } from "preact/hooks";
import { duration } from "../../lib/format";
import type { ExecutionStatus, Timing } from "../../lib/wire";
import { s } from "../../strings";
import { tone } from "./verdict";

type Times = {
  status: ExecutionStatus;
  created_at: string;
  started_at: string | null;
  ended_at: string | null;
  timing?: Timing | null;
};

type Part = { name: "queue" | "start" | "run"; ms: number };

/** The parts so far. Lists do not know how long the start took. */
export function parts(times: Times, now: number): Part[] {
  const { timing } = times;
  const end = times.ended_at ? Date.parse(times.ended_at) : now;
  if (timing && times.ended_at) {
    return [
      { name: "queue", ms: timing.queued_ms ?? 0 },
      { name: "start", ms: timing.start_ms ?? 0 },
      { name: "run", ms: timing.run_ms },
    ];
  }
  const created = Date.parse(times.created_at);
  const started = times.started_at ? Date.parse(times.started_at) : end;
  return [
    { name: "queue", ms: Math.max(0, started - created) },
    { name: "run", ms: Math.max(0, end - started) },
  ];
}

/** Now; it goes on only while something is under way. */
function useNow(isMoving: boolean): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!isMoving) return;
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [isMoving]);
  return isMoving ? Math.max(now, Date.now()) : now;
}

/** A bar as wide as its place, with its parts in proportion; in words for those who do not see it. */
export function TimelineBar({ times }: { times: Times }) {
  const now = useNow(times.ended_at === null);
  const all = parts(times, now);
  const total = all.reduce((sum, part) => sum + part.ms, 0);
  const text = all.map((part) => s.timeline.part(s.timeline[part.name], duration(part.ms))).join(", ");
  return (
    <span class="timeline" role="img" aria-label={text} title={text}>
      {all.map((part) => (
        <span
          key={part.name}
          class={`${part.name} ${part.name === "run" ? tone(times.status) : ""}`}
          style={{ flexGrow: total > 0 ? part.ms / total : 0 }}
        />
      ))}
    </span>
  );
}

/** A bar as long as it took, on one scale for all: logarithmic, from 1 ms to 10 minutes. */
export function ScaledBar({ times }: { times: Times }) {
  const end = times.ended_at ? Date.parse(times.ended_at) : Date.now();
  const share = Math.log10(Math.max(end - Date.parse(times.created_at), 1)) / Math.log10(600_000);
  return (
    <div style={{ width: `${Math.min(Math.max(share, 0.05), 1) * 100}%` }}>
      <TimelineBar times={times} />
    </div>
  );
}

/** From its begin to its end, or until now. */
export function Took({ times }: { times: Times }) {
  const now = useNow(times.ended_at === null);
  if (!times.started_at) return <span class="muted">{s.ui.none}</span>;
  const end = times.ended_at ? Date.parse(times.ended_at) : now;
  return <span class="figure">{duration(Math.max(0, end - Date.parse(times.started_at)))}</span>;
}

/** The bar with what its parts mean. */
export function Timeline({ times }: { times: Times }) {
  const now = useNow(times.ended_at === null);
  return (
    <div class="timeline-box">
      <TimelineBar times={times} />
      <ul class="row small timeline-keys">
        {parts(times, now).map((part) => (
          <li key={part.name} class="row">
            <span class={`key ${part.name} ${part.name === "run" ? tone(times.status) : ""}`} />
            {s.timeline.part(s.timeline[part.name], duration(part.ms))}
          </li>
        ))}
        {times.timing?.start && <li class="muted">{s.timeline.kinds[times.timing.start]}</li>}
      </ul>
    </div>
  );
}
