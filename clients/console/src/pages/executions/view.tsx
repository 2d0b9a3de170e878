/** What an execution is and has left: shown on its own page, and below what was run in the playground. */
import { useId } from "preact/hooks";
import { cut, safe, safeText } from "../../lib/format";
import { href } from "../../lib/route";
import type { Execution, Note } from "../../lib/wire";
import { s } from "../../strings";
import { Badge, Copy, Empty, Output, Section, type Tab, Tabs, Time, Tree } from "../../ui";
import { Changes, Files } from "./files";
import { commandLines, requestOf } from "./requests";
import { Timeline } from "./timeline";
import { Hosts, Limits } from "./usage";
import type { Followed } from "./use";
import { evidence, hasEnded, isCommand, sentence, tone } from "./verdict";

type Props = { id: string; execution: Followed; tab?: string; onTab: (tab: string) => void };

export function ExecutionView({ id, execution, tab, onTab }: Props) {
  const { document } = execution;
  if (!document) return null;
  return (
    <>
      <Summary id={id} execution={document} connection={execution.connection} />
      <Tabs label={s.execution.parts} tabs={tabs(id, execution, document)} active={tab ?? "output"} onChange={onTab} />
    </>
  );
}

function tabs(id: string, { output }: Followed, document: Execution): Tab[] {
  const ended = hasEnded(document);
  const later = <Empty title={s.execution.later} />;
  const all: (Tab | false)[] = [
    {
      id: "output",
      label: s.execution.output,
      content: () => (
        <Output buffer={output} label={s.execution.output} empty={ended ? s.execution.noOutput : undefined} />
      ),
    },
    !isCommand(document) && {
      id: "result",
      label: s.execution.result,
      content: () => (ended ? <Result execution={document} /> : later),
    },
    { id: "files", label: s.execution.files, content: () => (ended ? <Files id={id} /> : later) },
    { id: "changes", label: s.execution.changes, content: () => (ended ? <Changes id={id} /> : later) },
    { id: "limits", label: s.execution.limits, content: () => <Limits execution={document} /> },
    document.network !== null && {
      id: "network",
      label: s.execution.network(document.network.refused.length),
      content: () => document.network && <Hosts network={document.network} />,
    },
    { id: "details", label: s.execution.details, content: () => <Details id={id} execution={document} /> },
  ];
  return all.filter((tab) => tab !== false);
}

function Summary({ id, execution, connection }: { id: string; execution: Execution; connection: string }) {
  const { error, status } = execution;
  const heading = useId();
  return (
    <section class="card summary" aria-labelledby={heading}>
      <div class="row" role="status">
        <Badge tone={tone(status)}>{s.status[status] ?? safe(status)}</Badge>
        <strong id={heading}>{sentence(execution)}</strong>
        {connection === "lost" && !hasEnded(execution) && <Badge tone="warn">{s.execution.lost}</Badge>}
      </div>
      {evidence(execution).length > 0 && (
        <ul class="row evidence">
          {evidence(execution).map((each) => (
            <li key={each}>{each}</li>
          ))}
        </ul>
      )}
      {error && (
        <div class="error-box">
          <p>
            <code>{safe(error.kind)}</code> <bdi>{safe(cut(error.message, 4000))}</bdi>
          </p>
          {error.hint && <p class="hint">{s.ui.hint(safe(error.hint))}</p>}
          {error.traceback && <pre class="code wrap">{safeText(cut(error.traceback, 8000))}</pre>}
          {error.value !== undefined && error.value !== null && <Tree name={s.execution.raised} value={error.value} />}
        </div>
      )}
      {execution.notes?.map((note) => (
        <NoteBox key={note.kind} note={note} />
      ))}
      <Timeline times={execution} />
      <dl class="facts columns-2">
        <dt>{s.execution.id}</dt>
        <dd class="row">
          <code>{id}</code>
          <Copy text={id} />
        </dd>
        <dt>{s.executions.kind}</dt>
        <dd>{isCommand(execution) ? s.kinds.command : s.kinds.script}</dd>
        <dt>{s.executions.created}</dt>
        <dd>
          <Time at={execution.created_at} />
        </dd>
        <dt>{s.execution.ended}</dt>
        <dd>
          <Time at={execution.ended_at} />
        </dd>
        {execution.sandbox && (
          <>
            <dt>{s.execution.sandbox}</dt>
            <dd>
              <a href={href(["sandboxes", execution.sandbox])}>{safe(execution.sandbox)}</a>
            </dd>
          </>
        )}
      </dl>
    </section>
  );
}

function NoteBox({ note }: { note: Note }) {
  return (
    <div class="note-box">
      <p>
        <bdi>{safe(note.message)}</bdi>
      </p>
      {note.hint && <p class="hint">{s.ui.hint(safe(note.hint))}</p>}
    </div>
  );
}

function Result({ execution }: { execution: Extract<Execution, { logs: string[] }> }) {
  const { result, tests } = execution;
  const value = result ?? null;
  return (
    <div class="stack">
      {tests && tests.length > 0 && (
        <Section title={s.execution.tests}>
          <ul class="stack-tight">
            {tests.slice(0, 1000).map((test, index) => (
              <li key={`${index}-${test.name}`} class="row">
                <Badge tone={test.status === "passed" ? "ok" : test.status === "failed" ? "bad" : "muted"}>
                  {s.execution.testStatus[test.status]}
                </Badge>
                <bdi>{safe(cut(test.name, 500))}</bdi>
                <span class="muted figure">{test.duration_ms} ms</span>
                {test.message && <bdi class="muted">{safe(cut(test.message, 1000))}</bdi>}
              </li>
            ))}
          </ul>
        </Section>
      )}
      <Section
        title={s.execution.result}
        actions={value !== null && <Copy text={JSON.stringify(value, null, 2)} label={s.execution.copyJson} />}
      >
        {value === null ? <p class="muted">{s.execution.noResult}</p> : <Tree value={value} />}
      </Section>
    </div>
  );
}

function Details({ id, execution }: { id: string; execution: Execution }) {
  const request = requestOf(id);
  const lines = commandLines(id, request);
  return (
    <div class="stack">
      <Section title={request ? s.execution.asCommand : s.execution.getByCommand}>
        {!request && <p class="hint">{s.execution.noRequest}</p>}
        <CommandLine label="curl" text={lines.curl} />
        <CommandLine label="sandboxctl" text={lines.sandboxctl} />
      </Section>
      <div class="columns">
        <Section title={s.execution.metadata}>
          {Object.keys(execution.metadata).length > 0 ? (
            <Tree value={execution.metadata} />
          ) : (
            <p class="muted">{s.execution.noMetadata}</p>
          )}
        </Section>
        <Section title={s.execution.confinement}>
          {execution.confinement ? <Tree value={execution.confinement} /> : <p class="muted">{s.ui.unknown}</p>}
        </Section>
      </div>
      <Section title={s.execution.document}>
        <Tree value={execution} depth={2} />
      </Section>
    </div>
  );
}

function CommandLine({ label, text }: { label: string; text: string }) {
  return (
    <div class="command-line">
      <header class="row">
        <h3>{label}</h3>
        <Copy text={text} />
      </header>
      <pre class="code wrap">{safeText(cut(text, 4000))}</pre>
    </div>
  );
}
