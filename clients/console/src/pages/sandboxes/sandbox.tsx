/** One sandbox: what it is, what can be done with it, and what is in it. */
import { useEffect, useState } from "preact/hooks";
import { type ApiError, get, send } from "../../lib/api";
import { safe, time } from "../../lib/format";
import { usePoll } from "../../lib/load";
import { go, href, replace } from "../../lib/route";
import { s } from "../../strings";
import { Button, Confirm, Copy, Dialog, ErrorBox, Field, Page, Section, Spinner, Tabs, Time, Tree } from "../../ui";
import { Files } from "./files";
import { Awake, Gone, isGone, milliseconds, Safe, StatusBadge } from "./parts";
import { Ports } from "./ports";
import { Processes } from "./processes";
import { Terminals } from "./terminal";
import { type SandboxView, sandboxPath } from "./wire";

const EVERY_MS = 5_000;

type Place = { id: string; tab: string; item: string | undefined };

export function Sandbox(props: Place) {
  const [gone, setGone] = useState<ApiError>();
  // A sandbox that is gone is not asked for again.
  return gone ? <Gone error={gone} /> : <Living {...props} onGone={setGone} />;
}

function Living({ id, tab, item, onGone }: Place & { onGone: (error: ApiError) => void }) {
  const {
    data: view,
    error,
    reload,
  } = usePoll(
    (signal) => get<SandboxView>(sandboxPath(id), {}, signal),
    EVERY_MS,
    [id],
    (before, now) => (JSON.stringify(before) === JSON.stringify(now) && before ? before : now),
  );
  useEffect(() => {
    if (isGone(error)) onGone(error);
  }, [error, onGone]);
  if (!view) return error ? <ErrorBox error={error} onRetry={reload} /> : <Spinner />;
  const tabs = [
    { id: "overview", label: s.sandboxes.tabs.overview, content: () => <Overview view={view} /> },
    {
      id: "terminal",
      label: s.sandboxes.tabs.terminal,
      content: () => <Awake view={view}>{() => <Terminals view={view} item={item} onUse={reload} />}</Awake>,
    },
    {
      id: "processes",
      label: s.sandboxes.tabs.processes,
      content: () => <Processes view={view} item={item} onUse={reload} />,
    },
    {
      id: "files",
      label: s.sandboxes.tabs.files,
      content: () => <Awake view={view}>{() => <Files view={view} />}</Awake>,
    },
    {
      id: "ports",
      label: s.sandboxes.tabs.ports,
      content: () => <Awake view={view}>{() => <Ports view={view} />}</Awake>,
    },
  ];
  return (
    <Page title={safe(view.name ?? view.id)} actions={<Actions view={view} onChange={reload} />}>
      <p class="row">
        <StatusBadge view={view} />
        <span class="muted">
          {s.sandboxes.expires} <Time at={view.expires_at} />
        </span>
      </p>
      {error && !isGone(error) && <ErrorBox error={error} onRetry={reload} />}
      <Tabs
        label={s.sandboxes.tabsLabel}
        tabs={tabs}
        active={tab}
        onChange={(chosen) => replace(href(["sandboxes", id, chosen]))}
      />
    </Page>
  );
}

