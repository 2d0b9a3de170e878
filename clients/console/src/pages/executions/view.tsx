/** What an execution is and has left: shown on its own page, and below what was run in the playground. */
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import { cut, safe, safeText, spaced } from "../../lib/format";
import { useLoad } from "../../lib/load";
import { href } from "../../lib/route";
import type { Execution, ResultExecution } from "../../lib/wire";
import { s } from "../../strings";
import { Badge, Copy, Empty, Loaded, Output, Safe, Section, type Tab, Tabs, Time, Tree } from "../../ui";
import { Facts } from "../../ui/form";
import { Changes, Files } from "./files";
import { commandLines, imageOf, requestOf } from "./requests";
import { Timeline } from "./timeline";
import { Hosts, Limits } from "./usage";
import type { Followed } from "./use";
import { evidence, hasEnded, isCommand, sentence, statusText, tone } from "./verdict";

type Props = { id: string; execution: Followed; tab?: string; onTab: (tab: string) => void };

export function ExecutionView({ id, execution, tab = "output", onTab }: Props) {
  return (
    <Loaded of={execution}>
      {(data) => (
        <>
          <Summary id={id} execution={data} isLost={execution.connection === "lost"} />
          <Tabs label={s.execution.parts} tabs={tabs(id, execution, data)} active={tab} onChange={onTab} />
        </>
      )}
    </Loaded>
  );
}

function tabs(id: string, { output }: Followed, execution: Execution): Tab[] {
  const e = s.execution;
  const ended = hasEnded(execution);
  const { network } = execution;
  const tab = (name: string, label: string, content: () => ComponentChildren): Tab => ({ id: name, label, content });
  const later = (content: ComponentChildren) => () => (ended ? content : <Empty title={e.later} />);
  return [
    tab("output", e.output, () => <Output buffer={output} label={e.output} empty={ended ? e.noOutput : undefined} />),
    ...(isCommand(execution) ? [] : [tab("result", e.result, later(<Result execution={execution} />))]),
    tab("files", e.files, later(<Files id={id} />)),
    tab("changes", e.changes, later(<Changes id={id} />)),
    tab("limits", e.limits, () => <Limits execution={execution} />),
    ...(network ? [tab("network", e.network(network.refused.length), () => <Hosts network={network} />)] : []),
    tab("details", e.details, () => <Details id={id} execution={execution} />),
  ];
}

function Summary({ id, execution, isLost }: { id: string; execution: Execution; isLost: boolean }) {
  const { status, sandbox, notes } = execution;
  const heading = useId();
  const image = useLoad(() => imageOf(execution), [id]).data;
  const known = evidence(execution);
  const named = (
    <span class="row">
      <code>{id}</code>
      <Copy text={id} />
    </span>
  );
  const facts = [
    [s.execution.id, named],
    [s.executions.kind, isCommand(execution) ? s.kinds.command : s.kinds.script],
    [s.image.label, image && <Safe key="image" text={image} />],
    [s.executions.created, <Time key="created" at={execution.created_at} />],
    [s.execution.ended, <Time key="ended" at={execution.ended_at} />],
    [
      s.execution.sandbox,
      sandbox && (
        <a key="sandbox" href={href(["sandboxes", sandbox])}>
          {safe(sandbox)}
        </a>
      ),
    ],
  ] as const;
  return (
    <section class="card summary" aria-labelledby={heading}>
      <div class="row" role="status">
        <Badge tone={tone(status)}>{statusText(status)}</Badge>
        <strong id={heading}>{sentence(execution)}</strong>
        {isLost && !hasEnded(execution) && <Badge tone="warn">{s.ui.lost}</Badge>}
      </div>
      {known.length > 0 && (
        <ul class="row evidence">
          {known.map((each) => (
            <li key={each}>{each}</li>
          ))}
        </ul>
      )}
      <Failed execution={execution} />
      {notes?.map(({ kind, message, hint }) => (
        <div key={kind} class="note-box">
          <Safe text={message} />
          {hint && <p class="hint">{s.ui.hint(safe(hint))}</p>}
        </div>
      ))}
      <Timeline times={execution} />
      <Facts of={facts} />
    </section>
  );
}

/** Its error, which may quote the guest. */
function Failed({ execution: { error, status } }: { execution: Execution }) {
  // That somebody has cancelled it is said already.
  if (!error || status === "cancelled") return null;
  return (
    <div class="error-box">
      <p>
        <code>{safe(error.kind)}</code> <Safe text={cut(error.message, 4000)} />
      </p>
      {error.hint && <p class="hint">{s.ui.hint(safe(error.hint))}</p>}
      {error.traceback && <pre class="code wrap">{safeText(cut(error.traceback, 8000))}</pre>}
      {error.value != null && <Tree name={s.execution.raised} value={error.value} />}
    </div>
  );
}

const TEST_TONES = { passed: "ok", failed: "bad", skipped: "muted" } as const;

function Result({ execution: { result = null, tests = [] } }: { execution: ResultExecution }) {
  const copy = result !== null && <Copy text={JSON.stringify(result, null, 2)} label={s.execution.copyJson} />;
  return (
    <div class="stack">
      {tests.length > 0 && (
        <Section title={s.execution.tests}>
          <ul class="stack-tight">
            {tests.slice(0, 1000).map((test, index) => (
              <li key={`${index}-${test.name}`} class="row">
                <Badge tone={TEST_TONES[test.status]}>{spaced(test.status)}</Badge>
                <Safe text={cut(test.name, 500)} />
                <span class="muted figure">{test.duration_ms} ms</span>
                {test.message && <bdi class="muted">{safe(cut(test.message, 1000))}</bdi>}
              </li>
            ))}
          </ul>
        </Section>
      )}
      <Section title={s.execution.result} actions={copy}>
        {result === null ? <p class="muted">{s.execution.noResult}</p> : <Tree value={result} />}
      </Section>
    </div>
  );
}

function Details({ id, execution }: { id: string; execution: Execution }) {
  return (
    <div class="stack">
      <Section title={s.execution.terminal}>
        {!requestOf(execution) && <p class="hint">{s.execution.noRequest}</p>}
        {Object.entries(commandLines(id, execution)).map(([name, text]) => (
          <div key={name} class="command-line">
            <header class="row">
              <h3>{name}</h3>
              <Copy text={text} />
            </header>
            <pre class="code wrap">{safeText(cut(text, 4000))}</pre>
          </div>
        ))}
      </Section>
      <Section title={s.execution.document}>
        <Tree value={execution} />
      </Section>
    </div>
  );
}
