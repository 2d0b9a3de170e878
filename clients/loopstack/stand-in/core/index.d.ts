/** The part of `@loopstack/core` 0.18 that this package uses, for its tests: the platform is in no registry. */
import type { ToolEnvelope } from "@loopstack/common";

export declare abstract class ToolBase<TArgs extends object = object> {
  type: string;
  validate(args: unknown): TArgs;
  abstract execute(args: TArgs, ctx: unknown): Promise<ToolEnvelope>;
}
