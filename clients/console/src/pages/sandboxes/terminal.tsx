/** The terminals of a sandbox: processes with a terminal, which go on when nobody looks at them. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, send } from "../../lib/api";
import { useLoad } from "../../lib/load";
import { href, replace } from "../../lib/route";
import { s } from "../../strings";
import { Button, type Column, Empty, ErrorBox, Field, Section, Table, Time } from "../../ui";
import type { AttachState } from "./attach";
import { Check, Safe } from "./parts";
import type { Screen } from "./screen";
import {
  type ProcessList,
  type ProcessRequest,
  type ProcessView,
  processPath,
  type SandboxView,
  sandboxPath,
} from "./wire";

/** The shell that people like best of those that there are. */
const SHELL = "command -v bash >/dev/null && exec bash; exec sh";

const TAG = "terminal";

type TerminalsProps = { view: SandboxView; item: string | undefined; onUse: () => void };

export function Terminals({ view, item, onUse }: TerminalsProps) {
  if (view.spec.processes !== "kept") return <Empty title={s.terminal.perCommand}>{s.terminal.perCommandText}</Empty>;
  const chosen = item === undefined ? undefined : Number(item);
  if (chosen !== undefined && Number.isInteger(chosen)) return <Terminal key={chosen} sandbox={view.id} id={chosen} />;
  return <Choice sandbox={view.id} onUse={onUse} />;
}

function Choice({ sandbox, onUse }: { sandbox: string; onUse: () => void }) {
  const [command, setCommand] = useState("");
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState<unknown>();
  const { data, error, reload } = useLoad(
    (signal) => get<ProcessList>(sandboxPath(sandbox, "/processes"), { state: "running" }, signal),
    [sandbox],
  );
  const open = async () => {
    setBusy(true);
    setFailure(undefined);
    const request: ProcessRequest = {
      command: { shell: command.trim() || SHELL },
      stdin: true,
      tag: TAG,
      pty: { cols: 80, rows: 24 },
    };
    try {
      const { id } = await send<ProcessView>("POST", sandboxPath(sandbox, "/processes"), request);
      onUse();
      replace(href(["sandboxes", sandbox, "terminal", String(id)]));
    } catch (problem) {
      setFailure(problem);
      setBusy(false);
    }
  };
  const columns = useMemo(() => columnsOf(sandbox), [sandbox]);
  const terminals = (data?.processes ?? []).filter((process) => process.pty);
  return (
    <div class="stack">
      <form
        class="form narrow"
        onSubmit={(event) => {
          event.preventDefault();
          void open();
        }}
      >
        <p class="muted">{s.terminal.text}</p>
        <Field label={s.terminal.command} hint={s.terminal.commandHint} value={command} onInput={setCommand} />
        {failure !== undefined && <ErrorBox error={failure} />}
        <div class="row">
          <Button kind="primary" submit busy={busy}>
            {s.terminal.open}
          </Button>
        </div>
      </form>
      {error && <ErrorBox error={error} onRetry={reload} />}
      {terminals.length > 0 && (
        <Section title={s.terminal.running}>
          <Table
            caption={s.terminal.running}
            columns={columns}
            rows={terminals}
            keyOf={(process) => String(process.id)}
          />
        </Section>
      )}
    </div>
  );
}

function columnsOf(sandbox: string): Column<ProcessView>[] {
  return [
    {
      key: "process",
      head: s.terminal.process,
      class: "tight",
      cell: ({ id }) => <a href={href(["sandboxes", sandbox, "terminal", String(id)])}>{s.processes.title(id)}</a>,
    },
    {
      key: "command",
      head: s.terminal.command,
      class: "name",
      cell: ({ command }) => (
        <code>
          <Safe text={command} />
        </code>
      ),
    },
    {
      key: "started",
      head: s.terminal.started,
      class: "tight",
      cell: ({ started_at }) => <Time at={started_at} />,
    },
  ];
}

/** One terminal. Its screen is a chunk of its own. */
function Terminal({ sandbox, id }: { sandbox: string; id: number }) {
  const host = useRef<HTMLDivElement>(null);
  const leave = useRef<HTMLButtonElement>(null);
  const screen = useRef<Screen | null>(null);
  const [state, setState] = useState<AttachState>("connecting");
  const [why, setWhy] = useState<unknown>();
  const [exit, setExit] = useState<string>();
  const [notice, setNotice] = useState<string>();
  const [readAloud, setReadAloud] = useState(false);

  useEffect(() => {
    const abort = new AbortController();
    const start = async () => {
      const [{ openScreen }, process] = await Promise.all([
        import("./screen"),
        get<ProcessView>(processPath(sandbox, id), {}, abort.signal),
      ]);
      if (abort.signal.aborted || !host.current) return;
      screen.current = openScreen(host.current, sandbox, process, {
        state: (now, reason) => {
          setState(now);
          setWhy(reason);
        },
        exit: (code, signal) => setExit(s.terminal.exited(code, signal)),
        omitted: () => setNotice(s.terminal.omitted),
        problem: setNotice,
        leave: () => leave.current?.focus(),
      });
      screen.current.focus();
    };
    start().catch((problem) => {
      if (abort.signal.aborted) return;
      setState("gone");
      setWhy(problem);
    });
    return () => {
      abort.abort();
      screen.current?.dispose();
      screen.current = null;
    };
  }, [sandbox, id]);
  useEffect(() => screen.current?.readAloud(readAloud), [readAloud]);

  const isOver = state === "ended" || state === "gone";
  return (
    <div class="stack terminal">
      <div class="row">
        <p class={`terminal-state ${state}`} role="status">
          {exit} {s.terminal.states[state]} {notice && <Safe text={notice} />}
        </p>
        <span class="actions">
          <span class="muted small">{s.terminal.keys}</span>
          <button ref={leave} type="button" class="button quiet" onClick={() => screen.current?.focus()}>
            {s.terminal.leave}
          </button>
          <Check label={s.terminal.screenReader} checked={readAloud} onChange={setReadAloud} />
          {!isOver && (
            <Button kind="quiet" onClick={() => void send("DELETE", processPath(sandbox, id)).catch(setWhy)}>
              {s.terminal.stop}
            </Button>
          )}
          <a href={href(["sandboxes", sandbox, "terminal"])}>{s.terminal.all}</a>
        </span>
      </div>
      {why !== undefined && <ErrorBox error={why} />}
      <section ref={host} class="terminal-screen" aria-label={s.terminal.label(id)} />
    </div>
  );
}
