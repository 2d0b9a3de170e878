/** One sandbox: what it is, what can be done with it, and what is in it. */
import { useEffect, useState } from "preact/hooks";
import { type ApiError, get, send } from "../../lib/api";
import { safe, time } from "../../lib/format";
import { usePoll } from "../../lib/load";
import { go, href, replace } from "../../lib/route";
import { milliseconds } from "../../lib/typed";
import { s } from "../../strings";
import { Button, Confirm, Empty, Field, Loaded, Page, Safe, Tabs, Time, useAction } from "../../ui";
import { Ask, useField } from "../../ui/form";
import { type SandboxView, sandboxPath } from "./calls";
import { Files } from "./files";
import { Overview } from "./overview";
import { Awake, isGone, place, rest, StatusBadge } from "./parts";
import { Ports } from "./ports";
import { Processes } from "./processes";
import { Terminals } from "./terminal";

const EVERY_MS = 5_000;
const words = s.sandboxes;

type Place = { id: string; tab: string; item: number | undefined };

export function Sandbox(props: Place) {
  const [gone, setGone] = useState<ApiError>();
  // A sandbox that is gone is not asked for again.
  if (!gone) return <Living {...props} onGone={setGone} />;
  return (
    <Page title={words.gone}>
      <Empty title={safe(gone.message)}>
        <p>{words.goneText}</p>
        <a href={href(["sandboxes"])}>{words.toList}</a>
      </Empty>
    </Page>
  );
}

function Living({ id, tab, item, onGone }: Place & { onGone: (error: ApiError) => void }) {
  const loaded = usePoll((signal) => get<SandboxView>(sandboxPath(id), {}, signal), EVERY_MS, [id]);
  const { error, reload } = loaded;
  useEffect(() => {
    if (isGone(error)) onGone(error);
  }, [error, onGone]);
  return (
    <Loaded of={loaded}>
      {(view) => (
        <Page title={safe(view.name ?? view.id)} actions={<Actions view={view} onChange={reload} />}>
          <p class="row">
            <StatusBadge view={view} />
            <span class="muted">
              {words.expires} <Time at={view.expires_at} />
            </span>
          </p>
          <Tabs
            label={words.tabsLabel}
            tabs={tabsOf(view, item, reload)}
            active={tab}
            onChange={(chosen) => replace(place(id, chosen))}
          />
        </Page>
      )}
    </Loaded>
  );
}

function tabsOf(view: SandboxView, item: number | undefined, onUse: () => void) {
  const props = { view, item, onUse };
  const { overview, terminal, processes, files, ports } = words.tabs;
  return [
    { id: "overview", label: overview, content: () => <Overview view={view} /> },
    { id: "terminal", label: terminal, content: () => <Awake view={view}>{() => <Terminals {...props} />}</Awake> },
    { id: "processes", label: processes, content: () => <Processes {...props} /> },
    { id: "files", label: files, content: () => <Awake view={view}>{() => <Files view={view} />}</Awake> },
    { id: "ports", label: ports, content: () => <Awake view={view}>{() => <Ports view={view} />}</Awake> },
  ];
}

function Actions({ view, onChange }: { view: SandboxView; onChange: () => void }) {
  const [open, setOpen] = useState<"extend" | "delete">();
  const { busy, run, failure } = useAction();
  const lifetime = useField("1h");
  const isPaused = view.status === "paused";
  const close = () => setOpen(undefined);
  const pause = () => rest().then(() => send("POST", sandboxPath(view.id, isPaused ? "/resume" : "/pause")));
  const extend = async () => {
    await send("PATCH", sandboxPath(view.id), { ttl_ms: milliseconds(lifetime.value) });
    onChange();
  };
  const remove = async () => {
    await send("DELETE", sandboxPath(view.id)).catch((error) => {
      if (!isGone(error)) throw error;
    });
    go(href(["sandboxes"]));
  };
  return (
    <>
      {(isPaused || view.status === "ready") && (
        <Button
          busy={busy}
          onClick={() => void run(pause).then(onChange)}
          label={isPaused ? words.resume : words.pause}
        />
      )}
      <a class="button" href={href(["sandboxes", "new"], { like: view.id })}>
        {words.like}
      </a>
      <Button onClick={() => setOpen("extend")} label={words.extend} />
      <Button kind="danger" onClick={() => setOpen("delete")} label={words.delete} />
      {failure}
      {open === "extend" && (
        <Ask title={words.extend} action={words.extend} onSubmit={extend} onClose={close}>
          <p>{words.extendText(time(view.max_expires_at))}</p>
          <Field label={words.lifetime} hint={words.lifetimeHint} {...lifetime} required />
        </Ask>
      )}
      {open === "delete" && (
        <Confirm title={words.deleteTitle} action={words.delete} onConfirm={remove} onClose={close}>
          <strong>
            <Safe text={view.name ?? view.id} />
          </strong>
          <p>{words.deleteText}</p>
        </Confirm>
      )}
    </>
  );
}
