/** Takes files from this machine: dropped on it, or chosen with its button. */
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { Button } from "./basic";

/** `label` names the place, `action` its button; the children are above the button. */
export function Drop(props: {
  label: string;
  action: string;
  onFiles: (files: File[]) => void;
  children?: ComponentChildren;
}) {
  const input = useRef<HTMLInputElement>(null);
  const [over, setOver] = useState(false);
  const take = (list: FileList | null | undefined) => {
    if (list && list.length > 0) props.onFiles([...list]);
  };
  const drag = (isOver: boolean) => (event: DragEvent) => {
    event.preventDefault();
    setOver(isOver);
    if (event.type === "drop") take(event.dataTransfer?.files);
  };
  return (
    <fieldset
      class={`drop ${over ? "over" : ""}`}
      onDragOver={drag(true)}
      onDragLeave={drag(false)}
      onDrop={drag(false)}
    >
      <legend class="offscreen">{props.label}</legend>
      {props.children}
      <input
        ref={input}
        type="file"
        multiple
        hidden
        aria-label={props.action}
        onChange={({ currentTarget }) => {
          take(currentTarget.files);
          currentTarget.value = "";
        }}
      />
      <Button label={props.action} onClick={() => input.current?.click()} />
    </fieldset>
  );
}
