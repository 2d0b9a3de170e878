/** A value outside of components, such as the session. */
import { useEffect, useState } from "preact/hooks";

type Store<T> = { get(): T; set(value: T): void; subscribe(listener: () => void): () => void };

export function store<T>(value: T): Store<T> {
  const listeners = new Set<() => void>();
  let current = value;
  return {
    get: () => current,
    set(next) {
      if (Object.is(next, current)) return;
      current = next;
      for (const listener of [...listeners]) listener();
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** The value now; the component is rendered again when it changes. */
export function useStore<T>(source: Store<T>): T {
  const [, setValue] = useState(source.get());
  useEffect(() => {
    const update = () => setValue(() => source.get());
    update();
    return source.subscribe(update);
  }, [source]);
  return source.get();
}