function Actions({ view, onChange }: { view: SandboxView; onChange: () => void }) {
  const [open, setOpen] = useState<"extend" | "delete">();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const isPaused = view.status === "paused";
  const pause = async () => {
    setBusy(true);
    setError(undefined);
    try {
      await send("POST", sandboxPath(view.id, isPaused ? "/resume" : "/pause"));
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
    onChange();
  };
  const remove = async () => {
    try {
      await send("DELETE", sandboxPath(view.id));
    } catch (failure) {
      if (!isGone(failure)) throw failure;
    }
    go(href(["sandboxes"]));
  };
  return (
    <>
      {(isPaused || view.status === "ready") && (
        <Button busy={busy} onClick={() => void pause()}>
          {isPaused ? s.sandboxes.resume : s.sandboxes.pause}
        </Button>
      )}
      <Button onClick={() => setOpen("extend")}>{s.sandboxes.extend}</Button>
      <Button kind="danger" onClick={() => setOpen("delete")}>
        {s.sandboxes.delete}
      </Button>
      {error !== undefined && <ErrorBox error={error} />}
      {open === "extend" && <Extend view={view} onDone={onChange} onClose={() => setOpen(undefined)} />}
      {open === "delete" && (
        <Confirm
          title={s.sandboxes.deleteTitle}
          action={s.sandboxes.delete}
          onConfirm={remove}
          onClose={() => setOpen(undefined)}
        >
          <p>
            <strong>
              <Safe text={view.name ?? view.id} />
            </strong>
          </p>
          <p>{s.sandboxes.deleteText}</p>
        </Confirm>
      )}
    </>
  );
}

type ExtendProps = { view: SandboxView; onDone: () => void; onClose: () => void };

function Extend({ view, onDone, onClose }: ExtendProps) {
  const [text, setText] = useState("1h");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const submit = async () => {
    setBusy(true);
    setError(undefined);
    try {
      const ttl = milliseconds(text);
      if (ttl === undefined) throw new Error(s.sandboxes.badTime(text));
      await send("PATCH", sandboxPath(view.id), { ttl_ms: ttl });
      onDone();
      onClose();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return (
    <Dialog title={s.sandboxes.extend} onClose={onClose}>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <p>{s.sandboxes.extendText(time(view.max_expires_at))}</p>
        <Field label={s.sandboxes.lifetime} hint={s.sandboxes.lifetimeHint} value={text} onInput={setText} required />
        {error !== undefined && <ErrorBox error={error} />}
        <div class="actions">
          <Button onClick={onClose}>{s.ui.cancel}</Button>
          <Button kind="primary" submit busy={busy}>
            {s.sandboxes.extend}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function Overview({ view }: { view: SandboxView }) {
  const { spec } = view;
  const ports = spec.ports === "any" ? s.sandboxes.any : (spec.ports ?? []).join(", ") || s.sandboxes.nobody;
  const allow = spec.network?.allow ?? [];
  const limits = Object.fromEntries(Object.entries(spec.limits ?? {}).filter(([, value]) => value !== null));
  const words = s.sandboxes;
  return (
    <div class="columns">
      <Section title={words.tabs.overview}>
        <dl class="facts">
          <dt>{words.id}</dt>
          <dd>
            <code>{view.id}</code> <Copy text={view.id} />
          </dd>
          <dt>{words.image}</dt>
          <dd>
            <Safe text={spec.image ?? words.noImage} />
          </dd>
          <dt>{words.processes}</dt>
          <dd>
            {view.processes ?? s.ui.unknown}, {words.kept[spec.processes ?? "per_command"]}
          </dd>
          <dt>{words.generation}</dt>
          <dd>{view.generation}</dd>
          <dt>{words.created}</dt>
          <dd>
            <Time at={view.created_at} />
          </dd>
          <dt>{words.lastUsed}</dt>
          <dd>
            <Time at={view.last_used_at} />
          </dd>
          <dt>{words.idle}</dt>
          <dd>
            {words.idleAt[view.idle]} {view.idle_at ? <Time at={view.idle_at} /> : `(${words.inUse})`}
          </dd>
          <dt>{words.expires}</dt>
          <dd>
            <Time at={view.expires_at} />
          </dd>
          <dt>{words.extendable}</dt>
          <dd>
            <Time at={view.max_expires_at} />
          </dd>
          <dt>{words.openPorts}</dt>
          <dd>{ports}</dd>
          <dt>{words.network}</dt>
          <dd>
            <Safe text={allow.join(", ") || words.nobody} />
          </dd>
          <dt>{words.filesScope}</dt>
          <dd>{words.scopes[spec.files ?? "io"]}</dd>
        </dl>
      </Section>
      {Object.keys(view.metadata).length > 0 && (
        <Section title={words.metadata}>
          <Tree value={view.metadata} />
        </Section>
      )}
      {Object.keys(limits).length > 0 && (
        <Section title={words.limits}>
          <Tree value={limits} />
        </Section>
      )}
    </div>
  );
}
