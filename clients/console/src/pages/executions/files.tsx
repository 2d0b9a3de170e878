/** The files that an execution left, with previews, and what it changed. */
import { useMemo, useState } from "preact/hooks";
import { blob, get } from "../../lib/api";
import { pathOf, segment } from "../../lib/content";
import { safe, spaced } from "../../lib/format";
import { useLoad } from "../../lib/load";
import type { Change, ChangeManifest, FileEntry, FileList } from "../../lib/wire";
import { s } from "../../strings";
import {
  Badge,
  Button,
  Bytes,
  type Column,
  Dialog,
  Download,
  FileView,
  Loaded,
  Safe,
  Section,
  Table,
  Time,
} from "../../ui";

/** As many rows as are shown at first. */
const SHOWN = 500;

const address = (base: string, entry: FileEntry) => `${base}/files/${segment(pathOf(entry))}`;

const nameOf = ({ path }: FileEntry) => path.slice(path.lastIndexOf("/") + 1);

const keyOf = (entry: { path: string; path_b64?: string | null }) => entry.path_b64 ?? `/${entry.path}`;

function fileColumns(base: string, open: (entry: FileEntry) => void): Column<FileEntry>[] {
  const name = (entry: FileEntry) => {
    const path = <Safe text={entry.path} />;
    if (entry.type !== "file") return <span class="mono">{path}</span>;
    return (
      <button type="button" class="link mono" onClick={() => open(entry)}>
        {path}
      </button>
    );
  };
  const download = (entry: FileEntry) =>
    entry.type === "file" && <Download path={address(base, entry)} name={nameOf(entry)} text={s.left.download} inRow />;
  return [
    { head: s.left.name, class: "name", cell: name },
    { head: s.left.type, class: "tight", cell: (entry) => spaced(entry.type) },
    { head: s.left.size, class: "number", cell: (entry) => <Bytes n={entry.type === "file" ? entry.bytes : null} /> },
    { head: s.left.modified, class: "tight", cell: (entry) => <Time at={entry.modified} /> },
    { head: s.left.download, class: "tight", cell: download },
  ];
}

export function Files({ id }: { id: string }) {
  const base = `/executions/${encodeURIComponent(id)}`;
  const list = useLoad((signal) => get<FileList>(`${base}/files`, {}, signal), [id]);
  const [open, setOpen] = useState<FileEntry>();
  const columns = useMemo(() => fileColumns(base, setOpen), [base]);
  const all = <Download path={`${base}/archive`} name={`${id}.tar.gz`} text={s.left.all} />;
  return (
    <Loaded of={list} isEmpty={({ files }) => files.length === 0} none={s.left.none}>
      {({ files, truncated }) => (
        <Section title={s.left.count(files.length, truncated)} actions={all}>
          <Rows columns={columns} rows={files} caption={s.execution.files} />
          {open && (
            <Dialog size="wide" title={safe(open.path)} onClose={() => setOpen(undefined)}>
              <FileView
                name={open.path}
                bytes={open.bytes}
                version={keyOf(open)}
                load={(signal) => blob(address(base, open), {}, signal)}
              />
              <footer class="actions">
                <Download path={address(base, open)} name={nameOf(open)} text={s.left.download} />
              </footer>
            </Dialog>
          )}
        </Section>
      )}
    </Loaded>
  );
}

const OPS = { created: "ok", modified: "info", removed: "bad", mode: "warn", times: "muted" } as const;

const CHANGES: Column<Change>[] = [
  { head: s.left.change, class: "tight", cell: ({ op }) => <Badge tone={OPS[op]}>{spaced(op)}</Badge> },
  { head: s.left.name, class: "name", cell: (change) => <Changed change={change} /> },
  { head: s.left.type, class: "tight", cell: ({ type }) => spaced(type) },
  { head: s.left.before, class: "number", cell: ({ before }) => <Bytes n={before?.bytes} /> },
  { head: s.left.after, class: "number", cell: ({ op, bytes }) => <Bytes n={op === "removed" ? null : bytes} /> },
  { head: s.left.mode, class: "tight", cell: ({ mode }) => <code>{safe(mode ?? s.ui.none)}</code> },
  {
    head: s.left.digest,
    class: "tight",
    cell: ({ sha256 }) => <code title={sha256 ?? undefined}>{sha256 ? `${sha256.slice(0, 12)}…` : s.ui.none}</code>,
  },
];

function Changed({ change: { path, target, from } }: { change: Change }) {
  return (
    <span class="mono">
      <Safe text={path} />
      {target && <bdi class="muted"> → {safe(target)}</bdi>}
      {from && <bdi class="muted"> {s.left.from(safe(from))}</bdi>}
    </span>
  );
}

export function Changes({ id }: { id: string }) {
  const path = `/executions/${encodeURIComponent(id)}/changes`;
  const list = useLoad((signal) => get<ChangeManifest>(path, {}, signal), [id]);
  return (
    <Loaded of={list} isEmpty={({ changes }) => changes.length === 0} none={s.left.noChanges}>
      {({ changes, truncated }) => (
        <Section title={s.left.changes(changes.length, truncated)}>
          <Rows columns={CHANGES} rows={changes} caption={s.execution.changes} />
        </Section>
      )}
    </Loaded>
  );
}

type RowsProps<T> = { caption: string; columns: readonly Column<T>[]; rows: T[] };

/** A table of files, in parts. */
function Rows<T extends { path: string; path_b64?: string | null }>({ caption, columns, rows }: RowsProps<T>) {
  const [shown, setShown] = useState(SHOWN);
  return (
    <>
      <Table caption={caption} columns={columns} rows={rows.slice(0, shown)} keyOf={keyOf} />
      {rows.length > shown && <Button label={s.ui.more(rows.length - shown)} onClick={() => setShown(shown + SHOWN)} />}
    </>
  );
}
