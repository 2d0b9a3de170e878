/** The data of the tools. */

/** What a path leads to. */
export type FileType = "file" | "directory" | "symlink" | "other";

/** The data of `sandbox_init`. */
export interface SandboxInitResult {
  containerId: string;
  /** The engine's id of the container. */
  dockerId: string;
}

/** The data of `sandbox_destroy`. */
export interface SandboxDestroyResult {
  containerId: string;
  /** Whether there is no container any longer. */
  removed: boolean;
}

/** The data of `sandbox_read_file`. */
export interface SandboxReadFileResult {
  content: string;
  encoding: string;
}

/** The data of `sandbox_write_file`. */
export interface SandboxWriteFileResult {
  path: string;
  bytesWritten: number;
}

/** The data of `sandbox_list_directory`. */
export interface SandboxListDirectoryResult {
  path: string;
  entries: { name: string; type: FileType; size: number; path: string }[];
}

/** The data of `sandbox_create_directory`. */
export interface SandboxCreateDirectoryResult {
  path: string;
  created: boolean;
}

/** The data of `sandbox_delete`. */
export interface SandboxDeleteResult {
  path: string;
  deleted: boolean;
}

/** The data of `sandbox_exists`. */
export interface SandboxExistsResult {
  path: string;
  exists: boolean;
  type: FileType | null;
}

/** The data of `sandbox_file_info`. */
export interface SandboxFileInfoResult {
  path: string;
  name: string;
  type: FileType;
  size: number;
  /** As `ls` writes them: `-rw-r--r--`. */
  permissions: string;
  owner: string;
  group: string;
  modifiedAt: string | null;
  accessedAt: string | null;
  createdAt: string | null;
}

/** The data of `sandbox_execute_script`. */
export interface SandboxExecuteScriptResult {
  /** What the script returned. */
  result: unknown;
  /** An entry for each `print`. */
  logs: unknown[];
  files_touched: unknown[];
}

/** The data of `sandbox_filesystem`. */
export interface SandboxFilesystemResult {
  success: boolean;
  /** The data of the operation's own tool; null if it failed. */
  data: unknown;
  /** What went wrong. */
  error: string | null;
  metadata: { bytesWritten: number | null; itemsCount: number | null; [member: string]: unknown };
}
