/** The processes of a sandbox. */
import { useMemo, useState } from "preact/hooks";
import { get } from "../../lib/api";
import { bytes, duration } from "../../lib/format";
import { usePoll } from "../../lib/load";
import { replace } from "../../lib/route";
import { milliseconds } from "../../lib/typed";
import { s } from "../../strings";
import { Button, type Column, Empty, Field, Loaded, Safe, Table, Time } from "../../ui";
import { Ask, Check, useField } from "../../ui/form";
import { type ProcessList, type ProcessView, type SandboxView, sandboxPath, startProcess } from "./calls";
import { place } from "./parts";
import { exitOf, Process, stateOf } from "./process";

const EVERY_MS = 3_000;
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
  const loaded = usePoll((signal) => get<ProcessList>(sandboxPath(sandbox, "/processes"), {}, signal), EVERY_MS, [
    sandbox,
  ]);
  const started = ({ id }: ProcessView) => {
    onUse();
    replace(place(sandbox, "processes", id));
  };
  return (
    <div class="stack">
      <div class="row">
        <Button kind="primary" onClick={() => setAsked(true)} label={words.start} />
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
