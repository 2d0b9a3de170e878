/** The processes of a sandbox, and one of them with its output as it comes. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { OutputBuffer } from "../../lib/ansi";
import { follow, get, send } from "../../lib/api";
import { bytes, duration } from "../../lib/format";
import { keep, usePoll } from "../../lib/load";
import { replace } from "../../lib/route";
import type { ExecutionEvent } from "../../lib/wire";
import { s } from "../../strings";
import {
  Badge,
  Button,
  type Column,
  Empty,
  ErrorBox,
  Field,
  Loaded,
  Output,
  Section,
  Table,
  Time,
  type Tone,
} from "../../ui";
import { Ask, Check, Choice, Facts, milliseconds, place, Safe, useAction, useField } from "./parts";
import {
  fromBase64,
  type ProcessList,
  type ProcessView,
  processPath,
  type SandboxView,
  sandboxPath,
  startProcess,
} from "./wire";

const EVERY_MS = 3_000;
/** What has ended does not change. */
const NEVER_MS = 2 ** 31 - 1;
const TONES: Record<ProcessView["state"], Tone> = { running: "ok", left: "warn", ended: "muted" };
const words = s.processes;

type ProcessesProps = { view: SandboxView; item: number | undefined; onUse: () => void };

export function Processes({ view, item, onUse }: ProcessesProps) {
  if (view.spec.processes !== "kept") return <Empty title={words.perCommand}>{words.perCommandText}</Empty>;
  if (item !== undefined) return <Process key={item} sandbox={view.id} id={item} />;
  return <All sandbox={view.id} onUse={onUse} />;
}

function All({ sandbox, onUse }: { sandbox: string; onUse: () => void }) {
  const [isAsked, setAsked] = useState(false);
  const columns = useMemo(() => columnsOf(sandbox), [sandbox]);
  // A list is no use of the sandbox: it does not keep it awake.
  const loaded = usePoll(
    (signal) => get<ProcessList>(sandboxPath(sandbox, "/processes"), {}, signal),
    EVERY_MS,
    [sandbox],
    (before, now) => ({ processes: keep(before?.processes, now.processes, keyOf) }),
  );
  const started = ({ id }: ProcessView) => {
    onUse();
    replace(place(sandbox, "processes", id));
  };
  return (
    <div class="stack">
      <div class="row">
        <Button kind="primary" onClick={() => setAsked(true)}>
          {words.start}
        </Button>
      </div>
      <Loaded of={loaded} isEmpty={({ processes }) => processes.length === 0} none={words.none}>
        {({ processes }) => <Table caption={s.sandboxes.processes} columns={columns} rows={processes} keyOf={keyOf} />}
      </Loaded>
      {isAsked && <Start sandbox={sandbox} onClose={() => setAsked(false)} onStarted={started} />}
    </div>
  );
}

const keyOf = ({ generation, id }: ProcessView) => `${generation}-${id}`;

function columnsOf(sandbox: string): Column<ProcessView>[] {
  const name = ({ id, command, tag }: ProcessView) => (
    <div>
      <a href={place(sandbox, "processes", id)}>
        {id} {tag !== null && <Safe text={tag} />}
      </a>
      <div class="muted small mono">
        <Safe text={command} />
      </div>
    </div>
  );
  const known = (n: number | null, format: (n: number) => string) => (n === null ? s.ui.none : format(n));
  return [
    { head: words.command, class: "name", cell: name },
    { head: words.state, class: "tight", cell: stateOf },
    { head: words.exit, class: "tight", cell: exitOf },
    { head: words.cpu, class: "number", cell: ({ cpu_ms }) => known(cpu_ms, duration) },
    { head: words.memory, class: "number", cell: ({ peak_memory_bytes }) => known(peak_memory_bytes, bytes) },
    { head: words.started, class: "tight", cell: ({ started_at }) => <Time at={started_at} /> },
  ];
}

function stateOf({ state }: ProcessView) {
  return <Badge tone={TONES[state]}>{words.states[state]}</Badge>;
}

function exitOf({ exit_code, signal, stopped, out_of_memory }: ProcessView): string {
  const how = signal !== null ? words.signalled(signal) : (exit_code ?? s.ui.none);
  const reasons = [stopped && words.stopped[stopped], out_of_memory && words.outOfMemory].filter(Boolean);
  return reasons.length > 0 ? `${how} (${reasons.join(", ")})` : String(how);
}

type StartProps = { sandbox: string; onStarted: (process: ProcessView) => void; onClose: () => void };

function Start({ sandbox, onStarted, onClose }: StartProps) {
  const command = useField();
  const tag = useField();
  const timeout = useField();
  const [stdin, setStdin] = useState(false);
  const start = async () => {
    const timeout_ms = milliseconds(timeout.value);
    const shell = command.value;
    onStarted(
      await startProcess(sandbox, { command: { shell }, tag: tag.value.trim() || undefined, stdin, timeout_ms }),
    );
  };
  return (
    <Ask title={words.start} action={words.start} onSubmit={start} onClose={onClose}>
      <Field label={words.shell} {...command} rows={3} required />
      <Field label={words.tag} hint={words.tagHint} {...tag} />
      <Field label={words.timeout} hint={words.timeoutHint} {...timeout} />
      <Check label={words.stdin} checked={stdin} onChange={setStdin} />
    </Ask>
  );
}

