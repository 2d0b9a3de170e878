/** The tools: their arguments, their data, and how each is called. Both generations of the platform's classes use them. */
import { z } from "zod";
import type { Answer, CommandExecutionResult, ContainerManagerService } from "./manager.js";
import type {
  SandboxCreateDirectoryResult,
  SandboxDeleteResult,
  SandboxDestroyResult,
  SandboxExecuteScriptResult,
  SandboxExistsResult,
  SandboxFileInfoResult,
  SandboxFilesystemResult,
  SandboxInitResult,
  SandboxListDirectoryResult,
  SandboxReadFileResult,
  SandboxWriteFileResult,
} from "./results.js";

const containerId = z.string().describe("The sandbox, by the name that sandbox_init gave it");
const path = z.string().describe("A path in the sandbox");
const encoding = z.enum(["utf8", "base64"]).default("utf8").describe("How the content is written as text");

/** A tool, without the platform. */
export interface Definition<TSchema extends z.ZodType, TData> {
  name: string;
  description: string;
  schema: TSchema;
  run(manager: ContainerManagerService, args: z.output<TSchema>): Promise<Answer<TData>>;
}

function define<TData>() {
  return <TSchema extends z.ZodType>(definition: Definition<TSchema, TData>) => definition;
}

/** A tool of the process that is called as it is: on a sandbox that runs, with paths from the root. */
function pass<TData>() {
  return <TSchema extends z.ZodType<{ containerId: string; path: string }>>(
    name: string,
    description: string,
    schema: TSchema,
  ): Definition<TSchema, TData> => ({
    name,
    description,
    schema,
    run: (manager, args) => manager.callTool<TData>(name, { ...args, path: fromRoot(args.path) }),
  });
}

/** The platform's paths begin at the root, also without a slash; those of the process begin at the mounted directory. */
const fromRoot = (path: string) => (path.startsWith("/") ? path : `/${path}`);

export const init = define<SandboxInitResult>()({
  name: "sandbox_init",
  description: "Make a sandbox, or give the one that has this name already",
  schema: z
    .object({
      containerId: z.string().describe("A name for the sandbox, for the other tools"),
      imageName: z.string().optional().describe("The image that its programs come from, such as 'node:22'"),
      containerName: z.string().optional().describe("A label of the container"),
      projectOutPath: z.string().describe("The directory of the host that the sandbox sees"),
      rootPath: z.string().default("workspace").describe("Where it sees that directory, below the root"),
    })
    .strict(),
  run: async (manager, { containerId, ...config }) => {
    manager.registerContainer(containerId, config);
    const container = await manager.ensureContainer(containerId);
    return { data: { containerId, dockerId: container.id }, metadata: {} };
  },
});

export const command = define<CommandExecutionResult>()({
  name: "sandbox_command",
  description: "Run a program in a sandbox that has an image, and give its output and its exit code",
  schema: z
    .object({
      containerId,
      executable: z.string().describe("The program; no shell is implied"),
      args: z.array(z.string()).optional().describe("Its arguments"),
      workingDirectory: z.string().default("/").describe("Where it starts"),
      envVars: z.array(z.string()).optional().describe("Environment variables, each as KEY=VALUE"),
      timeout: z.number().default(30_000).describe("Milliseconds that it may take"),
    })
    .strict(),
  run: (manager, args) => manager.runCommand(args),
});

export const destroy = define<SandboxDestroyResult>()({
  name: "sandbox_destroy",
  description: "End a sandbox; the files of its mounted directory stay",
  schema: z
    .object({
      containerId,
      removeContainer: z.boolean().default(true).describe("Makes no difference: what ends is also removed"),
    })
    .strict(),
  run: async (manager, { containerId }) => {
    const removed = await manager.removeContainer(containerId);
    if (removed) manager.unregisterContainer(containerId);
    return { data: { containerId, removed }, metadata: {} };
  },
});

export const readFile = pass<SandboxReadFileResult>()(
  "sandbox_read_file",
  "Read a file of a sandbox",
  z.object({ containerId, path, encoding }).strict(),
);

export const writeFile = pass<SandboxWriteFileResult>()(
  "sandbox_write_file",
  "Write a file of a sandbox; an old one is replaced",
  z
    .object({
      containerId,
      path,
      content: z.string().describe("The new content"),
      encoding,
      createParentDirs: z.boolean().default(true).describe("Make the directories that lead to it"),
    })
    .strict(),
);

export const listDirectory = pass<SandboxListDirectoryResult>()(
  "sandbox_list_directory",
  "List a directory of a sandbox",
  z
    .object({ containerId, path, recursive: z.boolean().default(false).describe("Also what is in its directories") })
    .strict(),
);

export const createDirectory = pass<SandboxCreateDirectoryResult>()(
  "sandbox_create_directory",
  "Make a directory in a sandbox",
  z
    .object({
      containerId,
      path,
      recursive: z.boolean().default(true).describe("Make the directories that lead to it"),
    })
    .strict(),
);

export const deleteFile = pass<SandboxDeleteResult>()(
  "sandbox_delete",
  "Delete a file or a directory of a sandbox",
  z
    .object({
      containerId,
      path,
      recursive: z.boolean().default(false).describe("Delete what is in a directory, too"),
      force: z.boolean().default(false).describe("What does not exist is not an error"),
    })
    .strict(),
);

export const exists = pass<SandboxExistsResult>()(
  "sandbox_exists",
  "Tell whether a path of a sandbox exists, and what it is",
  z.object({ containerId, path }).strict(),
);

export const fileInfo = pass<SandboxFileInfoResult>()(
  "sandbox_file_info",
  "Tell size, type, permissions, owner and times of a path of a sandbox",
  z.object({ containerId, path }).strict(),
);

export const executeScript = define<SandboxExecuteScriptResult>()({
  name: "sandbox_execute_script",
  description: "Run a Luau script on the files of a sandbox, and give its result, its logs and what it changed",
  schema: z
    .object({
      containerId,
      script: z.string().describe("The source code"),
      timeoutMs: z.number().int().positive().optional().describe("Milliseconds that it may take"),
    })
    .strict(),
  run: (manager, args) => manager.callTool<SandboxExecuteScriptResult>("sandbox_execute_script", args),
});

export const filesystem = define<SandboxFilesystemResult>()({
  name: "sandbox_filesystem",
  description: "Read, write, list, make, delete or examine a file of a sandbox; a failure is data",
  schema: z
    .object({
      containerId,
      operation: z.enum(["read", "write", "list", "createDir", "delete", "exists", "info"]),
      path,
      content: z.string().optional().describe("The new content, to write"),
      encoding: z.string().optional().describe("How the content is written as text: utf-8 or base64"),
      recursive: z.boolean().optional().describe("With the directories that lead to it, or with what is in it"),
      force: z.boolean().optional().describe("To delete: what does not exist is not an error. Writing always replaces"),
    })
    .strict(),
  run: (manager, args) => {
    const { containerId, operation, path, content, encoding, recursive, force } = args;
    const members: Record<(typeof args)["operation"], object> = {
      read: { encoding },
      write: { content, encoding },
      list: { recursive },
      createDir: { recursive },
      delete: { recursive, force },
      exists: {},
      info: {},
    };
    const call = { containerId, operation, path: fromRoot(path), ...members[operation] };
    return manager.callTool<SandboxFilesystemResult>("sandbox_filesystem", call);
  },
});
