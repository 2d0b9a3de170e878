/** Try a script or a command: what it makes is shown below. */
import { useEffect, useState } from "preact/hooks";
import type { PageProps } from "../../app";
import { href, replace } from "../../lib/route";
import { s } from "../../strings";
import { Button, Page, Tabs, useAction } from "../../ui";
import { Cancel } from "../executions/execution";
import { submit } from "../executions/requests";
import { useExecution } from "../executions/use";
import { ExecutionView } from "../executions/view";
import { CommandForm, commandRequest } from "./command";
import { drafts } from "./drafts";
import { ScriptForm, scriptRequest } from "./script";

export default function Playground({ route }: PageProps) {
  const kind = route.query.get("kind") === "command" ? "command" : "script";
  const [script, setScript] = useState(drafts.script);
  const [command, setCommand] = useState(drafts.command);
  const [ran, setRan] = useState(drafts.ran);
  const { busy, run: start, failure } = useAction();
  useEffect(() => {
    Object.assign(drafts, { script, command, ran });
  }, [script, command, ran]);
  const submitIt = async () =>
    setRan(await submit(kind === "script" ? scriptRequest(script) : await commandRequest(command)));
  const run = () => !busy && void start(submitIt);
  const runButton = (
    <Button label={s.playground.run} kind="primary" busy={busy} onClick={run} title={s.playground.keys} />
  );
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    run();
  };
  const scriptForm = () => <ScriptForm draft={script} onChange={setScript} />;
  const commandForm = () => <CommandForm draft={command} onChange={setCommand} />;
  return (
    <Page title={s.playground.title} actions={runButton}>
      {failure}
      <p class="hint">{kind === "script" ? `${s.playground.leave} ${s.playground.forgets}` : s.playground.forgets}</p>
      <div class="playground">
        {/* biome-ignore lint/a11y/noStaticElementInteractions: a shortcut for the button above. */}
        <div onKeyDown={onKeyDown}>
          <Tabs
            label={s.playground.kinds}
            active={kind}
            onChange={(id) => replace(href(["playground"], { kind: id }))}
            tabs={[
              { id: "script", label: s.playground.script, content: scriptForm },
              { id: "command", label: s.playground.command, content: commandForm },
            ]}
          />
        </div>
        {ran && <Ran key={ran} id={ran} />}
      </div>
    </Page>
  );
}

function Ran({ id }: { id: string }) {
  const execution = useExecution(id);
  const [tab, setTab] = useState<string>();
  return (
    <div class="stack ran">
      <header class="row">
        <h2>{s.playground.ran}</h2>
        <a href={href(["executions", id])}>{s.playground.open}</a>
        <Cancel id={id} execution={execution} />
      </header>
      <ExecutionView id={id} execution={execution} tab={tab} onTab={setTab} />
    </div>
  );
}
