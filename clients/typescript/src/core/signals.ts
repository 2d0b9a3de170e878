/** Signals that follow others, without staying attached to them. */

/** A signal that is aborted with any of those given, or after a time; `release` detaches it from them. */
export function linked(
  signals: readonly (AbortSignal | undefined)[],
  timeout?: { ms: number; reason: () => unknown },
): { signal: AbortSignal; release: () => void } {
  const controller = new AbortController();
  const undo: (() => void)[] = [];
  for (const signal of signals) {
    if (!signal) continue;
    if (signal.aborted) controller.abort(signal.reason);
    const follow = () => controller.abort(signal.reason);
    signal.addEventListener("abort", follow, { once: true });
    undo.push(() => signal.removeEventListener("abort", follow));
  }
  if (timeout) {
    const timer = setTimeout(() => controller.abort(timeout.reason()), timeout.ms);
    undo.push(() => clearTimeout(timer));
  }
  return {
    signal: controller.signal,
    release: () => {
      for (const step of undo.splice(0)) step();
    },
  };
}

/** Waits, unless the signal is aborted. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
