/** What several pages of sandboxes have in common. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { ApiError } from "../../lib/api";
import { safe } from "../../lib/format";
import { href } from "../../lib/route";
import { s } from "../../strings";
import { Badge, Button, Empty, Page, type Tone } from "../../ui";
import type { SandboxView } from "./wire";

const TONES: Record<SandboxView["status"], Tone> = { starting: "info", ready: "ok", paused: "warn", stopped: "muted" };

export function StatusBadge({ view }: { view: SandboxView }) {
  if (view.node_away) return <Badge tone="bad">{s.sandboxes.away}</Badge>;
  return <Badge tone={TONES[view.status]}>{s.sandboxes.statuses[view.status] ?? safe(view.status)}</Badge>;
}

/** A text of a guest or of another client on one line. */
export function Safe({ text }: { text: string }) {
  return <bdi>{safe(text)}</bdi>;
}

export function Check(props: { label: string; checked: boolean; onChange: (checked: boolean) => void }) {
  return (
    <label class="check">
      <input
        type="checkbox"
        checked={props.checked}
        onChange={(event) => props.onChange(event.currentTarget.checked)}
      />
      {props.label}
    </label>
  );
}

/** Whether there is no such sandbox, or no longer. */
export function isGone(error: unknown): error is ApiError {
  return error instanceof ApiError && (error.status === 404 || error.status === 410);
}

export function Gone({ error }: { error: ApiError }) {
  return (
    <Page title={s.sandboxes.gone}>
      <Empty title={error.message}>
        <p>{s.sandboxes.goneText}</p>
        <p>
          <a href={href(["sandboxes"])}>{s.sandboxes.toList}</a>
        </p>
      </Empty>
    </Page>
  );
}

/** What wakes a sandbox is not done because a tab was looked at. */
export function Awake({ view, children }: { view: SandboxView; children: () => ComponentChildren }) {
  const { status } = view;
  const [isAwake, setAwake] = useState(status !== "paused" && status !== "stopped");
  if (isAwake || (status !== "paused" && status !== "stopped")) return <>{children()}</>;
  return (
    <Empty title={s.sandboxes.wake(s.sandboxes.statuses[status])}>
      <p>{status === "paused" ? s.sandboxes.wakePaused : s.sandboxes.wakeStopped}</p>
      <Button kind="primary" onClick={() => setAwake(true)}>
        {s.sandboxes.wakeActions[status]}
      </Button>
    </Empty>
  );
}

const UNITS = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** `30m`, `1.5h` or `2d` in milliseconds; nothing for an empty text. */
export function milliseconds(text: string): number | undefined {
  if (text.trim() === "") return undefined;
  const found = /^(\d+(?:\.\d+)?)\s*([smhd])$/.exec(text.trim());
  if (!found) throw new Error(s.sandboxes.badTime(text));
  return Math.round(Number(found[1]) * UNITS[found[2] as keyof typeof UNITS]);
}

/** `KEY=VALUE`, one a line, or with commas between. */
export function pairs(text: string, separator: RegExp = /\n/): Record<string, string> {
  const lines = text.split(separator).map((line) => line.trim());
  return Object.fromEntries(
    lines.filter(Boolean).map((line) => {
      const at = line.indexOf("=");
      if (at < 1) throw new Error(s.newSandbox.badLine(line));
      return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    }),
  );
}

/** Metadata in a few words. */
export function metadataText(metadata: Record<string, unknown>): string {
  const word = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value));
  return Object.entries(metadata)
    .map(([key, value]) => `${key}=${word(value)}`)
    .join(", ");
}
