/** A process of a sandbox, with its output as it comes. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { OutputBuffer, writer } from "../../lib/ansi";
import { ApiError, follow, get, send } from "../../lib/api";
import { safe } from "../../lib/format";
import { usePoll } from "../../lib/load";
import { s } from "../../strings";
import { Badge, Button, ErrorBox, Field, Loaded, Output, Safe, Section, Time, type Tone, useAction } from "../../ui";
import { Choice, Facts, useField } from "../../ui/form";
import { type ProcessView, processPath } from "./calls";
import { place } from "./parts";

const EVERY_MS = 3_000;
const TONES: Record<ProcessView["state"], Tone> = { running: "ok", left: "warn", ended: "muted" };
const words = s.processes;

export function stateOf({ state }: ProcessView) {
  return <Badge tone={TONES[state]}>{words.states[state]}</Badge>;
}

export function exitOf({ exit_code, signal, stopped, out_of_memory }: ProcessView): string {
  const how = signal !== null ? words.signalled(signal) : (exit_code ?? s.ui.none);
  const reasons = [stopped && words.stopped[stopped], out_of_memory && words.outOfMemory].filter(Boolean);
  return reasons.length > 0 ? `${how} (${reasons.join(", ")})` : String(how);
}

export function Process({ sandbox, id }: { sandbox: string; id: number }) {
  const [isOver, setOver] = useState(false);
  const loaded = usePoll(
    (signal) => get<ProcessView>(processPath(sandbox, id), {}, signal),
    // What has ended does not change.
    isOver ? undefined : EVERY_MS,
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
                  [words.command, <code key="">{safe(process.command)}</code>],
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
  const ask = (method: "POST" | "DELETE", rest: string, body?: unknown, then = () => {}) => {
    const query = { generation: process.generation };
    const refused = (error: unknown) => {
      throw error instanceof ApiError && error.kind === "no_stdin" ? new Error(words.noStdin) : error;
    };
    const asked = () => send(method, processPath(sandbox, process.id, rest), body, { query }).then(then, refused);
    void run(asked).then(onDone);
  };
  const sendLine = (event: Event) => {
    event.preventDefault();
    ask("POST", "/stdin", new TextEncoder().encode(`${line.value}\n`), () => line.onInput(""));
  };
  return (
    <>
      {process.pty && <a href={place(sandbox, "terminal", process.id)}>{words.terminal}</a>}
      <form class="line" onSubmit={sendLine}>
        <Field label={words.input} {...line} />
        <Button submit label={words.send} />
        <Button onClick={() => ask("POST", "/stdin/close")} label={words.closeInput} />
      </form>
      <div class="line">
        <Choice label={words.signal} value={signal} of={words.signals} onChange={setSignal} />
        <Choice label={words.to} value={to} of={words.targets} onChange={setTo} />
        <Button onClick={() => ask("POST", "/signal", { signal, to })} label={words.sendSignal} />
        <Button kind="danger" title={words.stopHint} onClick={() => ask("DELETE", "")} label={words.stop} />
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
    const write = writer(buffer);
    const path = processPath(sandbox, id, `/events?generation=${generation}`);
    const onState = (state: "live" | "lost") => setLost(state === "lost");
    follow(path, ({ data }) => write(data), { signal, onState })
      .then(() => signal.aborted || onEnd())
      .catch((failure) => signal.aborted || setError(failure));
    return () => abort.abort();
  }, [buffer]);
  return (
    <Section title={words.outputTitle}>
      {isLost && <p role="status">{s.ui.lost}</p>}
      {error !== undefined && <ErrorBox error={error} />}
      <Output buffer={buffer} label={words.output(id)} />
    </Section>
  );
}
