/** The image of something new. */
import { useId } from "preact/hooks";
import { get } from "../lib/api";
import { useLoad } from "../lib/load";
import type { ExecutionList, SandboxList } from "../lib/wire";
import { s } from "../strings";
import { Field } from "../ui";

/** Those of the latest executions and sandboxes are proposed. Without the scope for a list, it proposes none. */
async function known(signal: AbortSignal): Promise<string[]> {
  const lists = await Promise.allSettled([
    get<ExecutionList>("/executions", { limit: 100 }, signal).then((it) => it.executions.map(({ image }) => image)),
    get<SandboxList>("/sandboxes", { limit: 50 }, signal).then((it) => it.sandboxes.map(({ spec }) => spec.image)),
  ]);
  const images = lists.flatMap((list) => (list.status === "fulfilled" ? list.value : []));
  return [...new Set(images.filter((image) => typeof image === "string"))];
}

export function ImageField(props: { value: string; onInput: (value: string) => void }) {
  const list = useId();
  const images = useLoad(known, []).data ?? [];
  return (
    <>
      <Field label={s.image.label} hint={s.image.hint} placeholder={s.examples.image} list={list} {...props} />
      <datalist id={list}>
        {images.map((image) => (
          <option key={image} value={image} />
        ))}
      </datalist>
    </>
  );
}
