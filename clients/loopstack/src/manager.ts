/** The sandboxes of a program, by the names that it gave them: the methods of Loopstack's container manager. */
import { posix } from "node:path";
import { Inject, Injectable, Logger, type OnModuleDestroy, Optional } from "@nestjs/common";
import { SandboxError } from "sandboxctl";
import { type ToolAnswer, Tools, type ToolsOptions } from "sandboxctl/tools";

/** The injection token of `SandboxOptions`. */
export const SANDBOX_OPTIONS = Symbol("SANDBOX_OPTIONS");

/** How the process that keeps the sandboxes is started. */
export interface SandboxOptions extends ToolsOptions {
  /** Directories of the host below which `projectOutPath` may be; by default those of the configuration. */
  outPaths?: readonly string[] | undefined;
}

/** What a sandbox is made from. */
export interface ContainerConfig {
  imageName?: string | undefined;
  containerName?: string | undefined;
  projectOutPath: string;
  rootPath: string;
}

/** A command, and where it runs. */
export interface ExecuteCommandOptions {
  containerId: string;
  executable: string;
  args?: string[] | undefined;
  workingDirectory?: string | undefined;
  envVars?: string[] | undefined;
  /** Milliseconds. */
  timeout?: number | undefined;
}

/** How a command ended. */
export interface CommandExecutionResult {
  /** What it wrote to stdout, without white space at both ends. */
  stdout: string;
  /** What it wrote to stderr, likewise. */
  stderr: string;
  /** Its exit code; 128 and the number of a signal, 127 if there is no such program, -1 on a timeout. */
  exitCode: number;
  timedOut: boolean;
}

/** What a tool returns. */
export interface Answer<TData> {
  data: TData;
  metadata: Record<string, unknown>;
}

/** A sandbox that runs. */
export interface SandboxContainer {
  /** The engine's id of the container. */
  readonly id: string;
}

/** What is known of a sandbox. */
export interface ContainerStatus {
  registered: boolean;
  exists: boolean;
  running: boolean;
  dockerId?: string;
}

interface Entry {
  container: SandboxContainer;
  /** What it was made from, whatever has been registered since. */
  config: ContainerConfig;
}

/** How Loopstack's commands report what did not start: as a shell does. */
const SHELL_CODES: Record<string, number> = { command_not_found: 127, not_executable: 126, not_found: 1 };

/** Keeps sandboxes in one process, which is started with the first of them. */
@Injectable()
export class ContainerManagerService implements OnModuleDestroy {
  readonly #logger = new Logger(ContainerManagerService.name);
  readonly #tools: Tools;
  readonly #configs = new Map<string, ContainerConfig>();
  readonly #entries = new Map<string, Entry>();
  /** What is done to a sandbox as a whole is done one after the other; this is the last of it. */
  readonly #turns = new Map<string, Promise<unknown>>();
  /** The calls that a removal aborts. */
  readonly #calls = new Map<string, Set<AbortController>>();

  constructor(@Optional() @Inject(SANDBOX_OPTIONS) options: SandboxOptions = {}) {
    const { outPaths, env, ...rest } = options;
    const paths = outPaths && { SANDBOXCTL_TOOLS_ALLOWED_OUT_PATHS: JSON.stringify(outPaths) };
    this.#tools = new Tools({ ...rest, env: { ...paths, ...env } });
  }

  /** Says what the sandbox of this name is made from. One that runs stays as it is. */
  registerContainer(containerId: string, config: ContainerConfig): void {
    this.#configs.set(containerId, config);
  }

  /** Forgets what the sandbox of this name is made from. One that runs stays. */
  unregisterContainer(containerId: string): void {
    this.#configs.delete(containerId);
  }

