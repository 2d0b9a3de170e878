/** Small parts: badges, figures, buttons, fields, messages. */
import type { ButtonHTMLAttributes, ComponentChildren, RefObject } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { ApiError } from "../lib/api";
import { ago, bytes, cut, safe, time } from "../lib/format";
import { s } from "../strings";

export type Tone = "ok" | "warn" | "bad" | "info" | "muted";

/** A word for a state. The colour only repeats it. */
export function Badge({ tone = "muted", children }: { tone?: Tone; children: ComponentChildren }) {
  return <span class={`badge ${tone}`}>{children}</span>;
}

/** A text of a guest or of another client on one line. */
export function Safe({ text }: { text: string }) {
  return <bdi>{safe(text)}</bdi>;
}

const TICK_MS = 10_000;

/** A point of time as a distance from now, and in full as its title. */
export function Time({ at }: { at: string | null | undefined }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), TICK_MS);
    return () => clearInterval(timer);
  }, []);
  if (!at) return <span class="muted">{s.ui.none}</span>;
  return (
    <time dateTime={at} title={time(at)}>
      {ago(at)}
    </time>
  );
}

/** A size. What is no file has none. */
export function Bytes({ n }: { n: number | null | undefined }) {
  if (n === null || n === undefined) return <span class="muted">{s.ui.none}</span>;
  return (
    <span class="figure" title={s.ui.exactBytes(n)}>
      {bytes(n)}
    </span>
  );
}

/** A figure against its bound. */
export function Meter(props: {
  label: string;
  value: number | null | undefined;
  bound: number;
  format?: (n: number) => string;
}) {
  const { label, value, bound, format = String } = props;
  const known = value !== null && value !== undefined;
  const share = known && bound > 0 ? Math.min(value / bound, 1) : 0;
  const text = known ? s.ui.of(format(value), format(bound)) : s.ui.unknownOf(format(bound));
  return (
    <div class="meter">
      <span class="meter-label">{label}</span>
      <span class="meter-text figure">{text}</span>
      {/* biome-ignore lint/a11y/useSemanticElements: browsers agree on no way to colour a <meter>. */}
      <div
        class={`meter-bar ${share >= 0.95 ? "bad" : share >= 0.75 ? "warn" : ""}`}
        role="meter"
        aria-label={label}
        aria-valuemin={0}
        aria-valuemax={bound}
        aria-valuenow={known ? Math.min(value, bound) : 0}
        aria-valuetext={text}
      >
        <div style={{ width: `${share * 100}%` }} />
      </div>
    </div>
  );
}

/** What went wrong, its hint, and the request to ask the operator about. */
export function ErrorBox(props: { error: unknown; onRetry?: () => void; place?: RefObject<HTMLDivElement | null> }) {
  const { error, onRetry, place } = props;
  const api = error instanceof ApiError ? error : undefined;
  const message = error instanceof Error ? error.message : String(error);
  return (
    <div ref={place} class="error-box" role="alert">
      <p>
        <Safe text={cut(message, 2000)} />
      </p>
      {api?.errors
        .filter((each) => !message.includes(each.detail))
        .map((each) => (
          <p key={each.pointer}>
            <code>{safe(each.pointer)}</code> {safe(each.detail)}
          </p>
        ))}
      {api?.hint && <p class="hint">{s.ui.hint(safe(api.hint))}</p>}
      {api?.requestId && (
        <p class="muted small">
          {s.ui.request} <code>{safe(api.requestId)}</code>
        </p>
      )}
      {onRetry && <Button label={s.ui.retry} onClick={onRetry} />}
    </div>
  );
}

/** Something that the service is asked for, one at a time, and why it failed. */
export function useAction() {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  /** Whether it was done. */
  const run = async (action: () => Promise<unknown>): Promise<boolean> => {
    setBusy(true);
    setError(undefined);
    const done = await action().then(() => true, setError);
    setBusy(false);
    return done === true;
  };
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => place.current?.scrollIntoView({ block: "nearest" }), [error]);
  const failure = error === undefined ? null : <ErrorBox error={error} place={place} />;
  return { busy, run, failure };
}

