/** JSON as a tree. What is closed is not rendered, and long lists come in parts. */
import { useState } from "preact/hooks";
import { cut, safe } from "../lib/format";
import { s } from "../strings";
import { Button } from "./basic";

const PART = 100;
const MAX_TEXT = 2000;
const OPEN_DEPTH = 2;

/** A value with its name, if it has one. */
export function Tree({ value, name, depth = 0 }: { value: unknown; name?: string; depth?: number }) {
  const [open, setOpen] = useState(depth < OPEN_DEPTH);
  const [shown, setShown] = useState(PART);
  const label = name === undefined ? null : <bdi class="tree-key">{safe(cut(name, 200))}</bdi>;
  if (typeof value !== "object" || value === null) {
    return (
      <div class="tree-leaf">
        {label}
        <Scalar value={value} />
      </div>
    );
  }
  const list = Array.isArray(value);
  const names = list ? undefined : Object.keys(value);
  const count = names ? names.length : (value as unknown[]).length;
  const entries: [string, unknown][] = [];
  for (let i = 0; open && i < Math.min(shown, count); i += 1) {
    const key = names?.[i] ?? String(i);
    entries.push([key, (value as Record<string, unknown>)[key]]);
  }
  return (
    <div class="tree-node">
      <button type="button" class="tree-toggle" aria-expanded={open} onClick={() => setOpen(!open)}>
        {label}
        <span class="muted">{list ? s.ui.items(count) : s.ui.members(count)}</span>
      </button>
      {open && (
        <ul class="tree-list">
          {entries.map(([key, child]) => (
            <li key={key}>
              <Tree value={child} name={key} depth={depth + 1} />
            </li>
          ))}
          {count > shown && (
            <li>
              <Button label={s.ui.more(count - shown)} kind="quiet" onClick={() => setShown(shown + PART)} />
            </li>
          )}
        </ul>
      )}
    </div>
  );
}

function Scalar({ value }: { value: unknown }) {
  if (typeof value === "string") {
    const text = cut(value, MAX_TEXT);
    return <bdi class="tree-string">{safe(JSON.stringify(text))}</bdi>;
  }
  return <span class="tree-scalar">{value === undefined ? "null" : String(value)}</span>;
}
