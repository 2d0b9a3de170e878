/** The limits that both forms have. */
import type { LimitsRequest } from "../../lib/wire";
import { s } from "../../strings";
import { Field } from "../../ui";

export type LimitsDraft = { timeout: string; memory: string };

const MIB = 1024 * 1024;

export function LimitFields({
  draft,
  onChange,
}: {
  draft: LimitsDraft;
  onChange: (members: Partial<LimitsDraft>) => void;
}) {
  return (
    <>
      <Field
        label={s.playground.timeout}
        type="number"
        min={1}
        placeholder={s.playground.default}
        value={draft.timeout}
        onInput={(timeout) => onChange({ timeout })}
      />
      <Field
        label={s.playground.memory}
        type="number"
        min={1}
        placeholder={s.playground.default}
        value={draft.memory}
        onInput={(memory) => onChange({ memory })}
      />
    </>
  );
}

/** What was entered; nothing for what was not, which is then the server's default. */
export function limitsOf({ timeout, memory }: LimitsDraft): { limits?: LimitsRequest } {
  const limits: LimitsRequest = {};
  if (timeout !== "") limits.timeout_ms = Math.round(Number(timeout) * 1000);
  if (memory !== "") limits.memory_bytes = Math.round(Number(memory) * MIB);
  return Object.keys(limits).length > 0 ? { limits } : {};
}
