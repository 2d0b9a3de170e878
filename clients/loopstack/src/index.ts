/** The tools for Loopstack 0.37: classes that extend `BaseTool`. */
import { BaseTool, Tool, type ToolEnvelope } from "@loopstack/common";
import { type DynamicModule, Inject, Module } from "@nestjs/common";
import type { z } from "zod";
import * as tools from "./definitions.js";
import { type CommandExecutionResult, ContainerManagerService, type SandboxOptions } from "./manager.js";
import { withOptions } from "./modules.js";
import type * as results from "./results.js";

export * from "./manager.js";
export type * from "./results.js";

/** The description of a tool for the platform. */
const options = ({ name, description, schema }: { name: string; description: string; schema: z.ZodType }) => ({
  name,
  description,
  schema,
});

/** The arguments of `SandboxInit`. */
export type SandboxInitArgs = z.infer<typeof tools.init.schema>;

/** Makes a sandbox, or gives the one of this name. */
@Tool(options(tools.init))
export class SandboxInit extends BaseTool<SandboxInitArgs, object, results.SandboxInitResult> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  protected handle(args: SandboxInitArgs): Promise<ToolEnvelope<results.SandboxInitResult>> {
    return tools.init.run(this.manager, args);
  }
}

/** The arguments of `SandboxCommand`. */
export type SandboxCommandArgs = z.infer<typeof tools.command.schema>;

/** Runs a program in a sandbox that has an image. */
@Tool(options(tools.command))
export class SandboxCommand extends BaseTool<SandboxCommandArgs, object, CommandExecutionResult> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  protected handle(args: SandboxCommandArgs): Promise<ToolEnvelope<CommandExecutionResult>> {
    return tools.command.run(this.manager, args);
  }
}

/** The arguments of `SandboxDestroy`. */
export type SandboxDestroyArgs = z.infer<typeof tools.destroy.schema>;

/** Ends a sandbox; the files of its mounted directory stay. */
@Tool(options(tools.destroy))
export class SandboxDestroy extends BaseTool<SandboxDestroyArgs, object, results.SandboxDestroyResult> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  protected handle(args: SandboxDestroyArgs): Promise<ToolEnvelope<results.SandboxDestroyResult>> {
    return tools.destroy.run(this.manager, args);
  }
}

/** The arguments of `SandboxExecuteScript`. */
export type SandboxExecuteScriptArgs = z.infer<typeof tools.executeScript.schema>;

/** Runs a Luau script on the files of a sandbox. */
@Tool(options(tools.executeScript))
export class SandboxExecuteScript extends BaseTool<
  SandboxExecuteScriptArgs,
  object,
  results.SandboxExecuteScriptResult
> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  protected handle(args: SandboxExecuteScriptArgs): Promise<ToolEnvelope<results.SandboxExecuteScriptResult>> {
    return tools.executeScript.run(this.manager, args);
  }
}

/** The arguments of `SandboxReadFile`. */
export type SandboxReadFileArgs = z.infer<typeof tools.readFile.schema>;

/** Reads a file. */
@Tool(options(tools.readFile))
export class SandboxReadFile extends BaseTool<SandboxReadFileArgs, object, results.SandboxReadFileResult> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  protected handle(args: SandboxReadFileArgs): Promise<ToolEnvelope<results.SandboxReadFileResult>> {
    return tools.readFile.run(this.manager, args);
  }
}

/** The arguments of `SandboxWriteFile`. */
export type SandboxWriteFileArgs = z.infer<typeof tools.writeFile.schema>;

/** Writes a file; an old one is replaced. */
@Tool(options(tools.writeFile))
export class SandboxWriteFile extends BaseTool<SandboxWriteFileArgs, object, results.SandboxWriteFileResult> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  protected handle(args: SandboxWriteFileArgs): Promise<ToolEnvelope<results.SandboxWriteFileResult>> {
    return tools.writeFile.run(this.manager, args);
  }
}

/** The arguments of `SandboxListDirectory`. */
export type SandboxListDirectoryArgs = z.infer<typeof tools.listDirectory.schema>;

