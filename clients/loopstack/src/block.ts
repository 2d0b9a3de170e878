/** The tools for Loopstack 0.18: classes that extend `ToolBase`, with `@BlockConfig`. */
import { BlockConfig, WithArguments } from "@loopstack/common";
import { ToolBase } from "@loopstack/core";
import { type DynamicModule, Inject, Injectable, Module } from "@nestjs/common";
import type { z } from "zod";
import * as tools from "./definitions.js";
import { type Answer, type CommandExecutionResult, ContainerManagerService, type SandboxOptions } from "./manager.js";
import { withOptions } from "./modules.js";
import type * as results from "./results.js";

export * from "./manager.js";
export type * from "./results.js";

/** The arguments of `SandboxInit`. */
export type SandboxInitArgs = z.infer<typeof tools.init.schema>;

/** Makes a sandbox, or gives the one of this name. */
@Injectable()
@BlockConfig({ config: { description: tools.init.description } })
@WithArguments(tools.init.schema)
export class SandboxInit extends ToolBase<SandboxInitArgs> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  execute(args: SandboxInitArgs): Promise<Answer<results.SandboxInitResult>> {
    return tools.init.run(this.manager, args);
  }
}

/** The arguments of `SandboxCommand`. */
export type SandboxCommandArgs = z.infer<typeof tools.command.schema>;

/** Runs a program in a sandbox that has an image. */
@Injectable()
@BlockConfig({ config: { description: tools.command.description } })
@WithArguments(tools.command.schema)
export class SandboxCommand extends ToolBase<SandboxCommandArgs> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  execute(args: SandboxCommandArgs): Promise<Answer<CommandExecutionResult>> {
    return tools.command.run(this.manager, args);
  }
}

/** The arguments of `SandboxDestroy`. */
export type SandboxDestroyArgs = z.infer<typeof tools.destroy.schema>;

/** Ends a sandbox; the files of its mounted directory stay. */
@Injectable()
@BlockConfig({ config: { description: tools.destroy.description } })
@WithArguments(tools.destroy.schema)
export class SandboxDestroy extends ToolBase<SandboxDestroyArgs> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  execute(args: SandboxDestroyArgs): Promise<Answer<results.SandboxDestroyResult>> {
    return tools.destroy.run(this.manager, args);
  }
}

/** The arguments of `SandboxExecuteScript`. */
export type SandboxExecuteScriptArgs = z.infer<typeof tools.executeScript.schema>;

/** Runs a Luau script on the files of a sandbox. */
@Injectable()
@BlockConfig({ config: { description: tools.executeScript.description } })
@WithArguments(tools.executeScript.schema)
export class SandboxExecuteScript extends ToolBase<SandboxExecuteScriptArgs> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  execute(args: SandboxExecuteScriptArgs): Promise<Answer<results.SandboxExecuteScriptResult>> {
    return tools.executeScript.run(this.manager, args);
  }
}

/** The arguments of `SandboxReadFile`. */
export type SandboxReadFileArgs = z.infer<typeof tools.readFile.schema>;

/** Reads a file. */
@Injectable()
@BlockConfig({ config: { description: tools.readFile.description } })
@WithArguments(tools.readFile.schema)
export class SandboxReadFile extends ToolBase<SandboxReadFileArgs> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  execute(args: SandboxReadFileArgs): Promise<Answer<results.SandboxReadFileResult>> {
    return tools.readFile.run(this.manager, args);
  }
}

/** The arguments of `SandboxWriteFile`. */
export type SandboxWriteFileArgs = z.infer<typeof tools.writeFile.schema>;

/** Writes a file; an old one is replaced. */
@Injectable()
@BlockConfig({ config: { description: tools.writeFile.description } })
@WithArguments(tools.writeFile.schema)
export class SandboxWriteFile extends ToolBase<SandboxWriteFileArgs> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  execute(args: SandboxWriteFileArgs): Promise<Answer<results.SandboxWriteFileResult>> {
    return tools.writeFile.run(this.manager, args);
  }
}

/** The arguments of `SandboxListDirectory`. */
export type SandboxListDirectoryArgs = z.infer<typeof tools.listDirectory.schema>;

/** Lists a directory. */
@Injectable()
@BlockConfig({ config: { description: tools.listDirectory.description } })
@WithArguments(tools.listDirectory.schema)
export class SandboxListDirectory extends ToolBase<SandboxListDirectoryArgs> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  execute(args: SandboxListDirectoryArgs): Promise<Answer<results.SandboxListDirectoryResult>> {
    return tools.listDirectory.run(this.manager, args);
  }
}

/** The arguments of `SandboxCreateDirectory`. */
export type SandboxCreateDirectoryArgs = z.infer<typeof tools.createDirectory.schema>;

/** Makes a directory. */
@Injectable()
@BlockConfig({ config: { description: tools.createDirectory.description } })
@WithArguments(tools.createDirectory.schema)
export class SandboxCreateDirectory extends ToolBase<SandboxCreateDirectoryArgs> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  execute(args: SandboxCreateDirectoryArgs): Promise<Answer<results.SandboxCreateDirectoryResult>> {
    return tools.createDirectory.run(this.manager, args);
  }
}

/** The arguments of `SandboxDelete`. */
export type SandboxDeleteArgs = z.infer<typeof tools.deleteFile.schema>;

/** Deletes a file or a directory. */
@Injectable()
@BlockConfig({ config: { description: tools.deleteFile.description } })
@WithArguments(tools.deleteFile.schema)
export class SandboxDelete extends ToolBase<SandboxDeleteArgs> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  execute(args: SandboxDeleteArgs): Promise<Answer<results.SandboxDeleteResult>> {
    return tools.deleteFile.run(this.manager, args);
  }
}

/** The arguments of `SandboxExists`. */
export type SandboxExistsArgs = z.infer<typeof tools.exists.schema>;

/** Tells whether a path exists, and what it is. */
@Injectable()
@BlockConfig({ config: { description: tools.exists.description } })
@WithArguments(tools.exists.schema)
export class SandboxExists extends ToolBase<SandboxExistsArgs> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  execute(args: SandboxExistsArgs): Promise<Answer<results.SandboxExistsResult>> {
    return tools.exists.run(this.manager, args);
  }
}

/** The arguments of `SandboxFileInfo`. */
export type SandboxFileInfoArgs = z.infer<typeof tools.fileInfo.schema>;

/** Tells size, type, permissions, owner and times of a path. */
@Injectable()
@BlockConfig({ config: { description: tools.fileInfo.description } })
@WithArguments(tools.fileInfo.schema)
export class SandboxFileInfo extends ToolBase<SandboxFileInfoArgs> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  execute(args: SandboxFileInfoArgs): Promise<Answer<results.SandboxFileInfoResult>> {
    return tools.fileInfo.run(this.manager, args);
  }
}

/** The arguments of `SandboxFilesystem`. */
export type SandboxFilesystemArgs = z.infer<typeof tools.filesystem.schema>;

/** All operations on files in one tool, whose failures are data. */
@Injectable()
@BlockConfig({ config: { description: tools.filesystem.description } })
@WithArguments(tools.filesystem.schema)
export class SandboxFilesystem extends ToolBase<SandboxFilesystemArgs> {
  constructor(@Inject(ContainerManagerService) private readonly manager: ContainerManagerService) {
    super();
  }

  execute(args: SandboxFilesystemArgs): Promise<Answer<results.SandboxFilesystemResult>> {
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
