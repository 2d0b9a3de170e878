/** The processes of a sandbox, and one of them with its output as it comes. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { OutputBuffer } from "../../lib/ansi";
import { follow, get, send } from "../../lib/api";
import { bytes, duration } from "../../lib/format";
import { keep, usePoll } from "../../lib/load";
import { href, replace } from "../../lib/route";
import type { ExecutionEvent } from "../../lib/wire";
import { s } from "../../strings";
import {
  Badge,
  Button,
  type Column,
  Dialog,
  Empty,
  ErrorBox,
  Field,
  Output,
  Section,
  Select,
  Spinner,
  Table,
  Time,
  type Tone,
} from "../../ui";
import { Check, milliseconds, Safe } from "./parts";
import {
  fromBase64,
  type ProcessList,
  type ProcessRequest,
  type ProcessView,
  processPath,
  type SandboxView,
  type SignalName,
  type SignalTarget,
  sandboxPath,
} from "./wire";

const EVERY_MS = 3_000;
/** What has ended does not change. */
const NEVER_MS = 2 ** 31 - 1;
const SIGNALS: SignalName[] = ["TERM", "INT", "HUP", "QUIT", "KILL", "USR1", "USR2", "STOP", "CONT"];
const TARGETS: SignalTarget[] = ["group", "process", "foreground", "tree"];
const TONES: Record<ProcessView["state"], Tone> = { running: "ok", left: "warn", ended: "muted" };

type ProcessesProps = { view: SandboxView; item: string | undefined; onUse: () => void };

export function Processes({ view, item, onUse }: ProcessesProps) {
  if (view.spec.processes !== "kept") return <Empty title={s.processes.perCommand}>{s.processes.perCommandText}</Empty>;
  const chosen = item === undefined ? undefined : Number(item);
  if (chosen !== undefined && Number.isInteger(chosen)) return <Process key={chosen} sandbox={view.id} id={chosen} />;
  return <All sandbox={view.id} onUse={onUse} />;
}

function All({ sandbox, onUse }: { sandbox: string; onUse: () => void }) {
  const [starting, setStarting] = useState(false);
  const columns = useMemo(() => columnsOf(sandbox), [sandbox]);
  // A list is no use of the sandbox: it does not keep it awake.
  const { data, error, reload } = usePoll(
    (signal) => get<ProcessList>(sandboxPath(sandbox, "/processes"), {}, signal),
    EVERY_MS,
    [sandbox],
    (before, now) => ({ processes: keep(before?.processes, now.processes, (process) => String(process.id)) }),
  );
  return (
    <div class="stack">
      <div class="row">
        <Button kind="primary" onClick={() => setStarting(true)}>
          {s.processes.start}
        </Button>
      </div>
      {error && <ErrorBox error={error} onRetry={reload} />}
      {!data && !error && <Spinner />}
      {data?.processes.length === 0 && <Empty title={s.processes.none}>{s.processes.noneText}</Empty>}
      {data && data.processes.length > 0 && (
        <Table
          caption={s.sandboxes.processes}
          columns={columns}
          rows={data.processes}
          keyOf={(process) => `${process.generation}-${process.id}`}
        />
      )}
      {starting && (
        <Start
          sandbox={sandbox}
          onClose={() => setStarting(false)}
          onStarted={(process) => {
            onUse();
            replace(href(["sandboxes", sandbox, "processes", String(process.id)]));
          }}
        />
      )}
    </div>
  );
}

function columnsOf(sandbox: string): Column<ProcessView>[] {
  return [
    {
      key: "command",
      head: s.processes.command,
      class: "name",
      cell: ({ id, command, tag }) => (
        <div>
          <a href={href(["sandboxes", sandbox, "processes", String(id)])}>
            <span class="muted">{id}</span>{" "}
            <code>
              <Safe text={command} />
            </code>
          </a>
          {tag !== null && (
            <div class="muted small">
              <Safe text={tag} />
            </div>
          )}
        </div>
      ),
    },
    { key: "state", head: s.processes.state, class: "tight", cell: (process) => <State process={process} /> },
    { key: "exit", head: s.processes.exit, class: "tight", cell: exitOf },
    {
      key: "cpu",
      head: s.processes.cpu,
      class: "number",
      cell: ({ cpu_ms }) => (cpu_ms === null ? s.ui.none : duration(cpu_ms)),
    },
    {
      key: "memory",
      head: s.processes.memory,
      class: "number",
      cell: ({ peak_memory_bytes }) => (peak_memory_bytes === null ? s.ui.none : bytes(peak_memory_bytes)),
    },
    { key: "started", head: s.processes.started, class: "tight", cell: ({ started_at }) => <Time at={started_at} /> },
  ];
}

