/** The terminals of a sandbox: processes with a terminal, which go on when no page shows them. */
import { useEffect, useRef, useState } from "preact/hooks";
import { get, send } from "../../lib/api";
import { safe } from "../../lib/format";
import { useLoad } from "../../lib/load";
import { replace } from "../../lib/route";
import { s } from "../../strings";
import { Button, Empty, ErrorBox, Field, Loaded, Safe, Section, Time } from "../../ui";
import { Check, Form, useField } from "../../ui/form";
import type { AttachState } from "./attach";
import { type ProcessList, type ProcessView, processPath, type SandboxView, sandboxPath, startProcess } from "./calls";
import { place } from "./parts";
import type { Screen } from "./screen";

/** The shell that people like best of those that there are. */
const SHELL = "command -v bash >/dev/null && exec bash; exec sh";
const TAG = "terminal";
const words = s.terminal;

type TerminalsProps = { view: SandboxView; item: number | undefined; onUse: () => void };

export function Terminals({ view, item, onUse }: TerminalsProps) {
  if (view.spec.processes !== "kept") return <Empty title={words.perCommand}>{words.perCommandText}</Empty>;
  if (item !== undefined) return <Terminal key={item} sandbox={view.id} id={item} />;
  return <Start sandbox={view.id} onUse={onUse} />;
}

function Start({ sandbox, onUse }: { sandbox: string; onUse: () => void }) {
  const command = useField();
  const loaded = useLoad(
    (signal) => get<ProcessList>(sandboxPath(sandbox, "/processes"), { state: "running" }, signal),
    [sandbox],
  );
  const open = async () => {
    const shell = command.value.trim() || SHELL;
    const pty = { cols: 80, rows: 24 };
    const { id } = await startProcess(sandbox, { command: { shell }, stdin: true, tag: TAG, pty });
    onUse();
    replace(place(sandbox, "terminal", id));
  };
  return (
    <div class="stack narrow">
      <Form action={words.open} onSubmit={open} onCancel={undefined}>
        <p class="muted">{words.text}</p>
        <Field label={words.command} hint={words.commandHint} {...command} />
      </Form>
      <Loaded of={loaded}>
        {({ processes }) => {
          const terminals = processes.filter((process) => process.pty);
          if (terminals.length === 0) return null;
          return (
            <Section title={words.running}>
              {terminals.map(({ id, command, started_at }) => (
                <p key={id} class="row">
                  <a href={place(sandbox, "terminal", id)}>{s.processes.title(id)}</a>
                  <code>{safe(command)}</code>
                  <Time at={started_at} />
                </p>
              ))}
            </Section>
          );
        }}
      </Loaded>
    </div>
  );
}

/** One terminal. Its screen is a chunk of its own. */
function Terminal({ sandbox, id }: { sandbox: string; id: number }) {
  const host = useRef<HTMLDivElement>(null);
  const leave = useRef<HTMLButtonElement>(null);
  const screen = useRef<Screen | null>(null);
  const [state, setState] = useState<AttachState>("connecting");
  const [why, setWhy] = useState<unknown>();
  const [notice, setNotice] = useState<string>();
  const [readAloud, setReadAloud] = useState(false);

  useEffect(() => {
    const abort = new AbortController();
    const show = (now: AttachState, reason?: unknown) => {
      setState(now);
      setWhy(reason);
    };
    const start = async () => {
      const path = processPath(sandbox, id);
      const [{ openScreen }, process] = await Promise.all([
        import("./screen"),
        get<ProcessView>(path, {}, abort.signal),
      ]);
      if (abort.signal.aborted || !host.current) return;
      const leaveIt = () => leave.current?.focus();
      screen.current = openScreen(host.current, sandbox, process, { state: show, notice: setNotice, leave: leaveIt });
      screen.current.focus();
    };
    start().catch((problem) => {
      if (!abort.signal.aborted) show("gone", problem);
    });
    return () => {
      abort.abort();
      screen.current?.dispose();
    };
  }, [sandbox, id]);
  useEffect(() => screen.current?.readAloud(readAloud), [readAloud]);

  const isOver = state === "ended" || state === "gone";
  return (
    <div class="stack">
      <div class="row">
        <p class={`terminal-state ${state}`} role="status">
          {words.states[state]} {notice && <Safe text={notice} />}
        </p>
        <span class="actions">
          <span class="muted small">{words.keys}</span>
          <button ref={leave} type="button" class="button quiet" onClick={() => screen.current?.focus()}>
            {words.leave}
          </button>
          <Check label={words.screenReader} checked={readAloud} onChange={setReadAloud} />
          {!isOver && (
            <Button
              kind="quiet"
              onClick={() => void send("DELETE", processPath(sandbox, id)).catch(setWhy)}
              label={words.stop}
            />
          )}
          <a href={place(sandbox, "terminal")}>{words.all}</a>
        </span>
      </div>
      {why !== undefined && <ErrorBox error={why} />}
      <section ref={host} class="terminal-screen" aria-label={words.label(id)} />
    </div>
  );
}
