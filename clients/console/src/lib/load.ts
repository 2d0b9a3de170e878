/** What components load from the service. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { sleep } from "./api";

export type Loaded<T> = { data?: T; error?: Error; loading: boolean; reload: () => void };

type State<T> = { data?: T; error?: Error; loading: boolean };

function useLoader<T>(
  fn: (signal: AbortSignal) => Promise<T>,
  deps: unknown[],
  every: number | undefined,
  merge: (before: T | undefined, now: T) => T,
): Loaded<T> {
  const [state, setState] = useState<State<T>>({ loading: true });
  const [round, setRound] = useState(0);
  const latest = useRef(fn);
  latest.current = fn;
  const key = useRef<unknown[]>(deps);
  useEffect(() => {
    const abort = new AbortController();
    const same = key.current === deps || key.current.every((value, index) => Object.is(value, deps[index]));
    key.current = deps;
    // What was loaded for other dependencies is not shown for these.
    setState((before) => (same ? { ...before, loading: true } : { loading: true }));
    const run = async () => {
      try {
        const data = await latest.current(abort.signal);
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
        if (!abort.signal.aborted && !document.hidden) await run();
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
  return useLoader(fn, deps, undefined, (_, now) => now);
}

/** Loads every `ms` milliseconds, or once without, while the page is visible. `merge` may keep what has not changed. */
export function usePoll<T>(
  fn: (signal: AbortSignal) => Promise<T>,
  ms: number | undefined,
  deps: unknown[],
  merge: (before: T | undefined, now: T) => T = (_, now) => now,
): Loaded<T> {
  return useLoader(fn, deps, ms, merge);
}

/** Of two lists by key: the new one, with the old entries where they are equal, so that their rows are not rendered again. */
export function keep<T>(before: T[] | undefined, now: T[], keyOf: (entry: T) => string): T[] {
  if (!before) return now;
  const old = new Map(before.map((entry) => [keyOf(entry), entry]));
  const merged = now.map((entry) => {
    const candidate = old.get(keyOf(entry));
    return candidate !== undefined && JSON.stringify(candidate) === JSON.stringify(entry) ? candidate : entry;
  });
  return merged.length === before.length && merged.every((entry, index) => entry === before[index]) ? before : merged;
}
