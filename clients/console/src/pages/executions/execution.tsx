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
import { useExecution } from "./use";
import { hasEnded, title } from "./verdict";
import { ExecutionView } from "./view";

export function ExecutionPage({ id, route }: { id: string; route: Route }) {
  const canWrite = useSession().can("executions:write");
  const execution = useExecution(id);
  const [cancelling, setCancelling] = useState(false);
  const { busy, run, failure } = useAction();
  const request = requestOf(id);
  const { data } = execution;
  const again = async () => request && go(href(["executions", await submit(request)]));
  const open = async (like: Execution) => go(href(["playground"], { kind: await draftLike(like) }));
  const actions = canWrite && (
    <>
      {data && !hasEnded(data) && (
        <Button label={s.execution.cancel} kind="danger" onClick={() => setCancelling(true)} />
      )}
      {data && hasEnded(data) && (
        <Button
          label={request ? s.execution.again : s.execution.toPlayground}
          busy={busy}
          onClick={() => run(request ? again : () => open(data))}
        />
      )}
    </>
  );
  const cancel = async () => {
    await send("DELETE", `/executions/${encodeURIComponent(id)}`);
    execution.reload();
  };
  return (
    <Page title={data ? title(data) : s.execution.title(id)} actions={actions}>
      {failure}
      <ExecutionView
        id={id}
        execution={execution}
        tab={route.query.get("tab") ?? undefined}
        onTab={(tab) => replace(href(["executions", id], { tab }))}
      />
      {cancelling && (
        <Confirm
          title={s.execution.cancelTitle}
          action={s.execution.cancelIt}
          dismiss={s.execution.letRun}
          onClose={() => setCancelling(false)}
          onConfirm={cancel}
        >
          <p>{s.execution.cancelText}</p>
        </Confirm>
      )}
    </Page>
  );
}
