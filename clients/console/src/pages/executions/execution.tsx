/** The page of one execution. */
import { useState } from "preact/hooks";
import { send } from "../../lib/api";
import { go, href, type Route, replace } from "../../lib/route";
import { useSession } from "../../lib/session";
import { s } from "../../strings";
import { Button, Confirm, ErrorBox, Page, Spinner } from "../../ui";
import { requestOf, submit } from "./requests";
import { useExecution } from "./use";
import { hasEnded, title } from "./verdict";
import { ExecutionView } from "./view";

export function ExecutionPage({ id, route }: { id: string; route: Route }) {
  const session = useSession();
  const execution = useExecution(id);
  const [cancelling, setCancelling] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const request = requestOf(id);
  const { document } = execution;
  const again = async () => {
    if (!request) return;
    setBusy(true);
    setError(undefined);
    try {
      go(href(["executions", await submit(request)]));
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
  };
  const canWrite = session.can("executions:write");
  return (
    <Page
      title={document ? title(document) : s.execution.title(id)}
      actions={
        <>
          {canWrite && document && !hasEnded(document) && (
            <Button kind="danger" onClick={() => setCancelling(true)}>
              {s.execution.cancel}
            </Button>
          )}
          {canWrite && request && (
            <Button busy={busy} onClick={() => void again()}>
              {s.execution.again}
            </Button>
          )}
        </>
      }
    >
      {error !== undefined && <ErrorBox error={error} />}
      {execution.error !== undefined && <ErrorBox error={execution.error} onRetry={execution.reload} />}
      {!document && execution.error === undefined && <Spinner />}
      {document && (
        <ExecutionView
          id={id}
          execution={execution}
          tab={route.query.get("tab") ?? undefined}
          onTab={(tab) => replace(href(["executions", id], { tab }))}
        />
      )}
      {cancelling && (
        <Confirm
          title={s.execution.cancelTitle}
          action={s.execution.cancel}
          onClose={() => setCancelling(false)}
          onConfirm={async () => {
            await send("DELETE", `/executions/${encodeURIComponent(id)}`);
            execution.reload();
          }}
        >
          <p>{s.execution.cancelText}</p>
        </Confirm>
      )}
    </Page>
  );
}
