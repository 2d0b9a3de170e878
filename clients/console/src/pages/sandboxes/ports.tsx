/** What listens in a sandbox, and previews of it where the service has some. */
import { useState } from "preact/hooks";
import { ApiError, get, send } from "../../lib/api";
import { shell } from "../../lib/format";
import { useLoad } from "../../lib/load";
import { s } from "../../strings";
import { Badge, Button, type Column, Copy, Dialog, Empty, ErrorBox, Section, Spinner, Table, Time } from "../../ui";
import { type PortList, type Preview, type SandboxView, sandboxPath } from "./wire";

const TTL_MS = 3_600_000;

type Shown = { port: number; preview: Preview } | { port: number; error: unknown };

export function Ports({ view }: { view: SandboxView }) {
  const [shown, setShown] = useState<Shown>();
  const [busy, setBusy] = useState<number>();
  const [hasPreviews, setHasPreviews] = useState(true);
  // Asked for once: a list is a use of the sandbox, and would keep it awake.
  const { data, error, loading, reload } = useLoad(
    (signal) => get<PortList>(sandboxPath(view.id, "/ports"), {}, signal),
    [view.id],
  );
  const open = async (port: number) => {
    setBusy(port);
    try {
      setShown({ port, preview: await preview(view.id, port) });
    } catch (failure) {
      if (isWithout(failure)) setHasPreviews(false);
      else setShown({ port, error: failure });
    }
    setBusy(undefined);
  };
  const mayReach = (port: number) => view.spec.ports === "any" || (view.spec.ports ?? []).includes(port);
  const ports = data?.ports ?? [];
  const columns: Column<PortList["ports"][number]>[] = [
    { key: "port", head: s.ports.port, class: "tight", cell: ({ port }) => port },
    { key: "address", head: s.ports.address, cell: ({ address }) => <code>{address}</code> },
    {
      key: "reach",
      head: s.ports.reach,
      cell: ({ port }) => {
        if (!mayReach(port)) return <span class="muted">{s.ports.closed}</span>;
        if (!hasPreviews) return <Badge tone="ok">{s.ports.open}</Badge>;
        return (
          <Button busy={busy === port} onClick={() => void open(port)}>
            {s.ports.preview}
          </Button>
        );
      },
    },
  ];
  return (
    <Section
      title={s.ports.title}
      actions={
        <Button busy={loading} onClick={reload}>
          {s.ports.refresh}
        </Button>
      }
    >
      {error && <ErrorBox error={error} onRetry={reload} />}
      {!data && !error && <Spinner />}
      {data && ports.length === 0 && <Empty title={s.ports.none}>{s.ports.noneText}</Empty>}
      {ports.length > 0 && (
        <Table caption={s.ports.title} columns={columns} rows={ports} keyOf={(it) => `${it.address} ${it.port}`} />
      )}
      {!hasPreviews && <Forward view={view} port={ports.find(({ port }) => mayReach(port))?.port} />}
      {shown && <PreviewDialog shown={shown} onClose={() => setShown(undefined)} />}
    </Section>
  );
}

/** A public one, for a browser; where these are not allowed one for programs. */
async function preview(sandbox: string, port: number): Promise<Preview> {
  const ask = (body: object) => send<Preview>("POST", sandboxPath(sandbox, `/ports/${port}/previews`), body);
  try {
    return await ask({ ttl_ms: TTL_MS, public: true });
  } catch (failure) {
    if (!(failure instanceof ApiError && failure.kind === "policy")) throw failure;
    return ask({ ttl_ms: TTL_MS });
  }
}

function isWithout(error: unknown): boolean {
  return error instanceof ApiError && error.status === 422;
}

function Forward({ view, port }: { view: SandboxView; port: number | undefined }) {
  const text = `sandboxctl sandbox port --server ${location.origin} ${shell(view.name ?? view.id)} ${port ?? "PORT"}`;
  return (
    <>
      <p>{s.ports.noPreviews}</p>
      <pre class="code wrap">{text}</pre>
      <div class="row">
        <Copy text={text} />
      </div>
    </>
  );
}

function PreviewDialog({ shown, onClose }: { shown: Shown; onClose: () => void }) {
  return (
    <Dialog title={s.ports.previewTitle(shown.port)} onClose={onClose}>
      {"error" in shown ? <ErrorBox error={shown.error} /> : <Opened preview={shown.preview} />}
    </Dialog>
  );
}

function Opened({ preview: { url, token, expires_at } }: { preview: Preview }) {
  const request = `curl -sS -H ${shell(`Sandbox-Port-Token: ${token}`)} ${shell(url)}`;
  const isLink = token === null && /^https?:\/\//.test(url);
  return (
    <>
      <p>{token === null ? s.ports.previewPublic : s.ports.previewPrivate}</p>
      {isLink ? (
        <p class="wrap">
          <a href={url} target="_blank" rel="noreferrer noopener">
            {url}
          </a>
        </p>
      ) : (
        <pre class="code wrap">{request}</pre>
      )}
      <div class="row">
        <Copy text={isLink ? url : request} />
        <span class="muted">
          {s.ports.expires} <Time at={expires_at} />
        </span>
      </div>
      <p class="muted">{s.ports.guest}</p>
    </>
  );
}
