/** The part of `@loopstack/common` that this package uses, for its tests: the platform is in no registry. */
import type { z } from "zod";

// Of version 0.37.

export interface ToolEnvelope<TData = unknown, TMeta = Record<string, unknown>> {
  type?: "text" | "image" | "file";
  data?: TData;
  error?: string;
  metadata?: TMeta;
}

export interface ToolResult<TData = unknown, TMeta = Record<string, unknown>> {
  data: TData;
  metadata: TMeta;
  type?: "text" | "image" | "file";
}

export interface RunContext<TArgs = unknown> {
  readonly args: TArgs;
}

export declare function Tool(options?: { name?: string; description?: string; schema?: z.ZodType }): ClassDecorator;

export declare abstract class BaseTool<
  TArgs extends object = object,
  TConfig extends object = object,
  TResult = unknown,
  TMeta = Record<string, unknown>,
> {
  call(args?: TArgs, options?: { config?: TConfig }): Promise<ToolResult<TResult, TMeta>>;
  protected abstract handle(args: TArgs, ctx: RunContext): Promise<ToolEnvelope<TResult, TMeta>>;
}

export declare function Workflow(options?: { title?: string; schema?: z.ZodType }): ClassDecorator;
export declare function Transition(options: { from?: string; to: string }): MethodDecorator;

export declare abstract class BaseWorkflow<TArgs extends object = object> {
  protected assignState(state: object): void;
  /** The platform's own runner is in its core; the tests run a workflow with this. */
  run(args: TArgs): Promise<object>;
}

/** Of the stand-in alone: the options of a class that `Tool` decorates. */
export declare function toolOptions(target: object): { name: string; description: string; schema: z.ZodType };

// Of version 0.18.

export declare function BlockConfig(options: { config: { description?: string } }): ClassDecorator;
export declare function WithArguments(schema: z.ZodType): ClassDecorator;
