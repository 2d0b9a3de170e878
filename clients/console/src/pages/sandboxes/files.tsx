/** The files of a sandbox: a tree, and what is chosen in it. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, blob, send, url } from "../../lib/api";
import { bytes, safe } from "../../lib/format";
import { useLoad } from "../../lib/load";
import { s } from "../../strings";
import {
  Button,
  Bytes,
  Confirm,
  Dialog,
  Empty,
  ErrorBox,
  Field,
  FileView,
  Section,
  Select,
  Spinner,
  Time,
} from "../../ui";
import { Safe } from "./parts";
import {
  type Content,
  type Entry,
  filePath,
  joined,
  type Listing,
  operate,
  parentOf,
  pathOf,
  type SandboxView,
} from "./wire";

/** Of one directory. */
const MAX_ENTRIES = 1_000;

type Tree = {
  sandbox: string;
  chosen: Entry;
  choose: (entry: Entry) => void;
  /** It counts what has changed something: open directories are listed again. */
  version: number;
};

export function Files({ view }: { view: SandboxView }) {
  const roots = rootsOf(view);
  const [root, setRoot] = useState(roots[0]?.value ?? ".");
  const [chosen, choose] = useState(directoryOf(root));
  const [version, setVersion] = useState(0);
  const changed = () => setVersion((n) => n + 1);
  const tree = { sandbox: view.id, chosen, choose, version };
  return (
    <div class="files">
      <Section
        title={s.files.tree}
        actions={
          <Button kind="quiet" onClick={changed}>
            {s.files.refresh}
          </Button>
        }
      >
        {roots.length > 1 && (
          <Select
            label={s.files.root}
            value={root}
            options={roots}
            onChange={(value) => {
              setRoot(value);
              choose(directoryOf(value));
            }}
          />
        )}
        <div>
          <Directory key={root} entry={directoryOf(root)} isRoot tree={tree} />
        </div>
      </Section>
      <Chosen key={keyOf(chosen)} sandbox={view.id} entry={chosen} root={root} choose={choose} onChange={changed} />
    </div>
  );
}

function rootsOf({ spec }: SandboxView): { value: string; label: string }[] {
  const roots = [{ value: spec.mount_path ?? "/io", label: s.files.io }];
  if (Object.keys(spec.inputs ?? {}).length > 0) roots.push({ value: "/in", label: s.files.inputs });
  if (spec.files === "all") roots.push({ value: "/", label: s.files.whole });
  return roots;
}

function directoryOf(path: string): Entry {
  return { name: path, path, type: "directory", size: 0, modified: null };
}

function keyOf(entry: Entry): string {
  return entry.path_b64 ?? entry.path;
}

/** A directory, which is listed when it is opened. */
function Directory({ entry, isRoot = false, tree }: { entry: Entry; isRoot?: boolean; tree: Tree }) {
  const [open, setOpen] = useState(isRoot);
  const isChosen = keyOf(entry) === keyOf(tree.chosen);
  return (
    <>
      <button
        type="button"
        class="tree-toggle"
        aria-expanded={open}
        aria-current={isChosen}
        onClick={() => {
          // What is only looked at is not closed by it.
          setOpen(isRoot || !(open && isChosen));
          tree.choose(entry);
        }}
      >
        <Safe text={`${entry.name.replace(/\/$/, "")}/`} />
      </button>
      {open && <Entries entry={entry} tree={tree} />}
    </>
  );
}

function Entries({ entry, tree }: { entry: Entry; tree: Tree }) {
  const { sandbox, version } = tree;
  const { data, error, reload } = useLoad(
    (signal) => operate<Listing>(sandbox, { operation: "list", path: pathOf(entry), limit: MAX_ENTRIES }, signal),
    [sandbox, keyOf(entry)],
  );
  const seen = useRef(version);
  useEffect(() => {
    if (seen.current !== version) reload();
    seen.current = version;
  }, [version, reload]);
  if (error) return <ErrorBox error={error} onRetry={reload} />;
  if (!data) return <Spinner />;
  return (
    <ul class="tree-list">
      {data.entries.map((child) => (
        <li key={keyOf(child)} class="file-node">
          {child.type === "directory" ? (
            <Directory entry={child} tree={tree} />
          ) : (
            <button
              type="button"
              class={`file-leaf ${child.type}`}
              aria-current={keyOf(child) === keyOf(tree.chosen)}
              onClick={() => tree.choose(child)}
            >
              <Safe text={child.name} />{" "}
              <span class="muted small">{child.type === "file" ? bytes(child.size) : s.files.types[child.type]}</span>
            </button>
          )}
        </li>
      ))}
      {data.entries.length === 0 && <li class="muted">{s.files.empty}</li>}
      {data.truncated && (
        <li class="muted">
          {s.files.truncated} {data.note && <Safe text={data.note} />}
        </li>
      )}
    </ul>
  );
}

type ChosenProps = {
  sandbox: string;
  entry: Entry;
  root: string;
  choose: (entry: Entry) => void;
  onChange: () => void;
};

type Asked = "mkdir" | "rename" | "delete";

