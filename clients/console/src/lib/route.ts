/** The page's place, which is the fragment of its address: `#/executions/ID?tab=files`. */
import { store, useStore } from "./store";

export type Route = { path: string[]; query: URLSearchParams };

export function parse(hash: string): Route {
  const text = hash.replace(/^#\/?/, "");
  const mark = text.indexOf("?");
  const path = mark < 0 ? text : text.slice(0, mark);
  return {
    path: path.split("/").filter(Boolean).map(decode),
    query: new URLSearchParams(mark < 0 ? "" : text.slice(mark + 1)),
  };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const current = store(parse(location.hash));
addEventListener("hashchange", () => current.set(parse(location.hash)));

export function useRoute(): Route {
  return useStore(current);
}

/** A link to a place: `href(["executions", id], { tab: "files" })`. */
export function href(path: string[], query: Record<string, string | undefined> = {}): string {
  const members = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) members.set(name, value);
  const text = members.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Goes there, with an entry in the history. */
export function go(target: string): void {
  location.hash = target;
}

/** Goes there in place of the entry in the history. */
export function replace(target: string): void {
  history.replaceState(null, "", target);
  current.set(parse(location.hash));
}