type FieldProps = {
  label: string;
  value: string;
  onInput: (value: string) => void;
  hint?: string;
  /** More than one line: a text area of this many rows. */
  rows?: number;
  type?: "text" | "password" | "search" | "datetime-local";
  placeholder?: string;
  /** The id of a `datalist`. */
  list?: string;
  required?: boolean;
};

/** A labelled input, or with `rows` a labelled text area. */
export function Field({ label, value, onInput, hint, rows, type = "text", ...rest }: FieldProps) {
  const id = useId();
  const shared = {
    ...rest,
    id,
    value,
    spellcheck: false,
    autocomplete: "off" as const,
    "aria-describedby": hint ? `${id}-hint` : undefined,
  };
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {rows ? (
        <textarea {...shared} rows={rows} onInput={(event) => onInput(event.currentTarget.value)} />
      ) : (
        <input {...shared} type={type as "text"} onInput={(event) => onInput(event.currentTarget.value)} />
      )}
      {hint && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

type ButtonProps = Omit<ButtonHTMLAttributes<HTMLButtonElement>, "type" | "label"> & {
  kind?: "plain" | "primary" | "danger" | "quiet";
  /** Waits for an answer: disabled, and says so. */
  busy?: boolean;
  submit?: boolean;
  /** Its text, in place of children. */
  label?: string;
};

export function Button({
  kind = "plain",
  busy,
  submit,
  label,
  children,
  class: extra,
  disabled,
  ...rest
}: ButtonProps) {
  return (
    <button
      {...rest}
      type={submit ? "submit" : "button"}
      class={`button ${kind} ${extra ?? ""}`}
      disabled={disabled || busy}
      aria-busy={busy}
    >
      {label ?? children}
    </button>
  );
}

/** Copies a text, which may be made only then. Sessions, and so this page, are on secure origins alone. */
export function Copy({ text, label = s.ui.copy }: { text: string | (() => string); label?: string }) {
  const [done, setDone] = useState<string>();
  useEffect(() => {
    const timer = setTimeout(() => setDone(undefined), 2000);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = () => {
    const copied = navigator.clipboard.writeText(typeof text === "string" ? text : text());
    copied.then(
      () => setDone(s.ui.copied),
      () => setDone(s.ui.copyFailed),
    );
  };
  return (
    <Button kind="quiet" class="copy" onClick={copy}>
      <span aria-live="polite">{done ?? label}</span>
    </Button>
  );
}

/** There is nothing to show, and what to do about it. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <div>{children}</div>}
    </div>
  );
}

export function Spinner() {
  return (
    <p class="spinner" role="status">
      <span aria-hidden="true" />
      {s.ui.loading}
    </p>
  );
}

/** What is loaded; until then, or in place of it, why it is not there. */
export function Loaded<T>(props: {
  of: { data?: T; error?: Error; reload: () => void };
  isEmpty?: (data: T) => boolean;
  none?: string;
  children: (data: T) => ComponentChildren;
}) {
  const { data, error, reload } = props.of;
  const isNone = props.none && error instanceof ApiError && error.status === 404;
  if (isNone || (data && props.isEmpty?.(data))) return <Empty title={props.none ?? ""} />;
  return (
    <>
      {error && <ErrorBox error={error} onRetry={reload} />}
      {data ? props.children(data) : !error && <Spinner />}
    </>
  );
}

/** A page: its heading gets the focus when it is shown, and names the window. */
export function Page(props: { title: string; actions?: ComponentChildren; children: ComponentChildren }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = s.app.windowTitle(props.title);
  }, [props.title]);
  useEffect(() => {
    // On the first page of a visit the browser's own order of focus is right.
    if (document.documentElement.dataset.visited) heading.current?.focus();
    document.documentElement.dataset.visited = "yes";
  }, []);
  return (
    <>
      <header class="page-head">
        <h1 ref={heading} tabIndex={-1}>
          <bdi>{props.title}</bdi>
        </h1>
        {props.actions && <div class="actions">{props.actions}</div>}
      </header>
      {props.children}
    </>
  );
}

/** A part of a page with a heading. */
export function Section(props: { title: string; actions?: ComponentChildren; children: ComponentChildren }) {
  const id = useId();
  return (
    <section class="section" aria-labelledby={id}>
      <header>
        <h2 id={id}>{props.title}</h2>
        {props.actions && <div class="actions">{props.actions}</div>}
      </header>
      {props.children}
    </section>
  );
}