/** What is chosen, and what can be done with it. */
function Chosen({ sandbox, entry, root, choose, onChange }: ChosenProps) {
  const [asked, setAsked] = useState<Asked>();
  const isDirectory = entry.type === "directory";
  const isRoot = entry.path === root;
  const path = filePath(sandbox, pathOf(entry));
  const close = () => setAsked(undefined);
  const changed = (next: Entry) => {
    onChange();
    choose(next);
  };
  return (
    <Section
      title={safe(entry.path)}
      actions={
        <>
          {isDirectory && <Button onClick={() => setAsked("mkdir")}>{s.files.mkdir}</Button>}
          {entry.type === "file" && (
            <a class="button" href={url(path)} download>
              {s.files.download}
            </a>
          )}
          {!isRoot && <Button onClick={() => setAsked("rename")}>{s.files.rename}</Button>}
          {!isRoot && (
            <Button kind="danger" onClick={() => setAsked("delete")}>
              {s.files.delete}
            </Button>
          )}
        </>
      }
    >
      {!isDirectory && (
        <dl class="facts">
          <dt>{s.files.size}</dt>
          <dd>
            <Bytes n={entry.size} />
          </dd>
          <dt>{s.files.modified}</dt>
          <dd>
            <Time at={entry.modified} />
          </dd>
        </dl>
      )}
      {isDirectory && <Upload sandbox={sandbox} directory={entry} onChange={onChange} />}
      {entry.type === "file" && (
        <FileView
          name={entry.name}
          bytes={entry.size}
          version={`${entry.path} ${entry.size} ${entry.modified}`}
          load={(signal) => blob(path, {}, signal)}
        />
      )}
      {!isDirectory && entry.type !== "file" && <Empty title={s.files.special} />}
      {asked === "mkdir" && (
        <Naming
          title={s.files.mkdir}
          action={s.files.create}
          name=""
          onClose={close}
          onName={async (name) => {
            const made = joined(pathOf(entry), name);
            await operate(sandbox, { operation: "mkdir", path: made });
            onChange();
          }}
        />
      )}
      {asked === "rename" && (
        <Naming
          title={s.files.rename}
          action={s.files.rename}
          name={entry.path_b64 === undefined ? entry.name : ""}
          onClose={close}
          onName={async (name) => {
            const to = joined(parentOf(pathOf(entry)), name);
            await operate(sandbox, { operation: "rename", from: pathOf(entry), to });
            changed(directoryOf(root));
          }}
        />
      )}
      {asked === "delete" && (
        <Confirm
          title={s.files.deleteTitle}
          action={s.files.delete}
          onClose={close}
          onConfirm={async () => {
            await operate(sandbox, { operation: "remove", path: pathOf(entry), recursive: isDirectory });
            changed(directoryOf(root));
          }}
        >
          <p class="wrap">{(isDirectory ? s.files.deleteDirectory : s.files.deleteFile)(safe(entry.path))}</p>
        </Confirm>
      )}
    </Section>
  );
}

type NamingProps = {
  title: string;
  action: string;
  name: string;
  onName: (name: string) => Promise<void>;
  onClose: () => void;
};

function Naming({ title, action, name: before, onName, onClose }: NamingProps) {
  const [name, setName] = useState(before);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const submit = async () => {
    setBusy(true);
    setError(undefined);
    try {
      await onName(name);
      onClose();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <Field label={s.files.name} value={name} onInput={setName} required />
        {error !== undefined && <ErrorBox error={error} />}
        <div class="actions">
          <Button onClick={onClose}>{s.ui.cancel}</Button>
          <Button kind="primary" submit busy={busy}>
            {action}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

type UploadProps = { sandbox: string; directory: Entry; onChange: () => void };

/** Files from this machine into a directory, by drop or by a dialog. Those that exist are asked about. */
function Upload({ sandbox, directory, onChange }: UploadProps) {
  const input = useRef<HTMLInputElement>(null);
  const abort = useRef(new AbortController());
  const [over, setOver] = useState(false);
  const [status, setStatus] = useState("");
  const [error, setError] = useState<unknown>();
  const [existing, setExisting] = useState<File[]>([]);
  useEffect(() => () => abort.current.abort(), []);
  const put = async (file: File, replace: boolean) => {
    const path = filePath(sandbox, joined(pathOf(directory), file.name));
    const headers: Record<string, string> = replace ? {} : { "If-None-Match": "*" };
    await send("PUT", path, file, { headers, signal: abort.current.signal });
  };
  const upload = async (files: File[], replace: boolean) => {
    setError(undefined);
    const there: File[] = [];
    let done = 0;
    try {
      for (const [index, file] of files.entries()) {
        setStatus(s.files.uploading(index + 1, files.length, safe(file.name)));
        try {
          await put(file, replace);
          done += 1;
        } catch (failure) {
          if (!(failure instanceof ApiError && failure.status === 412)) throw failure;
          there.push(file);
        }
      }
    } catch (failure) {
      if (!abort.current.signal.aborted) setError(failure);
    }
    setStatus(done > 0 ? s.files.uploaded(done) : "");
    setExisting(there);
    if (done > 0) onChange();
  };
  const current: Content = safe(directory.path);
  return (
    <>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: a drop is a second way to what the button does. */}
      <div
        class={`drop ${over ? "over" : ""}`}
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={(event) => {
          event.preventDefault();
          setOver(false);
          void upload([...(event.dataTransfer?.files ?? [])], false);
        }}
      >
        <p class="wrap">{s.files.drop(current)}</p>
        <Button onClick={() => input.current?.click()}>{s.files.upload}</Button>
        <input
          ref={input}
          type="file"
          multiple
          hidden
          aria-label={s.files.upload}
          onChange={(event) => {
            void upload([...(event.currentTarget.files ?? [])], false);
            event.currentTarget.value = "";
          }}
        />
        <p role="status">{status}</p>
        {error !== undefined && <ErrorBox error={error} />}
      </div>
      {existing.length > 0 && (
        <Confirm
          title={s.files.exists}
          action={s.files.replace}
          onConfirm={() => upload(existing, true)}
          onClose={() => setExisting([])}
        >
          {existing.map((file) => (
            <p key={file.name} class="wrap">
              {s.files.existsText(safe(file.name))}
            </p>
          ))}
        </Confirm>
      )}
    </>
  );
}
