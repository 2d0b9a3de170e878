/** What listens in a sandbox, and previews of it where the service has some. */
import { useState } from "preact/hooks";
import { ApiError, get, send } from "../../lib/api";
import { curl } from "../../lib/curl";
import { shell } from "../../lib/format";
import { usePoll } from "../../lib/load";
import { s } from "../../strings";
import { Badge, Button, type Column, Copy, Dialog, Empty, Loaded, Section, Table, Time, useAction } from "../../ui";
import { type PortList, type Preview, type SandboxView, sandboxPath } from "./calls";
import { FOLLOW_MS, follows } from "./parts";

const TTL_MS = 3_600_000;
const words = s.ports;

type Port = PortList["ports"][number];

export function Ports({ view }: { view: SandboxView }) {
  const { id, spec } = view;
  const [shown, setShown] = useState<{ port: number; preview: Preview }>();
  /** The port that was asked for at a service without previews. */
  const [forwarded, setForwarded] = useState<number>();
  const { busy, run, failure } = useAction();
  const load = (signal: AbortSignal) => get<PortList>(sandboxPath(id, "/ports"), {}, signal);
  const loaded = usePoll(load, FOLLOW_MS, [id], follows(view));
  const open = async (port: number) => {
    try {
      setShown({ port, preview: await preview(id, port) });
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 422)) throw error;
      setForwarded(port);
    }
  };
  const reach = ({ port }: Port) => {
    const isListed = spec.ports === "any" || spec.ports?.includes(port);
    if (!isListed) return <span class="muted">{words.closed}</span>;
    if (forwarded !== undefined) return <Badge tone="ok">{words.open}</Badge>;
    return <Button busy={busy} onClick={() => void run(() => open(port))} label={words.preview} />;
  };
  const columns: Column<Port>[] = [
    { head: words.port, class: "tight", cell: ({ port }) => port },
    { head: words.address, cell: ({ address }) => <code>{words.addresses[address] ?? address}</code> },
    { head: words.reach, cell: reach },
  ];
  return (
    <Section title={words.title}>
      {failure}
      <Loaded of={loaded}>
        {({ ports }) => {
          if (ports.length === 0) return <Empty title={words.none}>{words.noneText}</Empty>;
          const keyOf = ({ address, port }: Port) => `${address} ${port}`;
          return <Table caption={words.title} columns={columns} rows={ports} keyOf={keyOf} />;
        }}
      </Loaded>
      {forwarded !== undefined && (
        <>
          <p>{words.noPreviews}</p>
          <Line text={`sandboxctl sandbox port --server ${location.origin} ${id} ${forwarded}`} />
        </>
      )}
      {shown && (
        <Dialog title={words.previewTitle(shown.port)} onClose={() => setShown(undefined)}>
          <Opened preview={shown.preview} />
        </Dialog>
      )}
    </Section>
  );
}

/** A public one, for a browser; where these are not allowed one for programs. */
function preview(sandbox: string, port: number): Promise<Preview> {
  const ask = (body: object) => send<Preview>("POST", sandboxPath(sandbox, `/ports/${port}/previews`), body);
  return ask({ ttl_ms: TTL_MS, public: true }).catch((error) => {
    if (error instanceof ApiError && error.kind === "policy") return ask({ ttl_ms: TTL_MS });
    throw error;
  });
}

function Line({ text }: { text: string }) {
  return (
    <div class="row">
      <pre class="code wrap">{text}</pre>
      <Copy text={text} />
    </div>
  );
}

function Opened({ preview: { url, token, expires_at } }: { preview: Preview }) {
  const isLink = token === null && /^https?:\/\//.test(url);
  return (
    <>
      <p>{isLink ? words.previewPublic : words.previewPrivate}</p>
      {isLink ? (
        <a class="wrap" href={url} target="_blank" rel="noreferrer noopener">
          {url}
        </a>
      ) : (
        <Line text={curl(url, [`-H ${shell(`Sandbox-Port-Token: ${token}`)}`])} />
      )}
      <p class="muted">
        {words.expires} <Time at={expires_at} />. {words.guest}
      </p>
    </>
  );
}
