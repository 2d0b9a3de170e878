/** What several pages of sandboxes have in common. */
import { type ComponentChildren, Fragment } from "preact";
import { useState } from "preact/hooks";
import { ApiError } from "../../lib/api";
import { safe } from "../../lib/format";
import { href } from "../../lib/route";
import { s } from "../../strings";
import { Badge, Button, Dialog, Empty, ErrorBox, Select, type Tone } from "../../ui";
import type { SandboxView } from "./wire";

const TONES: Record<SandboxView["status"], Tone> = { starting: "info", ready: "ok", paused: "warn", stopped: "muted" };

export function StatusBadge({ view }: { view: SandboxView }) {
  if (view.node_away) return <Badge tone="bad">{s.sandboxes.away}</Badge>;
  return <Badge tone={TONES[view.status]}>{s.sandboxes.statuses[view.status] ?? safe(view.status)}</Badge>;
}

/** A place in a sandbox. */
export function place(sandbox: string, tab: string, item?: number): string {
  return href(["sandboxes", sandbox, tab, ...(item === undefined ? [] : [String(item)])]);
}

/** A text of a guest or of another client on one line. */
export function Safe({ text }: { text: string }) {
  return <bdi>{safe(text)}</bdi>;
}

/** Names and what they stand for; those without are left out. */
export function Facts({ of }: { of: readonly (readonly [string, ComponentChildren])[] }) {
  const known = of.filter(([, value]) => value !== undefined && value !== null);
  return (
    <dl class="facts">
      {known.map(([name, value]) => (
        <Fragment key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </Fragment>
      ))}
    </dl>
  );
}

/** The state of an input, for a `Field`. */
export function useField(initial = "") {
  const [value, onInput] = useState(initial);
  return { value, onInput };
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

type ChoiceProps<T extends string> = { label: string; value: T; of: Record<T, string>; onChange: (value: T) => void };

/** A choice of what a section of the strings names. */
export function Choice<T extends string>({ of, ...rest }: ChoiceProps<T>) {
  const options = Object.entries<string>(of).map(([value, label]) => ({ value: value as T, label }));
  return <Select {...rest} options={options} />;
}

/** Something that the service is asked for, one at a time, and why it failed. */
export function useAction() {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const run = async (action: () => Promise<unknown>) => {
    setBusy(true);
    setError(undefined);
    await action().catch(setError);
    setBusy(false);
  };
  return { busy, run, failure: error === undefined ? null : <ErrorBox error={error} /> };
}

type FormProps = { action: string; onSubmit: () => Promise<unknown>; children: ComponentChildren };

export function Form({ action, onSubmit, onCancel, children }: FormProps & { onCancel: (() => void) | undefined }) {
  const { busy, run, failure } = useAction();
  const submit = (event: Event) => {
    event.preventDefault();
    // What the input lacks is found in there, too.
    void run(async () => onSubmit());
  };
  return (
    <form class="form" onSubmit={submit}>
      {children}
      {failure}
      <div class="row">
        <Button kind="primary" submit busy={busy}>
          {action}
        </Button>
        {onCancel && <Button onClick={onCancel}>{s.ui.cancel}</Button>}
      </div>
    </form>
  );
}

/** A form in a dialog, which is closed when it has been done. */
export function Ask({ title, onClose, onSubmit, ...rest }: FormProps & { title: string; onClose: () => void }) {
  return (
    <Dialog title={title} onClose={onClose}>
      <Form {...rest} onCancel={onClose} onSubmit={() => onSubmit().then(onClose)} />
    </Dialog>
  );
}

/** Whether there is no such sandbox, or no longer. */
export function isGone(error: unknown): error is ApiError {
  return error instanceof ApiError && (error.status === 404 || error.status === 410);
}

/** What wakes a sandbox is not done because a tab was looked at. */
export function Awake({ view, children }: { view: SandboxView; children: () => ComponentChildren }) {
  const { status } = view;
  const asleep = status === "paused" || status === "stopped" ? status : undefined;
  const [isWanted, setWanted] = useState(!asleep);
  if (isWanted || !asleep) return <>{children()}</>;
  return (
    <Empty title={s.sandboxes.wake(s.sandboxes.statuses[asleep])}>
      <p>{s.sandboxes.wakeTexts[asleep]}</p>
      <Button kind="primary" onClick={() => setWanted(true)}>
        {s.sandboxes.wakeActions[asleep]}
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
  const split = lines.filter(Boolean).map((line) => {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(s.newSandbox.badLine(line));
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
  return Object.fromEntries(split);
}
