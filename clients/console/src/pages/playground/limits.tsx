/** The limits that both forms have. */
import { limitName } from "../../lib/format";
import type { TypedLimits } from "../../lib/typed";
import { s } from "../../strings";
import { Field } from "../../ui";
import { LIMITS } from "./drafts";

type Props = { limits: TypedLimits; onChange: (members: { limits: TypedLimits }) => void };

export function LimitFields({ limits, onChange }: Props) {
  return LIMITS.map((name) => (
    <Field
      key={name}
      label={limitName(name)}
      placeholder={s.examples[name]}
      hint={s.playground.default}
      value={limits[name] ?? ""}
      onInput={(value) => onChange({ limits: { ...limits, [name]: value } })}
    />
  ));
}
