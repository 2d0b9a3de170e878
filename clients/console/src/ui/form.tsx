/** What is asked of the reader, and of the service then. */
import { type ComponentChildren, Fragment } from "preact";
import { useId, useState } from "preact/hooks";
import { s } from "../strings";
import { Button, useAction } from "./basic";
import { Dialog } from "./dialog";

/** Names and what they stand for; those without are left out. */
export function Facts({ of }: { of: readonly (readonly [string, ComponentChildren])[] }) {
  const known = of.filter(([, value]) => value !== undefined && value !== null);
  return (
    <dl class="facts">
      {known.map(([name, value]) => (
        <Fragment key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </Fragment>
      ))}
    </dl>
  );
}

/** The state of an input, for a `Field`. */
export function useField(initial = "") {
  const [value, onInput] = useState(initial);
  return { value, onInput };
}

export function Check(props: { label: string; checked: boolean; onChange: (checked: boolean) => void }) {
  return (
    <label class="check">
      <input
        type="checkbox"
        checked={props.checked}
        onChange={(event) => props.onChange(event.currentTarget.checked)}
      />
      {props.label}
    </label>
  );
}

type ChoiceProps<T extends string> = { label: string; value: T; of: Record<T, string>; onChange: (value: T) => void };

/** A labelled choice of what a section of the strings names. */
export function Choice<T extends string>({ label, value, of, onChange }: ChoiceProps<T>) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <select id={id} value={value} onChange={(event) => onChange(event.currentTarget.value as T)}>
        {Object.entries<string>(of).map(([each, text]) => (
          <option key={each} value={each}>
            {text}
          </option>
        ))}
      </select>
    </div>
  );
}

type FormProps = { action: string; onSubmit: () => Promise<unknown>; children: ComponentChildren };

export function Form({ action, onSubmit, onCancel, children }: FormProps & { onCancel: (() => void) | undefined }) {
  const { busy, run, failure } = useAction();
  const submit = (event: Event) => {
    event.preventDefault();
    // What the input lacks is found in there, too.
    void run(async () => onSubmit());
  };
  return (
    <form class="form" onSubmit={submit}>
      {children}
      {failure}
      <div class="row">
        <Button kind="primary" submit busy={busy} label={action} />
        {onCancel && <Button onClick={onCancel} label={s.ui.cancel} />}
      </div>
    </form>
  );
}

/** A form in a dialog, which is closed when it has been done. */
export function Ask({ title, onClose, onSubmit, ...rest }: FormProps & { title: string; onClose: () => void }) {
  return (
    <Dialog title={title} onClose={onClose}>
      <Form {...rest} onCancel={onClose} onSubmit={() => onSubmit().then(onClose)} />
    </Dialog>
  );
}
