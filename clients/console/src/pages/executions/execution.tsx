/** The page of one execution. */
import { useState } from "preact/hooks";
import { send } from "../../lib/api";
import { go, href, type Route, replace } from "../../lib/route";
import { useSession } from "../../lib/session";
import { s } from "../../strings";
import { Button, Confirm, ErrorBox, Page } from "../../ui";
import { requestOf, submit } from "./requests";
import { useExecution } from "./use";
import { hasEnded, title } from "./verdict";
import { ExecutionView } from "./view";

export function ExecutionPage({ id, route }: { id: string; route: Route }) {
  const canWrite = useSession().can("executions:write");
  const execution = useExecution(id);
  const [cancelling, setCancelling] = useState(false);
  const [error, setError] = useState<unknown>();
  const request = requestOf(id);
  const { data } = execution;
  const actions = canWrite && (
    <>
      {data && !hasEnded(data) && (
        <Button label={s.execution.cancel} kind="danger" onClick={() => setCancelling(true)} />
      )}
      {request && (
        <Button
          label={s.execution.again}
          onClick={() => submit(request).then((again) => go(href(["executions", again])), setError)}
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
      {error !== undefined && <ErrorBox error={error} />}
      <ExecutionView
        id={id}
        execution={execution}
        tab={route.query.get("tab") ?? undefined}
        onTab={(tab) => replace(href(["executions", id], { tab }))}
      />
      {cancelling && (
        <Confirm
          title={s.execution.cancelTitle}
          action={s.execution.cancel}
          onClose={() => setCancelling(false)}
          onConfirm={cancel}
        >
          <p>{s.execution.cancelText}</p>
        </Confirm>
      )}
    </Page>
  );
}