/** Lists a directory. */
@Tool(options(tools.listDirectory))
export class SandboxListDirectory extends BaseTool<
  SandboxListDirectoryArgs,
  object,
  results.SandboxListDirectoryResult
> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  protected handle(args: SandboxListDirectoryArgs): Promise<ToolEnvelope<results.SandboxListDirectoryResult>> {
    return tools.listDirectory.run(this.manager, args);
  }
}

/** The arguments of `SandboxCreateDirectory`. */
export type SandboxCreateDirectoryArgs = z.infer<typeof tools.createDirectory.schema>;

/** Makes a directory. */
@Tool(options(tools.createDirectory))
export class SandboxCreateDirectory extends BaseTool<
  SandboxCreateDirectoryArgs,
  object,
  results.SandboxCreateDirectoryResult
> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  protected handle(args: SandboxCreateDirectoryArgs): Promise<ToolEnvelope<results.SandboxCreateDirectoryResult>> {
    return tools.createDirectory.run(this.manager, args);
  }
}

/** The arguments of `SandboxDelete`. */
export type SandboxDeleteArgs = z.infer<typeof tools.deleteFile.schema>;

/** Deletes a file or a directory. */
@Tool(options(tools.deleteFile))
export class SandboxDelete extends BaseTool<SandboxDeleteArgs, object, results.SandboxDeleteResult> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  protected handle(args: SandboxDeleteArgs): Promise<ToolEnvelope<results.SandboxDeleteResult>> {
    return tools.deleteFile.run(this.manager, args);
  }
}

/** The arguments of `SandboxExists`. */
export type SandboxExistsArgs = z.infer<typeof tools.exists.schema>;

/** Tells whether a path exists, and what it is. */
@Tool(options(tools.exists))
export class SandboxExists extends BaseTool<SandboxExistsArgs, object, results.SandboxExistsResult> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  protected handle(args: SandboxExistsArgs): Promise<ToolEnvelope<results.SandboxExistsResult>> {
    return tools.exists.run(this.manager, args);
  }
}

/** The arguments of `SandboxFileInfo`. */
export type SandboxFileInfoArgs = z.infer<typeof tools.fileInfo.schema>;

/** Tells size, type, permissions, owner and times of a path. */
@Tool(options(tools.fileInfo))
export class SandboxFileInfo extends BaseTool<SandboxFileInfoArgs, object, results.SandboxFileInfoResult> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  protected handle(args: SandboxFileInfoArgs): Promise<ToolEnvelope<results.SandboxFileInfoResult>> {
    return tools.fileInfo.run(this.manager, args);
  }
}

/** The arguments of `SandboxFilesystem`. */
export type SandboxFilesystemArgs = z.infer<typeof tools.filesystem.schema>;

/** All operations on files in one tool, whose failures are data. */
@Tool(options(tools.filesystem))
export class SandboxFilesystem extends BaseTool<SandboxFilesystemArgs, object, results.SandboxFilesystemResult> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  protected handle(args: SandboxFilesystemArgs): Promise<ToolEnvelope<results.SandboxFilesystemResult>> {
    return tools.filesystem.run(this.manager, args);
  }
}

const LIFECYCLE = [SandboxInit, SandboxCommand, SandboxDestroy, SandboxExecuteScript];
const FILES = [
  SandboxReadFile,
  SandboxWriteFile,
  SandboxListDirectory,
  SandboxCreateDirectory,
  SandboxDelete,
  SandboxExists,
  SandboxFileInfo,
  SandboxFilesystem,
];

/** The tools that make and end sandboxes and run something in them, and the service that keeps them. */
@Module({
  providers: [ContainerManagerService, ...LIFECYCLE],
  exports: [ContainerManagerService, ...LIFECYCLE],
})
export class SandboxToolModule {
  /** Sets how the process is started, for the whole application: import it once, at the root. */
  static forRoot(options: SandboxOptions): DynamicModule {
    return withOptions(SandboxToolModule, options);
  }
}

/** The tools for the files of a sandbox. */
@Module({
  imports: [SandboxToolModule],
  providers: FILES,
  exports: FILES,
})
export class SandboxFilesystemModule {}
