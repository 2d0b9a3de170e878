/** What components load from the service. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { sleep } from "./api";

export type Loaded<T> = { data?: T; error?: Error; loading: boolean; reload: () => void };

type State<T> = { data?: T; error?: Error; loading: boolean };

/** How long after the last key or movement somebody is taken to be at the page. */
const ATTENDED_MS = 5 * 60_000;
let touched = Date.now();
for (const kind of ["pointermove", "keydown"]) addEventListener(kind, () => (touched = Date.now()));

/** Whether somebody is at the page: what is left open keeps nothing awake. */
export const isAttended = () => Date.now() - touched < ATTENDED_MS;

const always = () => true;

/** The new value, with parts of the old one where they are equal: rows that have not changed are not rendered again. */
function shared<T>(before: T | undefined, now: T): T {
  if (JSON.stringify(before) === JSON.stringify(now)) return before as T;
  if (Array.isArray(before) && Array.isArray(now)) {
    const old = new Map(before.map((entry) => [JSON.stringify(entry), entry]));
    return now.map((entry) => old.get(JSON.stringify(entry)) ?? entry) as T;
  }
  if (!isRecord(before) || !isRecord(now)) return now;
  return Object.fromEntries(Object.entries(now).map(([name, member]) => [name, shared(before[name], member)])) as T;
}

const isRecord = (it: unknown): it is Record<string, unknown> => Object.getPrototypeOf(it ?? 0) === Object.prototype;

function useLoader<T>(
  fn: (signal: AbortSignal) => Promise<T>,
  deps: unknown[],
  every: number | undefined,
  merge: (before: T | undefined, now: T) => T,
  when: () => boolean,
): Loaded<T> {
  const [state, setState] = useState<State<T>>({ loading: true });
  const [round, setRound] = useState(0);
  const latest = useRef({ fn, when });
  latest.current = { fn, when };
  const key = useRef<unknown[]>(deps);
  useEffect(() => {
    const abort = new AbortController();
    const same = key.current === deps || key.current.every((value, index) => Object.is(value, deps[index]));
    key.current = deps;
    // What was loaded for other dependencies is not shown for these.
    setState((before) => (same ? { ...before, loading: true } : { loading: true }));
    const run = async () => {
      try {
        const data = await latest.current.fn(abort.signal);
        if (abort.signal.aborted) return;
        setState((before) => {
          const merged = merge(before.data, data);
          return merged === before.data && !before.error && !before.loading ? before : { data: merged, loading: false };
        });
      } catch (error) {
        if (abort.signal.aborted) return;
        setState((before) => ({ ...before, error: error as Error, loading: false }));
      }
    };
    const loop = async () => {
      await run();
      while (every !== undefined && !abort.signal.aborted) {
        await sleep(every, abort.signal);
        if (!abort.signal.aborted && !document.hidden && latest.current.when()) await run();
      }
    };
    void loop();
    return () => abort.abort();
  }, [...deps, every, round]);
  const reload = useCallback(() => setRound((n) => n + 1), []);
  return { ...state, reload };
}

/** Loads once, and again when a dependency changes or `reload` is called. Older data stays until then. */
export function useLoad<T>(fn: (signal: AbortSignal) => Promise<T>, deps: unknown[]): Loaded<T> {
  return useLoader(fn, deps, undefined, (_, now) => now, always);
}

/** Loads every `ms` milliseconds, or once without, while the page is visible and `when` says so. */
export function usePoll<T>(
  fn: (signal: AbortSignal) => Promise<T>,
  ms: number | undefined,
  deps: unknown[],
  when = always,
): Loaded<T> {
  return useLoader(fn, deps, ms, shared, when);
}
