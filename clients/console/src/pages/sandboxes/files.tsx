/** The files of a sandbox: a tree, and what is chosen in it. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, blob, send } from "../../lib/api";
import { pathOf } from "../../lib/content";
import { bytes, safe } from "../../lib/format";
import { usePoll } from "../../lib/load";
import { s } from "../../strings";
import {
  Button,
  Confirm,
  Download,
  Drop,
  Empty,
  Field,
  FileView,
  Loaded,
  Safe,
  Section,
  Time,
  useAction,
} from "../../ui";
import { Ask, Choice, useField } from "../../ui/form";
import { type Entry, filePath, joined, type Listing, operate, parentOf, type SandboxView } from "./calls";
import { FOLLOW_MS, follows } from "./parts";

/** Of one directory. */
const MAX_ENTRIES = 1_000;
const words = s.files;

/** `version` counts what has changed something: open directories are listed again. */
type Tree = { view: SandboxView; chosen: Entry; choose: (entry: Entry) => void; version: number };

export function Files({ view }: { view: SandboxView }) {
  const { id: sandbox, spec } = view;
  const [root, setRoot] = useState(directoryOf(spec.mount_path ?? "/io"));
  const [chosen, choose] = useState(root);
  const [version, setVersion] = useState(0);
  const changed = () => setVersion((n) => n + 1);
  const roots = {
    [spec.mount_path ?? "/io"]: words.io,
    ...(Object.keys(spec.inputs ?? {}).length > 0 && { "/in": words.inputs }),
    ...(spec.files === "all" && { "/": words.whole }),
  };
  const begin = (path: string) => {
    setRoot(directoryOf(path));
    choose(directoryOf(path));
  };
  return (
    <div class="files">
      <Section title={words.tree}>
        {Object.keys(roots).length > 1 && <Choice label={words.root} value={root.path} of={roots} onChange={begin} />}
        <div>
          <Directory key={root.path} entry={root} isRoot tree={{ view, chosen, choose, version }} />
        </div>
      </Section>
      <Chosen key={keyOf(chosen)} sandbox={sandbox} entry={chosen} root={root} choose={choose} onChange={changed} />
    </div>
  );
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
  const choose = () => {
    // What is only looked at is not closed by it.
    setOpen(isRoot || !(open && isChosen));
    tree.choose(entry);
  };
  return (
    <>
      <button type="button" class="tree-toggle" aria-expanded={open} aria-current={isChosen} onClick={choose}>
        <Safe text={`${entry.name.replace(/\/$/, "")}/`} />
      </button>
      {open && <Entries entry={entry} tree={tree} />}
    </>
  );
}

function Entries({ entry, tree }: { entry: Entry; tree: Tree }) {
  const { view, version, chosen, choose } = tree;
  const loaded = usePoll(
    (signal) => operate<Listing>(view.id, { operation: "list", path: pathOf(entry), limit: MAX_ENTRIES }, signal),
    FOLLOW_MS,
    [view.id, keyOf(entry)],
    follows(view),
  );
  const { data, reload } = loaded;
  // What is chosen is shown as it is now.
  useEffect(() => {
    const now = data?.entries.find((child) => keyOf(child) === keyOf(chosen));
    if (now && (now.size !== chosen.size || now.modified !== chosen.modified)) choose(now);
  }, [data]);
  const seen = useRef(version);
  useEffect(() => {
    if (seen.current !== version) reload();
    seen.current = version;
  }, [version, reload]);
  const leaf = (child: Entry) => (
    <button type="button" class="file-leaf" aria-current={keyOf(child) === keyOf(chosen)} onClick={() => choose(child)}>
      <Safe text={child.name} />{" "}
      <span class="muted small">{child.type === "file" ? bytes(child.size) : words.types[child.type]}</span>
    </button>
  );
  return (
    <Loaded of={loaded}>
      {({ entries, truncated, note }) => (
        <ul class="tree-list">
          {entries.map((child) => (
            <li key={keyOf(child)} class="file-node">
              {child.type === "directory" ? <Directory entry={child} tree={tree} /> : leaf(child)}
            </li>
          ))}
          {entries.length === 0 && <li class="muted">{words.empty}</li>}
          {truncated && <li class="muted">{safe(`${words.truncated} ${note ?? ""}`)}</li>}
        </ul>
      )}
    </Loaded>
  );
}

type ChosenProps = {
  sandbox: string;
  entry: Entry;
  root: Entry;
  choose: (entry: Entry) => void;
  onChange: () => void;
};

