/** The page of one execution. */
import { useState } from "preact/hooks";
import { send } from "../../lib/api";
import { go, href, type Route, replace } from "../../lib/route";
import { useSession } from "../../lib/session";
import type { Execution } from "../../lib/wire";
import { s } from "../../strings";
import { Button, Confirm, Page, useAction } from "../../ui";
import { draftLike } from "../playground/drafts";
import { requestOf, submit } from "./requests";
import { type Followed, useExecution } from "./use";
import { hasEnded, title } from "./verdict";
import { ExecutionView } from "./view";

export function ExecutionPage({ id, route }: { id: string; route: Route }) {
  const canWrite = useSession().can("executions:write");
  const execution = useExecution(id);
  const { busy, run, failure } = useAction();
  const { data } = execution;
  const request = data && requestOf(data);
  const again = async () => request && go(href(["executions", await submit(request, data.sandbox)]));
  const open = async (like: Execution) => go(href(["playground"], { kind: await draftLike(like) }));
  const actions = canWrite && (
    <>
      <Cancel id={id} execution={execution} />
      {data && hasEnded(data) && (
        <Button
          label={request ? s.execution.again : s.execution.toPlayground}
          busy={busy}
          onClick={() => run(request ? again : () => open(data))}
        />
      )}
    </>
  );
  return (
    <Page title={data ? title(data) : s.execution.title(id)} actions={actions}>
      {failure}
      <ExecutionView
        id={id}
        execution={execution}
        tab={route.query.get("tab") ?? undefined}
        onTab={(tab) => replace(href(["executions", id], { tab }))}
      />
    </Page>
  );
}

/** While it is under way. */
export function Cancel({ id, execution: { data, reload } }: { id: string; execution: Followed }) {
  const [isAsked, setAsked] = useState(false);
  const cancel = () => send("DELETE", `/executions/${encodeURIComponent(id)}`).then(reload);
  const { cancelTitle, cancelIt, letRun, cancelText } = s.execution;
  if (!data || hasEnded(data)) return null;
  return (
    <>
      <Button label={s.execution.cancel} kind="danger" onClick={() => setAsked(true)} />
      {isAsked && (
        <Confirm
          title={cancelTitle}
          action={cancelIt}
          dismiss={letRun}
          onClose={() => setAsked(false)}
          onConfirm={cancel}
        >
          <p>{cancelText}</p>
        </Confirm>
      )}
    </>
  );
}