  /** The names that are registered. */
  getRegisteredContainerIds(): string[] {
    return [...this.#configs.keys()];
  }

  /** The engine's id of the container, if there was one when it was last asked for. */
  getDockerContainerId(containerId: string): string | undefined {
    return this.#entries.get(containerId)?.container.id;
  }

  /**
   * The sandbox of this name: the one that runs, or a new one. One that has ended, because nothing was asked of it for
   * too long or because the process is gone, is made again from what it was made from; its mounted files are the same.
   */
  async ensureContainer(containerId: string): Promise<SandboxContainer> {
    const config = this.#configs.get(containerId);
    if (!config) throw new Error(`Container '${containerId}' not registered. Call registerContainer() first.`);
    return this.#inTurn(containerId, () => this.#ensure(containerId, config));
  }

  /** Runs a program in the sandbox to its end. */
  async executeCommand(options: ExecuteCommandOptions): Promise<CommandExecutionResult> {
    return (await this.runCommand(options)).data;
  }

  /** Runs a program in the sandbox to its end; the metadata says whether output is missing, and what files changed. */
  async runCommand(options: ExecuteCommandOptions): Promise<Answer<CommandExecutionResult>> {
    const { containerId, executable, args = [], workingDirectory = "/", envVars, timeout = 30_000 } = options;
    const call = {
      containerId,
      executable,
      args,
      workingDirectory: directory(workingDirectory),
      envVars,
      timeout: Math.max(1, Math.ceil(timeout)),
    };
    try {
      return await this.callTool<CommandExecutionResult>("sandbox_command", call);
    } catch (error) {
      const exitCode = error instanceof SandboxError ? SHELL_CODES[error.kind] : undefined;
      if (exitCode === undefined) throw error;
      const { kind, message } = error as SandboxError;
      return { data: { stdout: "", stderr: message, exitCode, timedOut: false }, metadata: { kind } };
    }
  }

  /** Calls a tool of the process on the sandbox that `args` name, which is made first if it does not run. */
  async callTool<TData>(tool: string, args: { containerId: string }): Promise<Answer<TData>> {
    await this.ensureContainer(args.containerId);
    return (await this.#abortable(args.containerId, tool, args)) as Answer<TData>;
  }

  /** Whether the sandbox is registered, and whether it runs. One that is stopped does not exist any longer. */
  async getContainerStatus(containerId: string): Promise<ContainerStatus> {
    const registered = this.#configs.has(containerId);
    const entry = registered ? this.#entries.get(containerId) : undefined;
    if (!entry) return { registered, exists: false, running: false };
    try {
      await this.#tools.call("sandbox_exists", { containerId, path: "." });
      return { registered, exists: true, running: true, dockerId: entry.container.id };
    } catch {
      return { registered, exists: false, running: false };
    }
  }

  /** Ends the sandbox and what runs in it; it can be made again. Its mounted files stay, and nothing else of it does. */
  async stopContainer(containerId: string): Promise<void> {
    await this.removeContainer(containerId);
  }

  /** Ends the sandbox and what runs in it. Whether it is gone: false if the engine could not remove it. */
  async removeContainer(containerId: string): Promise<boolean> {
    return this.#inTurn(containerId, async () => {
      if (!this.#entries.has(containerId)) return true;
      for (const call of this.#calls.get(containerId) ?? []) {
        call.abort(new Error(`Container '${containerId}' was removed`));
      }
      const removed = await this.#destroy(containerId);
      if (removed) this.#entries.delete(containerId);
      return removed;
    });
  }

  /** Ends all sandboxes and the process. */
  async onModuleDestroy(): Promise<void> {
    await Promise.all([...this.#entries.keys()].map((id) => this.removeContainer(id)));
    await this.#tools.close();
    this.#entries.clear();
    this.#configs.clear();
  }

  async #ensure(containerId: string, config: ContainerConfig): Promise<SandboxContainer> {
    const known = this.#entries.get(containerId);
    if (known) {
      try {
        return await this.#init(containerId, known.config);
      } catch (error) {
        // The first call after the end of a sandbox gets the reason why it has ended.
        this.#logger.warn(`The sandbox '${containerId}' is made again: ${(error as Error).message}`);
        this.#entries.delete(containerId);
      }
    }
    return this.#init(containerId, config);
  }

  /** Makes the sandbox. If one runs that was made from the same, the process answers with that. */
  async #init(containerId: string, config: ContainerConfig): Promise<SandboxContainer> {
    const { data } = await this.#tools.call("sandbox_init", { containerId, ...config });
    const { dockerId } = data as { dockerId?: unknown };
    if (typeof dockerId !== "string" || dockerId === "") throw new Error("sandbox_init gave no dockerId");
    const known = this.#entries.get(containerId);
    if (known?.container.id === dockerId) return known.container;
    const container = { id: dockerId };
    this.#entries.set(containerId, { container, config });
    return container;
  }

  async #destroy(containerId: string): Promise<boolean> {
    try {
      const { data, metadata } = await this.#tools.call("sandbox_destroy", { containerId });
      const { removed } = data as { removed: boolean };
      if (!removed) this.#logger.warn(`The sandbox '${containerId}' was not removed: ${String(metadata.reason)}`);
      return removed;
    } catch (error) {
      // It has ended already, by itself or with the process.
      this.#logger.debug(`The sandbox '${containerId}' was gone: ${(error as Error).message}`);
      return true;
    }
  }

  async #abortable(containerId: string, tool: string, args: object): Promise<ToolAnswer> {
    const control = new AbortController();
    const calls = this.#calls.get(containerId) ?? new Set();
    this.#calls.set(containerId, calls.add(control));
    try {
      return await this.#tools.call(tool, args, { signal: control.signal });
    } finally {
      calls.delete(control);
      if (calls.size === 0) this.#calls.delete(containerId);
    }
  }

  async #inTurn<T>(containerId: string, work: () => Promise<T>): Promise<T> {
    const turn = (this.#turns.get(containerId) ?? Promise.resolve()).then(work, work);
    this.#turns.set(containerId, turn);
    try {
      return await turn;
    } finally {
      if (this.#turns.get(containerId) === turn) this.#turns.delete(containerId);
    }
  }
}

/** A working directory from the root, as Loopstack's: one that leads above the root is refused. */
function directory(path: string): string {
  const normal = posix.normalize(path);
  if (normal.split("/").includes("..")) throw new Error(`Path traversal detected: ${path}`);
  return normal.startsWith("/") ? normal : `/${normal}`;
}

// The name that Loopstack's package has: an import changes only the package.
export { ContainerManagerService as DockerContainerManagerService };
