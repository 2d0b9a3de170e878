/** Dialogs, on the browser's own element: it keeps the focus inside and gives it back. */
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { s } from "../strings";
import { Button, useAction } from "./basic";

/** An open dialog. It is closed by its owner, who is asked to by Escape or the close button. */
export function Dialog(props: { title: string; size?: "wide"; onClose: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const element = dialog.current;
    const before = document.activeElement;
    element?.showModal();
    return () => {
      element?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      class={props.size}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
    >
      <header class="dialog-head">
        <h2 id={id}>{props.title}</h2>
        <Button kind="quiet" aria-label={s.ui.close} onClick={props.onClose}>
          ×
        </Button>
      </header>
      {props.children}
    </dialog>
  );
}

/** Asks before something that cannot be undone, and shows why it failed. */
export function Confirm(props: {
  title: string;
  children: ComponentChildren;
  action: string;
  dismiss?: string;
  onConfirm: () => unknown;
  onClose: () => void;
}) {
  const { busy, run, failure } = useAction();
  const confirm = () => run(async () => props.onConfirm()).then((isDone) => isDone && props.onClose());
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <div>{props.children}</div>
      {failure}
      <footer class="actions">
        <Button label={props.dismiss ?? s.ui.cancel} onClick={props.onClose} />
        <Button label={props.action} kind="danger" busy={busy} onClick={() => void confirm()} />
      </footer>
    </Dialog>
  );
}