/** What is chosen, and what can be done with it. */
function Chosen({ sandbox, entry, root, choose, onChange }: ChosenProps) {
  const [asked, setAsked] = useState<"mkdir" | "rename" | "delete">();
  const { type, size, modified } = entry;
  const isDirectory = type === "directory";
  const content = pathOf(entry);
  const path = filePath(sandbox, content);
  const close = () => setAsked(undefined);
  const moved = () => {
    onChange();
    choose(root);
  };
  const mkdir = (name: string) => operate(sandbox, { operation: "mkdir", path: joined(content, name) }).then(onChange);
  const rename = (name: string) => {
    const to = joined(parentOf(content), name);
    return operate(sandbox, { operation: "rename", from: content, to }).then(moved);
  };
  const remove = () => operate(sandbox, { operation: "remove", path: content, recursive: isDirectory }).then(moved);
  const actions = (
    <>
      {isDirectory && <Button onClick={() => setAsked("mkdir")} label={words.mkdir} />}
      {type === "file" && <Download path={path} name={entry.name} text={words.download} />}
      {entry.path !== root.path && (
        <>
          <Button onClick={() => setAsked("rename")} label={words.rename} />
          <Button kind="danger" onClick={() => setAsked("delete")} label={words.delete} />
        </>
      )}
    </>
  );
  const name = entry.path_b64 === undefined ? entry.name : "";
  return (
    <Section title={safe(entry.path)} actions={actions}>
      {isDirectory && <Upload sandbox={sandbox} directory={entry} onChange={onChange} />}
      {type === "file" && (
        <>
          <p class="muted">
            {bytes(size)}, <Time at={modified} />
          </p>
          <FileView
            name={entry.name}
            bytes={size}
            version={`${path} ${size} ${modified}`}
            load={(signal) => blob(path, {}, signal)}
          />
        </>
      )}
      {!isDirectory && type !== "file" && <Empty title={words.special} />}
      {asked === "mkdir" && <Naming title={words.mkdir} action={words.create} onName={mkdir} onClose={close} />}
      {asked === "rename" && (
        <Naming title={words.rename} action={words.rename} name={name} onName={rename} onClose={close} />
      )}
      {asked === "delete" && (
        <Confirm title={words.deleteTitle} action={words.delete} onConfirm={remove} onClose={close}>
          <p class="wrap">{(isDirectory ? words.deleteDirectory : words.deleteFile)(safe(entry.path))}</p>
        </Confirm>
      )}
    </Section>
  );
}

type NamingProps = {
  title: string;
  action: string;
  name?: string;
  onName: (name: string) => Promise<void>;
  onClose: () => void;
};

function Naming({ name, onName, ...rest }: NamingProps) {
  const field = useField(name);
  return (
    <Ask {...rest} onSubmit={() => onName(field.value)}>
      <Field label={words.name} {...field} required />
    </Ask>
  );
}

type UploadProps = { sandbox: string; directory: Entry; onChange: () => void };

/** Files from this machine into a directory. Those that exist are asked about. */
function Upload({ sandbox, directory, onChange }: UploadProps) {
  const abort = useRef(new AbortController());
  const [status, setStatus] = useState("");
  const [existing, setExisting] = useState<File[]>([]);
  const { run, failure } = useAction();
  useEffect(() => () => abort.current.abort(), []);
  const upload = async (files: File[], headers: Record<string, string>) => {
    const there: File[] = [];
    let done = 0;
    try {
      for (const file of files) {
        setStatus(words.uploading(safe(file.name)));
        const path = filePath(sandbox, joined(pathOf(directory), file.name));
        await send("PUT", path, file, { headers, signal: abort.current.signal }).catch((error) => {
          if (!(error instanceof ApiError && error.status === 412)) throw error;
          there.push(file);
        });
        done = files.indexOf(file) + 1 - there.length;
      }
    } finally {
      setStatus(done > 0 ? words.uploaded(done) : "");
      setExisting(there);
      onChange();
    }
  };
  return (
    <>
      <Drop
        label={words.drop(safe(directory.path))}
        action={words.upload}
        onFiles={(files) => void run(() => upload(files, { "If-None-Match": "*" }))}
      >
        <p class="wrap">{words.drop(safe(directory.path))}</p>
      </Drop>
      <p role="status">{status}</p>
      {failure}
      {existing.length > 0 && (
        <Confirm
          title={words.exists}
          action={words.replace}
          onConfirm={() => run(() => upload(existing, {}))}
          onClose={() => setExisting([])}
        >
          <p class="wrap">{words.existsText(existing.map(({ name }) => safe(name)).join(", "))}</p>
        </Confirm>
      )}
    </>
  );
}