function State({ process }: { process: ProcessView }) {
  return <Badge tone={TONES[process.state]}>{s.processes.states[process.state]}</Badge>;
}

function exitOf({ exit_code, signal, stopped, out_of_memory }: ProcessView): string {
  const how = signal !== null ? s.processes.signalled(signal) : exit_code === null ? s.ui.none : String(exit_code);
  const reasons = [stopped && s.processes.stopped[stopped], out_of_memory && s.processes.outOfMemory].filter(Boolean);
  return reasons.length > 0 ? `${how} (${reasons.join(", ")})` : how;
}

type StartProps = { sandbox: string; onStarted: (process: ProcessView) => void; onClose: () => void };

function Start({ sandbox, onStarted, onClose }: StartProps) {
  const [command, setCommand] = useState("");
  const [tag, setTag] = useState("");
  const [stdin, setStdin] = useState(false);
  const [timeout, setTime] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const submit = async () => {
    setBusy(true);
    setError(undefined);
    try {
      const ms = milliseconds(timeout);
      const request: ProcessRequest = {
        command: { shell: command },
        ...(tag.trim() && { tag: tag.trim() }),
        ...(stdin && { stdin }),
        ...(ms !== undefined && { timeout_ms: ms }),
      };
      onStarted(await send<ProcessView>("POST", sandboxPath(sandbox, "/processes"), request));
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return (
    <Dialog title={s.processes.start} onClose={onClose}>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <Field label={s.processes.command} value={command} onInput={setCommand} rows={3} required />
        <Field label={s.processes.tag} hint={s.processes.tagHint} value={tag} onInput={setTag} />
        <Field label={s.processes.timeout} hint={s.processes.timeoutHint} value={timeout} onInput={setTime} />
        <Check label={s.processes.stdin} checked={stdin} onChange={setStdin} />
        {error !== undefined && <ErrorBox error={error} />}
        <div class="actions">
          <Button onClick={onClose}>{s.ui.cancel}</Button>
          <Button kind="primary" submit busy={busy}>
            {s.processes.start}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function Process({ sandbox, id }: { sandbox: string; id: number }) {
  const [over, setOver] = useState(false);
  const { data, error, reload } = usePoll(
    (signal) => get<ProcessView>(processPath(sandbox, id), {}, signal),
    over ? NEVER_MS : EVERY_MS,
    [sandbox, id],
  );
  useEffect(() => {
    if (data?.state === "ended") setOver(true);
  }, [data]);
  return (
    <div class="stack">
      <p>
        <a href={href(["sandboxes", sandbox, "processes"])}>{s.processes.all}</a>
      </p>
      {error && <ErrorBox error={error} onRetry={reload} />}
      {!data && !error && <Spinner />}
      {data && (
        <>
          <Section title={s.processes.title(id)} actions={<State process={data} />}>
            <Facts process={data} />
            {data.pty && data.state !== "ended" && (
              <p>
                <a href={href(["sandboxes", sandbox, "terminal", String(id)])}>{s.processes.terminal}</a>
              </p>
            )}
            {data.state !== "ended" && <Controls sandbox={sandbox} process={data} onDone={reload} />}
          </Section>
          <LiveOutput sandbox={sandbox} id={id} generation={data.generation} onEnd={reload} />
        </>
      )}
    </div>
  );
}

function Facts({ process }: { process: ProcessView }) {
  return (
    <dl class="facts">
      <dt>{s.processes.command}</dt>
      <dd>
        <code>
          <Safe text={process.command} />
        </code>
      </dd>
      <dt>{s.processes.pid}</dt>
      <dd>{process.pid}</dd>
      <dt>{s.processes.started}</dt>
      <dd>
        <Time at={process.started_at} />
      </dd>
      {process.exited_at && (
        <>
          <dt>{s.processes.exit}</dt>
          <dd>
            {exitOf(process)}, <Time at={process.exited_at} />
          </dd>
        </>
      )}
      {process.tag !== null && (
        <>
          <dt>{s.processes.tag}</dt>
          <dd>
            <Safe text={process.tag} />
          </dd>
        </>
      )}
    </dl>
  );
}

/** Input, signals and the end. */
function Controls({ sandbox, process, onDone }: { sandbox: string; process: ProcessView; onDone: () => void }) {
  const [line, setLine] = useState("");
  const [signal, setSignal] = useState<SignalName>("TERM");
  const [to, setTo] = useState<SignalTarget>("group");
  const [error, setError] = useState<unknown>();
  const perform = async (method: "POST" | "DELETE", rest: string, body?: unknown) => {
    setError(undefined);
    try {
      await send(method, processPath(sandbox, process.id, rest), body, { query: { generation: process.generation } });
      if (rest === "/stdin") setLine("");
    } catch (failure) {
      setError(failure);
    }
    onDone();
  };
  return (
    <>
      <form
        class="line"
        onSubmit={(event) => {
          event.preventDefault();
          void perform("POST", "/stdin", new TextEncoder().encode(`${line}\n`));
        }}
      >
        <Field label={s.processes.input} value={line} onInput={setLine} />
        <Button submit>{s.processes.send}</Button>
        <Button onClick={() => void perform("POST", "/stdin/close")}>{s.processes.closeInput}</Button>
      </form>
      <form
        class="line"
        onSubmit={(event) => {
          event.preventDefault();
          void perform("POST", "/signal", { signal, to });
        }}
      >
        <Select
          label={s.processes.signal}
          value={signal}
          options={SIGNALS.map((value) => ({ value, label: value }))}
          onChange={setSignal}
        />
        <Select
          label={s.processes.to}
          value={to}
          options={TARGETS.map((value) => ({ value, label: s.processes.targets[value] }))}
          onChange={setTo}
        />
        <Button submit>{s.processes.sendSignal}</Button>
        <Button kind="danger" title={s.processes.stopHint} onClick={() => void perform("DELETE", "")}>
          {s.processes.stop}
        </Button>
      </form>
      {error !== undefined && <ErrorBox error={error} />}
    </>
  );
}

type LiveProps = { sandbox: string; id: number; generation: number; onEnd: () => void };

function LiveOutput({ sandbox, id, generation, onEnd }: LiveProps) {
  const buffer = useMemo(() => new OutputBuffer(), [sandbox, id, generation]);
  const [lost, setLost] = useState(false);
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    const abort = new AbortController();
    const take = reader(buffer);
    follow(processPath(sandbox, id, `/events?generation=${generation}`), (event) => take(event.data), {
      signal: abort.signal,
      onState: (state) => setLost(state === "lost"),
    }).then(
      () => {
        if (!abort.signal.aborted) onEnd();
      },
      (failure) => {
        if (!abort.signal.aborted) setError(failure);
      },
    );
    return () => abort.abort();
  }, [buffer]);
  return (
    <Section title={s.processes.outputTitle}>
      {lost && <p role="status">{s.processes.lost}</p>}
      {error !== undefined && <ErrorBox error={error} />}
      <Output buffer={buffer} label={s.processes.output(id)} />
    </Section>
  );
}

/** Puts events into a buffer: output as whole characters, whatever the pieces in which it came. */
function reader(buffer: OutputBuffer): (event: ExecutionEvent) => void {
  const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  return (event) => {
    if (event.event === "omitted") buffer.line(s.processes.omitted, "note");
    if (event.event !== "output") return;
    const stream = event.stream === "stderr" ? "stderr" : "stdout";
    const text = event.text ?? "";
    const piece = event.encoding === "base64" ? fromBase64(text) : new TextEncoder().encode(text);
    buffer.push(decoders[stream].decode(piece, { stream: true }), stream);
  };
}
