/** The limits that both forms have. */
import type { LimitsRequest } from "../../lib/wire";
import { s } from "../../strings";
import { Field } from "../../ui";

export type LimitsDraft = { timeout: string; memory: string };

const MIB = 1024 * 1024;

type Props = { draft: LimitsDraft; onChange: (members: Partial<LimitsDraft>) => void };

export function LimitFields({ draft, onChange }: Props) {
  return (["timeout", "memory"] as const).map((name) => (
    <Field
      key={name}
      label={s.playground[name]}
      type="number"
      min={1}
      placeholder={s.playground.default}
      value={draft[name]}
      onInput={(value) => onChange({ [name]: value })}
    />
  ));
}

/** What was entered; nothing for what was not, which is then the server's default. */
export function limitsOf({ timeout, memory }: LimitsDraft): { limits?: LimitsRequest } {
  const limits: LimitsRequest = {};
  if (timeout !== "") limits.timeout_ms = Math.round(Number(timeout) * 1000);
  if (memory !== "") limits.memory_bytes = Math.round(Number(memory) * MIB);
  return Object.keys(limits).length > 0 ? { limits } : {};
}
