/** What several pages of sandboxes have in common. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { ApiError } from "../../lib/api";
import { safe } from "../../lib/format";
import { isAttended } from "../../lib/load";
import { href } from "../../lib/route";
import { s } from "../../strings";
import { Badge, Button, Empty, type Tone } from "../../ui";
import type { SandboxView } from "./calls";

const TONES: Record<SandboxView["status"], Tone> = { starting: "info", ready: "ok", paused: "warn", stopped: "muted" };

export function StatusBadge({ view }: { view: SandboxView }) {
  if (view.node_away) return <Badge tone="bad">{s.sandboxes.away}</Badge>;
  return <Badge tone={TONES[view.status]}>{s.sandboxes.statuses[view.status] ?? safe(view.status)}</Badge>;
}

/** A place in a sandbox. */
export function place(sandbox: string, tab: string, item?: number): string {
  return href(["sandboxes", sandbox, tab, ...(item === undefined ? [] : [String(item)])]);
}

/** Whether there is no such sandbox, or no longer. */
export function isGone(error: unknown): error is ApiError {
  return error instanceof ApiError && (error.status === 404 || error.status === 410);
}

export const FOLLOW_MS = 3_000;
let rests = 0;

/** It is about to be paused: nothing that follows it may wake it meanwhile. */
export const rest = async () => (rests = Date.now() + FOLLOW_MS);

/** Whether what is a use of a sandbox is repeated: while that is awake, and somebody is at the page. */
export const follows =
  ({ status }: SandboxView) =>
  () =>
    status === "ready" && Date.now() > rests && isAttended();

/** What wakes a sandbox is not done because a tab was looked at. */
export function Awake({ view, children }: { view: SandboxView; children: () => ComponentChildren }) {
  const { status } = view;
  const asleep = status === "paused" || status === "stopped" ? status : undefined;
  const [isWanted, setWanted] = useState(!asleep);
  if (isWanted || !asleep) return <>{children()}</>;
  return (
    <Empty title={s.sandboxes.wake(s.sandboxes.statuses[asleep])}>
      <p>{s.sandboxes.wakeTexts[asleep]}</p>
      <Button kind="primary" onClick={() => setWanted(true)} label={s.sandboxes.wakeActions[asleep]} />
    </Empty>
  );
}
