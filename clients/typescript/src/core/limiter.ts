/** Waiting in a line: at most so many at once, in the order in which they came. */
export class Limiter {
  #free: number;
  readonly #waiting: (() => void)[] = [];

  constructor(slots: number) {
    this.#free = slots;
  }

  /** Waits for a slot; the returned function gives it back, once. Aborting the signal leaves the line. */
  async acquire(signal?: AbortSignal): Promise<() => void> {
    signal?.throwIfAborted();
    if (this.#free > 0) {
      this.#free -= 1;
    } else {
      await new Promise<void>((resolve, reject) => {
        const turn = () => {
          signal?.removeEventListener("abort", leave);
          resolve();
        };
        const leave = () => {
          this.#waiting.splice(this.#waiting.indexOf(turn), 1);
          reject(signal?.reason as Error);
        };
        signal?.addEventListener("abort", leave, { once: true });
        this.#waiting.push(turn);
      });
    }
    let held = true;
    return () => {
      if (!held) return;
      held = false;
      const next = this.#waiting.shift();
      if (next) next();
      else this.#free += 1;
    };
  }
}

/**
 * The slots of one process or server, 124 in all. Each kind of call has its own, so that streams that are read slowly
 * and commands that run for long never keep a short operation, or each other, from being made. Those that follow a
 * process may do so for hours.
 */
export class Slots {
  readonly executions = new Limiter(24);
  readonly operations = new Limiter(20);
  readonly downloads = new Limiter(8);
  readonly uploads = new Limiter(8);
  readonly followers = new Limiter(64);
}