function Process({ sandbox, id }: { sandbox: string; id: number }) {
  const [isOver, setOver] = useState(false);
  const loaded = usePoll(
    (signal) => get<ProcessView>(processPath(sandbox, id), {}, signal),
    isOver ? NEVER_MS : EVERY_MS,
    [sandbox, id],
  );
  const { data, reload } = loaded;
  useEffect(() => {
    if (data?.state === "ended") setOver(true);
  }, [data]);
  return (
    <div class="stack">
      <a href={place(sandbox, "processes")}>{words.all}</a>
      <Loaded of={loaded}>
        {(process) => (
          <>
            <Section title={words.title(id)} actions={stateOf(process)}>
              <Facts
                of={[
                  [words.command, <code key="">{<Safe text={process.command} />}</code>],
                  [words.tag, process.tag && <Safe text={process.tag} />],
                  [words.pid, process.pid],
                  [words.started, <Time key="" at={process.started_at} />],
                  [words.exit, process.exited_at && exitOf(process)],
                ]}
              />
              {process.state !== "ended" && <Controls sandbox={sandbox} process={process} onDone={reload} />}
            </Section>
            <LiveOutput sandbox={sandbox} id={id} generation={process.generation} onEnd={reload} />
          </>
        )}
      </Loaded>
    </div>
  );
}

/** Input, signals and the end. */
function Controls({ sandbox, process, onDone }: { sandbox: string; process: ProcessView; onDone: () => void }) {
  const line = useField();
  const [signal, setSignal] = useState<keyof typeof words.signals>("TERM");
  const [to, setTo] = useState<keyof typeof words.targets>("group");
  const { run, failure } = useAction();
  const ask = (method: "POST" | "DELETE", rest: string, body?: unknown) => {
    const query = { generation: process.generation };
    return run(() => send(method, processPath(sandbox, process.id, rest), body, { query })).then(onDone);
  };
  const sendLine = (event: Event) => {
    event.preventDefault();
    void ask("POST", "/stdin", new TextEncoder().encode(`${line.value}\n`)).then(() => line.onInput(""));
  };
  return (
    <>
      {process.pty && <a href={place(sandbox, "terminal", process.id)}>{words.terminal}</a>}
      <form class="line" onSubmit={sendLine}>
        <Field label={words.input} {...line} />
        <Button submit>{words.send}</Button>
        <Button onClick={() => void ask("POST", "/stdin/close")}>{words.closeInput}</Button>
      </form>
      <div class="line">
        <Choice label={words.signal} value={signal} of={words.signals} onChange={setSignal} />
        <Choice label={words.to} value={to} of={words.targets} onChange={setTo} />
        <Button onClick={() => void ask("POST", "/signal", { signal, to })}>{words.sendSignal}</Button>
        <Button kind="danger" title={words.stopHint} onClick={() => void ask("DELETE", "")}>
          {words.stop}
        </Button>
      </div>
      {failure}
    </>
  );
}

type LiveProps = { sandbox: string; id: number; generation: number; onEnd: () => void };

function LiveOutput({ sandbox, id, generation, onEnd }: LiveProps) {
  const buffer = useMemo(() => new OutputBuffer(), [sandbox, id, generation]);
  const [isLost, setLost] = useState(false);
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    const abort = new AbortController();
    const { signal } = abort;
    const take = reader(buffer);
    const path = processPath(sandbox, id, `/events?generation=${generation}`);
    const onState = (state: "live" | "lost") => setLost(state === "lost");
    follow(path, ({ data }) => take(data), { signal, onState })
      .then(() => signal.aborted || onEnd())
      .catch((failure) => signal.aborted || setError(failure));
    return () => abort.abort();
  }, [buffer]);
  return (
    <Section title={words.outputTitle}>
      {isLost && <p role="status">{words.lost}</p>}
      {error !== undefined && <ErrorBox error={error} />}
      <Output buffer={buffer} label={words.output(id)} />
    </Section>
  );
}

/** Puts events into a buffer: output as whole characters, whatever the pieces in which it came. */
function reader(buffer: OutputBuffer): (event: ExecutionEvent) => void {
  const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  return ({ event, stream, text, encoding }) => {
    if (event === "omitted") buffer.line(words.omitted, "note");
    if (event !== "output") return;
    const source = stream === "stderr" ? "stderr" : "stdout";
    const piece = encoding === "base64" ? fromBase64(text ?? "") : new TextEncoder().encode(text ?? "");
    buffer.push(decoders[source].decode(piece, { stream: true }), source);
  };
}
