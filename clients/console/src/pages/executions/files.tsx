/** The files that an execution left, with previews, and what it changed. */
import { useMemo, useState } from "preact/hooks";
import { ApiError, blob, filePath, get, url } from "../../lib/api";
import { safe } from "../../lib/format";
import { type Loaded, useLoad } from "../../lib/load";
import type { Change, ChangeManifest, FileEntry, FileList } from "../../lib/wire";
import { s } from "../../strings";
import {
  Badge,
  Button,
  Bytes,
  type Column,
  Dialog,
  Empty,
  ErrorBox,
  FileView,
  Section,
  Spinner,
  Table,
  Time,
  type Tone,
} from "../../ui";

/** As many rows as are shown at first. */
const SHOWN = 500;

/** The address of a file below `files/`: its bytes where it is not UTF-8. */
function address(entry: FileEntry): string {
  if (!entry.path_b64) return filePath(entry.path);
  return [...atob(entry.path_b64)]
    .map((c) => (/[\w./~-]/.test(c) ? c : `%${c.charCodeAt(0).toString(16).padStart(2, "0")}`))
    .join("");
}

const keyOf = (entry: { path: string; path_b64?: string | null }) => entry.path_b64 ?? `/${entry.path}`;

export function Files({ id }: { id: string }) {
  const base = `/executions/${encodeURIComponent(id)}`;
  const list = useLoad((signal) => get<FileList>(`${base}/files`, {}, signal), [id]);
  const [open, setOpen] = useState<FileEntry>();
  const [shown, setShown] = useState(SHOWN);
  const columns = useMemo((): Column<FileEntry>[] => {
    const download = (entry: FileEntry) => url(`${base}/files/${address(entry)}`);
    return [
      {
        key: "path",
        head: s.left.name,
        class: "name",
        cell: (entry) =>
          entry.type === "file" ? (
            <button type="button" class="link mono" onClick={() => setOpen(entry)}>
              <bdi>{safe(entry.path)}</bdi>
            </button>
          ) : (
            <bdi class="mono">
              {safe(entry.path)}
              {entry.type === "directory" && "/"}
            </bdi>
          ),
      },
      { key: "type", head: s.left.type, class: "tight", cell: (entry) => s.left.types[entry.type] },
      {
        key: "bytes",
        head: s.left.size,
        class: "number",
        cell: (entry) => entry.type === "file" && <Bytes n={entry.bytes} />,
      },
      { key: "modified", head: s.left.modified, class: "tight", cell: (entry) => <Time at={entry.modified} /> },
      {
        key: "download",
        head: s.left.download,
        class: "tight",
        cell: (entry) =>
          entry.type === "file" && (
            <a href={download(entry)} download aria-label={s.left.downloadOf(safe(entry.path))}>
              {s.left.download}
            </a>
          ),
      },
    ];
  }, [base]);
  return (
    <Listed list={list} count={(data) => data.files.length} none={s.left.none}>
      {(data) => (
        <div class="stack">
          <Section
            title={s.left.count(data.files.length, data.truncated)}
            actions={
              <a class="button" href={url(`${base}/archive`)} download>
                {s.left.all}
              </a>
            }
          >
            <Table caption={s.left.caption} columns={columns} rows={data.files.slice(0, shown)} keyOf={keyOf} />
            <More left={data.files.length - shown} onClick={() => setShown(shown + SHOWN)} />
          </Section>
          {open && (
            <Dialog size="wide" title={safe(open.path)} onClose={() => setOpen(undefined)}>
              <FileView
                name={open.path}
                bytes={open.bytes}
                version={keyOf(open)}
                load={(signal) => blob(`${base}/files/${address(open)}`, {}, signal)}
              />
              <footer class="actions">
                <a class="button" href={url(`${base}/files/${address(open)}`)} download>
                  {s.left.download}
                </a>
              </footer>
            </Dialog>
          )}
        </div>
      )}
    </Listed>
  );
}

const OPS: Record<string, Tone> = { created: "ok", modified: "info", removed: "bad", mode: "warn", times: "muted" };

const CHANGES: Column<Change>[] = [
  {
    key: "op",
    head: s.left.change,
    class: "tight",
    cell: ({ op }) => <Badge tone={OPS[op]}>{s.left.ops[op] ?? safe(op)}</Badge>,
  },
  {
    key: "path",
    head: s.left.name,
    class: "name",
    cell: (change) => (
      <span class="mono">
        <bdi>{safe(change.path)}</bdi>
        {change.target && (
          <span class="muted">
            {" → "}
            <bdi>{safe(change.target)}</bdi>
          </span>
        )}
        {change.from && <span class="muted"> {s.left.from(safe(change.from))}</span>}
      </span>
    ),
  },
  {
    key: "type",
    head: s.left.type,
    class: "tight",
    cell: (change) => s.left.types[change.type] ?? safe(change.type),
  },
  { key: "before", head: s.left.before, class: "number", cell: ({ before }) => before && <Size n={before.bytes} /> },
  {
    key: "after",
    head: s.left.after,
    class: "number",
    cell: ({ op, bytes }) => op !== "removed" && <Size n={bytes} />,
  },
  { key: "mode", head: s.left.mode, class: "tight", cell: ({ mode }) => <code>{safe(mode ?? s.ui.none)}</code> },
  {
    key: "sha256",
    head: "SHA-256",
    class: "tight",
    cell: ({ sha256 }) => <code title={sha256 ?? undefined}>{sha256 ? `${sha256.slice(0, 12)}…` : s.ui.none}</code>,
  },
];

/** What is no file has no size. */
function Size({ n }: { n: number | null }) {
  return n === null ? <span class="muted">{s.ui.none}</span> : <Bytes n={n} />;
}

export function Changes({ id }: { id: string }) {
  const path = `/executions/${encodeURIComponent(id)}/changes`;
  const list = useLoad((signal) => get<ChangeManifest>(path, {}, signal), [id]);
  const [shown, setShown] = useState(SHOWN);
  return (
    <Listed list={list} count={(data) => data.changes.length} none={s.left.noChanges}>
      {(data) => (
        <Section title={s.left.changeCount(data.changes.length, data.truncated)}>
          <Table caption={s.execution.changes} columns={CHANGES} rows={data.changes.slice(0, shown)} keyOf={keyOf} />
          <More left={data.changes.length - shown} onClick={() => setShown(shown + SHOWN)} />
        </Section>
      )}
    </Listed>
  );
}

function More({ left, onClick }: { left: number; onClick: () => void }) {
  return left > 0 ? <Button onClick={onClick}>{s.ui.more(left)}</Button> : null;
}

/** A list that may be loading, missing or empty. */
function Listed<T>(props: {
  list: Loaded<T>;
  count: (data: T) => number;
  none: string;
  children: (data: T) => preact.ComponentChildren;
}) {
  const { data, error, reload } = props.list;
  if (error instanceof ApiError && error.status === 404) return <Empty title={props.none} />;
  if (error) return <ErrorBox error={error} onRetry={reload} />;
  if (!data) return <Spinner />;
  if (props.count(data) === 0) return <Empty title={props.none} />;
  return <>{props.children(data)}</>;
}
