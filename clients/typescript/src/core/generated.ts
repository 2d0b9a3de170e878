/** The types of the wire. Written by `npm run wire` from docs/src/reference/openapi.json; do not edit. */

/** The operations on files. */
export const OPERATIONS = ["read","view","write","edit","list","glob","grep","mkdir","touch","remove","exists","stat","rename","copy","chmod","symlink","read_link","set_metadata"] as const;

/** What was copied out of the io dir after a run: the member `artifacts` of its document. */
export type ArtifactsReport = {
  /** The bytes of all files together. */
  bytes: number;
  /** The artifacts directory on the host; lossy where it is not UTF-8. */
  dir: string;
  /** Why nothing was copied. */
  error?: Failure | null;
  /** The number of files; 0 if they could not be copied. */
  files: number;
  /** What matched and was not copied. */
  omitted: OmittedEntry[];
  /** The globs that no file matches, where that is not an error. */
  unmatched?: string[];
};

/** What a path was before a run. */
export type Before = {
  /** The size of a file, and of a link's target; null for anything else. */
  bytes: number | null;
  /** The permission bits, such as `0644`; null for links, which have none. */
  mode: string | null;
  /** The SHA-256 of a file's content or a link's target, in hexadecimal digits. */
  sha256: string | null;
};

/** A change of one path: its state after the run, and before it. */
export type Change = {
  /** What it was before; null if it did not exist. */
  before: Before | null;
  /** The size of a file, and of a link's target; null for anything else and what was removed. */
  bytes: number | null;
  /** The path that it had before, if it is certainly the same file. */
  from?: string | null;
  /** The media type that the name of a file suggests. */
  mime: string | null;
  /** The permission bits, such as `0644`; null if it was removed, and for links, which have none. */
  mode: string | null;
  /** What happened to it. */
  op: ChangeOp;
  /** Relative to the io dir; lossy where it is not UTF-8. */
  path: string;
  /** The path's bytes, where they are not UTF-8. */
  path_b64?: string | null;
  /** The SHA-256 of a file's content or a link's target, in hexadecimal digits. */
  sha256: string | null;
  /** Where a link leads, as it is written in it; never followed. */
  target?: string | null;
  /** What it is now; what it was, if it was removed. */
  type: ChangeType;
};

/** The change manifest of a run: schema `sandboxctl.changes/1`. */
export type ChangeManifest = {
  /** By path. */
  changes: Change[];
  /** The name and version of this schema. */
  schema: ChangesSchema;
  /** There are more changes than are listed. */
  truncated: boolean;
};

/** What happened to a path. Equal content, mode and times are no change. */
export type ChangeOp = "created" | "modified" | "removed" | "mode" | "times";

/** The type of a changed path. */
export type ChangeType = "file" | "directory" | "symlink" | "other";

/** The name and version of the schema of a change manifest. */
export type ChangesSchema = "sandboxctl.changes/1";

/** How bad a `ScriptProblem` is. */
export type CheckSeverity = "error" | "warning";

/** A command: exactly one of `program` and `shell`. */
export type CommandRequest = {
  /** The program's arguments. */
  args?: Content[];
  /** The working directory; by default the io dir. */
  cwd?: Content | null;
  /** Environment variables. */
  env?: Record<string, Content>;
  /** A path in the sandbox, or a name to search in the `PATH` there. */
  program?: Content | null;
  /** A line for `/bin/sh -c` of the image. */
  shell?: Content | null;
  /** The stdin; by default empty. */
  stdin?: Content | null;
};

/** What confines the agent beyond its container. */
export type Confinement = {
  /** The ABI of Landlock in force; null without Landlock. */
  landlock_abi: number | null;
  /** For people: why layers are not in force, one entry for each missing layer. */
  missing: string[];
  /** `PR_SET_NO_NEW_PRIVS` is set. */
  no_new_privileges: boolean;
  /** The agent's own seccomp filter is in force. */
  seccomp: boolean;
  /** The agent cannot be traced or dumped (`PR_SET_DUMPABLE` 0), nor its descriptors opened by programs. */
  undumpable: boolean;
  /** The UNIX sockets that commands can connect to. */
  unix_sockets: UnixSockets;
};

/** A host that was connected to. */
export type ContactedHost = {
  /** Its name or address, normalised; IPv6 in brackets. */
  host: string;
  /** Its port. */
  port: number;
};

/** Text, or bytes in base64. */
export type Content = string | {
  b64: string;
};

/** What bounds the disk space that the programs of a sandbox take in its io dir. */
export type Disk = {
  /** What the io dir is. */
  backend: DiskBackend;
  /** What enforces it. */
  bound: DiskBound;
  /** The bytes that fit in it, or that it may grow by. */
  bytes: number;
  /** The same of files and directories. */
  entries: number;
  /** Why a private or staged io dir is watched. */
  reason?: string | null;
};

/** What an io dir is. */
export type DiskBackend = "tmpfs" | "ext4" | "directory";

/** What enforces a bound. */
export type DiskBound = "kernel" | "watched";

/** An encoding of file content as text. */
export type Encoding = "utf-8" | "base64" | "hex" | "latin1" | "utf-16le" | "utf-16be" | "ascii" | "utf8";

/** A kind of engine. */
export type EngineKind = "docker" | "embedded";

/** The response to an operation: `{"success":true,"data":{…},"error":null,"metadata":{…}}`. */
export type Envelope = {
  /** The operation's result; null if it failed. */
  data: unknown;
  /** Why it failed. */
  error: Failure | null;
  /** Statistics. */
  metadata: OperationMetadata;
  /** Whether the operation succeeded. */
  success: boolean;
};

/** The kind of an error. The same names are used in the agent's answers, in results, in the HTTP API and in MCP. */
export type ErrorKind = "not_found" | "already_exists" | "is_directory" | "not_a_directory" | "not_empty" | "permission_denied" | "path_escape" | "invalid_path" | "not_allowed" | "protected" | "read_only" | "symlink" | "special_file" | "too_large" | "write_limit" | "too_many_files" | "too_many_handles" | "disk_full" | "encoding" | "out_of_memory" | "output_limit" | "source_too_large" | "result_too_large" | "syntax" | "runtime" | "result_not_json" | "not_executable" | "command_not_found" | "network_refused" | "timeout" | "cancelled" | "killed" | "busy" | "invalid_request" | "usage" | "config" | "policy" | "engine" | "image" | "conflict" | "agent_lost" | "internal";

/** The values of the member `event`. */
export type EventKind = "queued" | "start" | "log" | "output" | "omitted" | "test" | "refused" | "exit" | "end";

/** The name and version of the events, in the first of them. */
export type EventsSchema = "sandboxctl.events/1";

/** The document of `exec --json`, for every way a command can end, including failures of sandboxctl itself. */
export type ExecExecution = {
  /** What was copied out of the io dir, if that was asked for. */
  artifacts?: ArtifactsReport | null;
  /** The changes, as the change manifest lists them. */
  changes?: ChangeManifest | null;
  /** Whether the io dir has the changes, where they were staged. */
  committed?: boolean | null;
  /** Its confinement beyond its container. */
  confinement: Confinement | null;
  /** When it was accepted. */
  created_at: string;
  /** What bounds the disk space that programs take in the io dir. */
  disk?: Disk | null;
  /** When it ended. */
  ended_at: string | null;
  /** The engine it ran on. */
  engine: EngineKind | null;
  /** Why another engine was not chosen. */
  engine_notice?: string | null;
  /** Why it failed. */
  error: Failure | null;
  /** The exit code; null before the end, and of a command that a signal ended. */
  exit_code: number | null;
  /** Whether it did not exit with code 0. */
  failed: boolean;
  /** The files that changed. */
  files_touched: TouchedFile[];
  /** How they were found. */
  files_touched_source: TouchedSource;
  /** There are more than are listed. */
  files_touched_truncated: boolean;
  /** The generation of that sandbox that it runs in; before that, the one that was asked for. */
  generation: number | null;
  /** The command's id. */
  id: string | null;
  /** The io dir on the host; lossy where it is not UTF-8. */
  io_dir: string | null;
  /** The limits it ran under. */
  limits: Limits | null;
  /** The members of its caller's own. */
  metadata: Record<string, unknown>;
  /** The hosts that its commands reached, and those that they were refused; null if no host was allowed. */
  network: Network | null;
  /** What stood in its way in the sandbox; absent if nothing did, or it ended well. */
  notes?: Note[];
  /** Whether its receipt was written, if that was asked for. */
  receipt?: ReceiptReport | null;
  /** The body of the request that asked a service for it; absent if that had secrets or is large. */
  request?: Record<string, unknown> | null;
  /** Whether it started that generation in place of an earlier one, whose processes are gone; null before its run, and without a kept sandbox. */
  restarted: boolean | null;
  /** The kept sandbox that it runs in; null for one of its own. */
  sandbox: string | null;
  /** Its name and version. */
  schema: ExecSchema;
  /** The signal that ended the command. */
  signal: number | null;
  /** How the changes were kept apart from the io dir until then. */
  staging?: StagingMethod | null;
  /** When its run began. */
  started_at: string | null;
  /** Its state. */
  status: ExecutionStatus;
  /** The beginning of its stderr. */
  stderr: string;
  /** How `stderr` is encoded. */
  stderr_encoding: OutputEncoding;
  /** There was more output. */
  stderr_truncated: boolean;
  /** The beginning of its stdout. */
  stdout: string;
  /** How `stdout` is encoded. */
  stdout_encoding: OutputEncoding;
  /** There was more output. */
  stdout_truncated: boolean;
  /** Whether it exceeded its time limit. */
  timed_out: boolean;
  /** How long its parts took. */
  timing: Timing | null;
  /** The resources it used. */
  usage: Usage | null;
};

/** The name and version of a command's result document. */
export type ExecSchema = "sandboxctl.exec/1";

/** An event as a line. */
export type ExecutionEvent = {
  /** A test case. */
  case?: TestCase | null;
  /** The result document: `sandboxctl.result/1` or `sandboxctl.exec/1`; of a process its view. */
  document?: Record<string, unknown> | null;
  /** How output is encoded. */
  encoding?: OutputEncoding | null;
  /** What happened. */
  event: EventKind;
  /** The exit code of a program, or at the end that of a process which forwards the result. */
  exit_code?: number | null;
  /** A host that was refused. */
  host?: RefusedHost | null;
  /** By which function a log entry was written. */
  level?: LogLevel | null;
  /** The name of what runs, where several things report to one place. */
  name?: string | null;
  /** The name and version of the events, in the first of them. */
  schema?: EventsSchema | null;
  /** Its number, from 1 without gaps. */
  seq: number;
  /** The signal that ended a program. */
  signal?: number | null;
  /** Where output was printed. */
  stream?: OutputStream | null;
  /** A log entry, or output. */
  text?: string | null;
  /** When it happened. */
  time: string;
};

/** What an execution runs. */
export type ExecutionKind = "script" | "command";

/** A page of a list of executions, the latest first. */
export type ExecutionList = {
  /** The executions. */
  executions: ExecutionSummary[];
  /** The `cursor` of the next page; null on the last one. */
  next_cursor: string | null;
};

/** An execution to queue: a script or a command, in a sandbox of its own. */
export type ExecutionRequest = {
  /** The script's `args`. */
  args?: Record<string, unknown>;
  /** A command. */
  command?: CommandRequest | null;
  /** The image that commands run in. */
  image?: string | null;
  /** Read-only files at `/in/NAME`, by name. */
  inputs?: Record<string, Content>;
  /** The io dir. */
  io?: IoRequest;
  /** The limits that differ from the server's defaults. */
  limits?: LimitsRequest;
  /** Members of the caller's own, which are kept and given back. */
  metadata?: Record<string, unknown>;
  /** The network of commands. */
  network?: NetworkRequestInput;
  /** The script's time in seconds since 1970, which stands still. */
  now?: number | null;
  /** The source code of a Luau script. Exactly one of `script` and `command` is given. */
  script?: Content | null;
  /** Secrets: `secrets.NAME` of a script, environment variables of a command. */
  secrets?: Secrets;
  /** The seed of the script's `math.random`. */
  seed?: number | null;
  /** The signal that asks a command to end, before what is left of it is killed; by default `TERM`. */
  stop_signal?: SignalName | null;
};

/** The state of an execution: it waits, it runs, or how it ended. */
export type ExecutionStatus = "queued" | "running" | "ok" | "script_error" | "exit" | "limit" | "timeout" | "cancelled" | "killed" | "agent_lost" | "error";

/** An execution without its result, as lists give it. */
export type ExecutionSummary = {
  /** When it was accepted. */
  created_at: string;
  /** When it ended. */
  ended_at: string | null;
  /** The generation of that sandbox that it runs in; before that, the one that was asked for. */
  generation: number | null;
  /** Its id. */
  id: string;
  /** The image that it runs in; in lists alone, and absent if it runs in none. */
  image?: string | null;
  /** What it runs. */
  kind: ExecutionKind;
  /** The members of its caller's own. */
  metadata: Record<string, unknown>;
  /** Whether it started that generation in place of an earlier one, whose processes are gone; null before its run, and without a kept sandbox. */
  restarted: boolean | null;
  /** The kept sandbox that it runs in; null for one of its own. */
  sandbox: string | null;
  /** When its run began. */
  started_at: string | null;
  /** Its state. */
  status: ExecutionStatus;
  /** Whose it is, in lists of other subjects. */
  subject?: Subject | null;
};

/** A failure as data: the `error` of a `ResultDocument` and an `ExecDocument`. */
export type Failure = {
  /** A suggested next step. */
  hint?: string | null;
  /** The error's kind. */
  kind: ErrorKind;
  /** The line of the script where it failed. */
  line?: number | null;
  /** A one-line message. */
  message: string;
  /** The script's call stack. */
  traceback?: string | null;
  /** The table that the script raised, as JSON: `error({ code = 7 })`. */
  value?: unknown;
};

/** A file or directory that an execution left. */
export type FileEntry = {
  /** The size of a file; 0 for anything else. */
  bytes: number;
  /** When it was last modified; null where that is unknown. */
  modified: string | null;
  /** Relative to the io dir; lossy where it is not UTF-8. */
  path: string;
  /** The path's bytes, where they are not UTF-8. */
  path_b64?: string | null;
  /** What it is. */
  type: FileKind;
};

/** What a `FileEntry` is. */
export type FileKind = "file" | "directory" | "symlink" | "other";

/** The files that an execution left, sorted by path. */
export type FileList = {
  /** The files and directories. */
  files: FileEntry[];
  /** There are more than are listed. */
  truncated: boolean;
};

/** How a file changed. */
export type FileOp = "write" | "append" | "remove";

/** Where the file operations of a sandbox may go. */
export type FileScope = "io" | "all";

/** What happens to a sandbox that nothing has used for its idle time. */
export type IdleAction = "stop" | "freeze";

/** A member of a request that is unknown, missing or invalid. */
export type InvalidMember = {
  /** What is wrong with it. */
  detail: string;
  /** Where it is: in the body, a JSON Pointer as a fragment (`#/limits/timeout_ms`); otherwise the name of a parameter or a header. */
  pointer: string;
};

/** How `io` reports OS errors. A broken rule of the sandbox always raises an error. */
export type IoErrors = "raise" | "return";

/** Which io dir an execution has. */
export type IoMode = "off" | "private" | "shared";

/** The io dir of an execution. */
export type IoRequest = {
  /** How a script's `io` reports OS errors: `raise` or `return`. */
  errors?: IoErrors | null;
  /** Which one; by default what the server has for scripts, and a private one for commands. */
  mode?: IoMode | null;
  /** Its path in the sandbox; by default `/io`. */
  mount_path?: string | null;
  /** The working directory, to which relative paths are resolved; by default the io dir. */
  workdir?: string | null;
};

/** What a kept sandbox is. Its io dir is its own, and outlives its processes. */
export type KeptSpec = {
  /** Environment variables of every command and process, which may replace them. They are stored and given back: what is secret is a secret of a request. */
  env?: Record<string, Content>;
  /** Where file operations may go: `io`, its io dir and inputs, or `all`, wherever its programs may. Its image has programs then. */
  files?: FileScope;
  /** The image that commands run in; without one it runs scripts and file operations. */
  image?: string | null;
  /** Read-only files at `/in/NAME`, by name. */
  inputs?: Record<string, Content>;
  /** The limits that differ from the server's defaults. */
  limits?: LimitsRequest;
  /** The path of its io dir in it; by default `/io`. */
  mount_path?: string | null;
  /** The network of commands. */
  network?: NetworkRequest;
  /** The TCP ports of its loopback that may be connected to from outside: a list, or `any`. Its image has programs then. */
  ports?: Ports;
  /** The name of what the server has prepared: a process that runs before the sandbox is asked for. Its image is the sandbox's, and its processes are kept. */
  prepared?: string | null;
  /** Whether processes can be started that live on after the request: `kept`. */
  processes?: Processes;
  /** The working directory, to which relative paths are resolved; by default the io dir. */
  workdir?: string | null;
};

/** What a kept sandbox is. Its io dir is its own, and outlives its processes. */
export type KeptSpecInput = {
  /** Environment variables of every command and process, which may replace them. They are stored and given back: what is secret is a secret of a request. */
  env?: Record<string, Content>;
  /** Where file operations may go: `io`, its io dir and inputs, or `all`, wherever its programs may. Its image has programs then. */
  files?: FileScope;
  /** The image that commands run in; without one it runs scripts and file operations. */
  image?: string | null;
  /** Read-only files at `/in/NAME`, by name. */
  inputs?: Record<string, Content>;
  /** The limits that differ from the server's defaults. */
  limits?: LimitsRequest;
  /** The path of its io dir in it; by default `/io`. */
  mount_path?: string | null;
  /** The network of commands. */
  network?: NetworkRequestInput;
  /** The TCP ports of its loopback that may be connected to from outside: a list, or `any`. Its image has programs then. */
  ports?: Ports;
  /** The name of what the server has prepared: a process that runs before the sandbox is asked for. Its image is the sandbox's, and its processes are kept. */
  prepared?: string | null;
  /** Whether processes can be started that live on after the request: `kept`. */
  processes?: Processes;
  /** The working directory, to which relative paths are resolved; by default the io dir. */
  workdir?: string | null;
};

/** The limits of a sandbox. Every limit is always set, to the documented default if nothing else. In JSON every value is a plain number, with its unit in the member's name. */
export type Limits = {
  /** DNS and connect timeout. */
  connect_timeout_ms: number;
  /** Idle timeout of a connection. */
  connection_idle_ms: number;
  /** Connections of commands to allowed hosts; refused ones count too. */
  connections: number;
  /** Processors. */
  cpus: number;
  /** Created files and directories. */
  entries: number;
  /** Size of a file that an operation reads or writes whole. */
  file_bytes: number;
  /** Depth of a recursive list, where 1 is the directory alone. */
  list_depth: number;
  /** Encoded size of all log entries of a run, in bytes. */
  log_bytes: number;
  /** Log entries of a run. */
  log_lines: number;
  /** Memory of the container. Docker requires at least 6 MiB; the agent needs some in addition. */
  memory_bytes: number;
  /** Bytes over all these connections, both directions together. */
  network_bytes: number;
  /** Simultaneously open file handles. */
  open_handles: number;
  /** The deadline of a file operation. */
  operation_timeout_ms: number;
  /** Bytes of a command's streamed output. */
  output_bytes: number;
  /** Processes and threads. The agent itself uses a few threads. */
  pids: number;
  /** Size in bytes of the commands' `/dev/shm`, their shared memory. */
  shm_bytes: number;
  /** How long the processes of a command that is to end may go on after SIGTERM, until they are killed; 0 if they are killed at once. */
  stop_timeout_ms: number;
  /** The run's deadline. */
  timeout_ms: number;
  /** Size in bytes of the commands' `/tmp`, which is in memory: at most this, and seven eighths of the sandbox's memory. A tmpfs of size 0 would have no limit. */
  tmpfs_bytes: number;
  /** Memory of the Luau VM. */
  vm_memory_bytes: number;
  /** Bytes written to files, including overwritten bytes. */
  write_bytes: number;
};

/** The limits that a request sets, by their names in `Limits`; the others have a server's defaults. */
export type LimitsRequest = {
  /** DNS and connect timeout. */
  connect_timeout_ms?: number | null;
  /** Idle timeout of a connection. */
  connection_idle_ms?: number | null;
  /** Connections of commands to allowed hosts; refused ones count too. */
  connections?: number | null;
  /** Processors. */
  cpus?: number | null;
  /** Created files and directories. */
  entries?: number | null;
  /** Size of a file that an operation reads or writes whole. */
  file_bytes?: number | null;
  /** Depth of a recursive list, where 1 is the directory alone. */
  list_depth?: number | null;
  /** Encoded size of all log entries of a run, in bytes. */
  log_bytes?: number | null;
  /** Log entries of a run. */
  log_lines?: number | null;
  /** Memory of the container. Docker requires at least 6 MiB; the agent needs some in addition. */
  memory_bytes?: number | null;
  /** Bytes over all these connections, both directions together. */
  network_bytes?: number | null;
  /** Simultaneously open file handles. */
  open_handles?: number | null;
  /** The deadline of a file operation. */
  operation_timeout_ms?: number | null;
  /** Bytes of a command's streamed output. */
  output_bytes?: number | null;
  /** Processes and threads. The agent itself uses a few threads. */
  pids?: number | null;
  /** Size in bytes of the commands' `/dev/shm`, their shared memory. */
  shm_bytes?: number | null;
  /** How long the processes of a command that is to end may go on after SIGTERM, until they are killed; 0 if they are killed at once. */
  stop_timeout_ms?: number | null;
  /** The run's deadline. */
  timeout_ms?: number | null;
  /** Size in bytes of the commands' `/tmp`, which is in memory: at most this, and seven eighths of the sandbox's memory. A tmpfs of size 0 would have no limit. */
  tmpfs_bytes?: number | null;
  /** Memory of the Luau VM. */
  vm_memory_bytes?: number | null;
  /** Bytes written to files, including overwritten bytes. */
  write_bytes?: number | null;
};

/** A TCP socket that listens. */
export type ListeningPort = {
  /** Its address: `127.0.0.1`, `0.0.0.0`, or one of IPv6. */
  address: string;
  /** Its port. */
  port: number;
};

/** The origin of a log entry. */
export type LogLevel = "print" | "warn" | "truncated";

/** The connections while a script or a command ran, those of others in the same sandbox included: each host, port and reason once, in order, at most 100 of each kind. */
export type Network = {
  /** The hosts that were connected to. */
  contacted: ContactedHost[];
  /** The hosts that were refused. */
  refused: RefusedHost[];
  /** There are more than are listed. */
  truncated: boolean;
};

/** The hosts that commands may reach; none by default. */
export type NetworkRequest = {
  /** Rules as of `--allow`: `HOST[:PORT]`. */
  allow: string[];
};

/** The hosts that commands may reach; none by default. */
export type NetworkRequestInput = {
  /** Rules as of `--allow`: `HOST[:PORT]`. */
  allow?: string[];
};

/** What a node does. */
export type NodeState = "ready" | "draining" | "drained" | "away";

/** A node of a cluster. What only a session has is null if it is away. */
export type NodeStatus = {
  /** Where the others reach it. */
  address: string | null;
  /** How long ago it renewed its session. */
  beat_age_ms: number | null;
  /** Equal where the settings that all nodes should share are. */
  config_digest: string | null;
  /** When it was last there. */
  last_seen: string;
  /** Its name for people. */
  name: string;
  /** Its id. */
  node: string;
  /** How many executions it runs. */
  running: number | null;
  /** The kept sandboxes that it has. */
  sandboxes: number;
  /** How many it may run at one time. */
  slots: number | null;
  /** What it does. */
  state: NodeState;
  /** The version of its program. */
  version: string | null;
};

/** Something in the sandbox that stood in the way of a script or a command. */
export type Note = {
  /** What to do about it. */
  hint?: string | null;
  /** What it was. */
  kind: NoteKind;
  /** For people. */
  message: string;
};

/** What stood in the way. */
export type NoteKind = "out_of_memory" | "processes" | "no_space" | "shared_memory" | "read_only" | "file_size" | "no_network" | "proxy" | "unreached_host";

/** Why an entry was not copied. */
export type OmitReason = "symlink" | "fifo" | "socket" | "device" | "reserved_name";

/** An entry that matched and was not copied. */
export type OmittedEntry = {
  /** Its path. */
  path: string;
  /** The path's bytes, where they are not UTF-8. */
  path_b64?: string | null;
  /** Why it was not copied. */
  reason: OmitReason;
};

/** A file operation with all of its options, read from `{"operation": "read", "path": "a.txt", …}`. */
export type Operation = {
  /** The encoding of the content; by default the sandbox's. */
  encoding?: Encoding | null;
  /** The maximum number of bytes. */
  limit?: number | null;
  /** The offset of the first byte. */
  offset?: number;
  operation: "read";
  /** The file. */
  path: Content;
} | {
  /** The lines. */
  lines?: ViewOptions;
  operation: "view";
  /** The file. */
  path: Content;
} | {
  /** Whether every reader sees either the old file or the new one whole. */
  atomic?: boolean;
  /** The content, in the encoding. */
  content: string;
  /** The encoding; by default the sandbox's. */
  encoding?: Encoding | null;
  /** What happens to an existing file. */
  mode?: WriteMode;
  operation: "write";
  /** Whether to create missing parent directories. */
  parents?: boolean;
  /** The file. */
  path: Content;
  /** The permissions of a file that is created, such as 0o640; an existing one keeps its own. */
  permissions?: number | null;
} | {
  /** The expected number of occurrences. */
  count?: number;
  /** The replacement. */
  new: string;
  /** The text to replace. */
  old: string;
  operation: "edit";
  /** The file. */
  path: Content;
} | {
  /** Whether each entry has the details that `stat` gives. */
  details?: boolean;
  /** The maximum number of entries. */
  limit?: number | null;
  /** The maximum depth. */
  max_depth?: number | null;
  operation: "list";
  /** The directory. */
  path?: Content;
  /** Whether to descend into subdirectories. */
  recursive?: boolean;
} | {
  /** Paths to leave out: globs of names, or with a slash of paths as they are returned, such as `node_modules` and `**\/target/**`. */
  exclude?: string[];
  /** Whether names that begin with a dot match where the pattern has no such name. */
  hidden?: boolean;
  /** The maximum number of paths. */
  limit?: number | null;
  operation: "glob";
  /** The directory. */
  path?: Content;
  /** The pattern, relative to the directory. */
  pattern: string;
} | {
  /** The number of lines of context on each side of a match. */
  context?: number;
  /** Files and directories to leave out: globs of names, or with a slash of paths below the directory. */
  exclude?: string[];
  /** Only files whose path or name matches this glob; with `!` before it, all others. */
  glob?: string | null;
  /** Whether to search files and directories whose names begin with a dot, without those of version control. */
  hidden?: boolean;
  /** Whether to ignore case. */
  ignore_case?: boolean;
  /** The maximum number of matching lines. */
  limit?: number | null;
  operation: "grep";
  /** The file, or the directory whose files are searched. */
  path?: Content;
  /** The regular expression. */
  pattern: string;
} | {
  operation: "mkdir";
  /** Whether to create missing parent directories. */
  parents?: boolean;
  /** The directory. */
  path: Content;
} | {
  /** When it was last modified, in RFC 3339; now if it is absent. */
  mtime?: string | null;
  operation: "touch";
  /** The file or directory. */
  path: Content;
} | {
  /** Whether to ignore a nonexistent path. */
  force?: boolean;
  operation: "remove";
  /** The path to remove. */
  path: Content;
  /** Whether to remove a directory with its contents. */
  recursive?: boolean;
} | {
  operation: "exists";
  /** The path. */
  path: Content;
} | {
  /** Whether to follow a link at its end, in a sandbox with `files: all`. */
  follow?: boolean;
  operation: "stat";
  /** The path. */
  path: Content;
} | {
  /** The old path. */
  from: Content;
  operation: "rename";
  /** Whether to replace an existing file or directory at the new path. */
  overwrite?: boolean;
  /** Whether to create missing parent directories of the new path. */
  parents?: boolean;
  /** The new path. */
  to: Content;
} | {
  /** The source. */
  from: Content;
  operation: "copy";
  /** Whether to replace existing files, and to copy a directory into an existing one. */
  overwrite?: boolean;
  /** Whether to copy a directory with its contents. */
  recursive?: boolean;
  /** The path of the copy. */
  to: Content;
} | {
  operation: "chmod";
  /** The file or directory. */
  path: Content;
  /** The lowest nine bits of its mode, such as 0o640; no others. */
  permissions: number;
  /** Whether to do so for all that is in a directory too, but for links. */
  recursive?: boolean;
} | {
  operation: "symlink";
  /** The path of the link. */
  path: Content;
  /** What it points to, as it is stored. */
  target: Content;
} | {
  operation: "read_link";
  /** The path of the link. */
  path: Content;
} | {
  /** Values by key: all that there are in the namespace from now on. */
  metadata: Record<string, string>;
  /** The namespace: `sbx` or `e2b`. */
  namespace?: string;
  operation: "set_metadata";
  /** The file or directory. */
  path: Content;
};

/** Statistics of an operation in its `Envelope`. */
export type OperationMetadata = {
  /** The number of bytes of content that were read or written. */
  bytes?: number | null;
  /** The duration in milliseconds. */
  duration_ms: number;
  /** The number of listed or removed entries, or of replacements. */
  items?: number | null;
};

/** The encoding of a command's output in the document. */
export type OutputEncoding = "utf-8" | "base64";

/** The stream of a command's output. */
export type OutputStream = "stdout" | "stderr";

/** Sandboxes that are started ahead, of all kinds together. */
export type PoolStatus = {
  /** How often one was asked for. */
  claims: number;
  /** Starts that failed. */
  failed: number;
  /** How often one was ready then. */
  hits: number;
  /** The kinds of sandboxes. */
  kinds: number;
  /** How many are ready. */
  ready: number;
  /** How many are being started. */
  starting: number;
  /** How many are to be ready. */
  target: number;
};

/** The TCP sockets that listen in a sandbox. */
export type PortList = {
  /** By port and address. Those of any address are reached by the sandbox's loopback too. */
  ports: ListeningPort[];
};

/** The TCP ports of a sandbox's loopback that may be reached from outside: a list, or `any`. */
export type Ports = number[] | "any";

/** A preview of a port. */
export type Preview = {
  /** Until when it is valid. */
  expires_at: string;
  /** What requests have in the header `Sandbox-Port-Token`; null for a public one. */
  token: string | null;
  /** Where it is. */
  url: string;
};

/** Why a request was refused or failed: the body of every answer with a status of 400 or more. */
export type Problem = {
  /** What is wrong with this request, in one line. */
  detail: string;
  /** The invalid members of the request. */
  errors?: InvalidMember[];
  /** A suggested next step. */
  hint?: string | null;
  /** This request, for questions about it: `urn:sandboxctl:request:` and its id. */
  instance?: string | null;
  /** The kind, for programs. */
  kind: ProblemKind;
  /** The status of the answer. */
  status: number;
  /** The kind in a few words. */
  title: string;
  /** The kind as a URI: `urn:sandboxctl:problem:` and the kind. */
  type: string;
};

/** The kind of a problem. */
export type ProblemKind = "malformed" | "unauthenticated" | "forbidden" | "policy" | "not_found" | "method_not_allowed" | "request_timeout" | "conflict" | "in_flight" | "no_stdin" | "stdin_full" | "process_ended" | "gone" | "precondition_failed" | "too_large" | "unsupported_media_type" | "range_not_satisfiable" | "misdirected" | "invalid_request" | "idempotency_key_reused" | "rate_limited" | "quota_exceeded" | "internal" | "port_closed" | "full" | "unavailable" | "already_exists" | "is_directory" | "not_a_directory" | "not_empty" | "permission_denied" | "path_escape" | "invalid_path" | "not_allowed" | "protected" | "read_only" | "symlink" | "special_file" | "write_limit" | "too_many_files" | "too_many_handles" | "disk_full" | "encoding" | "out_of_memory" | "output_limit" | "source_too_large" | "result_too_large" | "syntax" | "runtime" | "result_not_json" | "not_executable" | "command_not_found" | "network_refused" | "timeout" | "cancelled" | "killed" | "busy" | "usage" | "config" | "engine" | "image" | "agent_lost";

/** The processes of a sandbox's generation, the latest first: those that run, and those that ended lately. */
export type ProcessList = {
  /** The processes. */
  processes: ProcessView[];
};

/** A process to start. Its output is kept in memory: the last mebibyte of it, unless the server has another bound. */
export type ProcessRequest = {
  /** What runs. Its `stdin` is written at once; with `stdin` of the process left out, that is all of it. */
  command?: CommandRequest;
  /** Whether stdout and stderr are one stream, in the order of writing. */
  merge?: boolean;
  /** A terminal in place of pipes. */
  pty?: PtyRequest | null;
  /** Secrets, each as an environment variable of this process. */
  secrets?: Secrets;
  /** Whether its stdin stays open for input that comes later. */
  stdin?: boolean;
  /** The signal that asks it to end, before what is left of it is killed; by default `TERM`. */
  stop_signal?: SignalName | null;
  /** The time from that signal until it is killed, in milliseconds; by default the sandbox's. 0 kills at once. */
  stop_timeout_ms?: number | null;
  /** A word of the caller's own, by which the process can be found. */
  tag?: string | null;
  /** After how many milliseconds it is stopped; by default it may run as long as its sandbox. */
  timeout_ms?: number | null;
};

/** The state of a process. */
export type ProcessState = "running" | "left" | "ended";

/** Why a sandbox ended a process. */
export type ProcessStop = "timeout" | "cancelled" | "evasion_of_another";

/** A process of a kept sandbox. */
export type ProcessView = {
  /** What runs, for lists: the program and its arguments, or the shell line; lossy, and cut. */
  command: string;
  /** Processor time of it and of what it started, in milliseconds; null while it runs. */
  cpu_ms: number | null;
  /** Its exit code; null while it runs, or if a signal ended it. */
  exit_code: number | null;
  /** When it exited; null while it runs. */
  exited_at: string | null;
  /** The number of the first event that is still kept; 0 if there is none. */
  first_event: number;
  /** The generation of the sandbox that it runs in. */
  generation: number;
  /** Its id: a number from 1, never used twice in a generation. */
  id: number;
  /** The number of the last event; 0 if there is none. */
  last_event: number;
  /** Whether the kernel killed it because the sandbox ran out of memory; null if that is unknown. */
  out_of_memory: boolean | null;
  /** Peak resident bytes of the largest of these processes; null while it runs. */
  peak_memory_bytes: number | null;
  /** Its process id in the sandbox. */
  pid: number;
  /** Whether it has a terminal. */
  pty: boolean;
  /** The signal that ended it. */
  signal: number | null;
  /** When it was started. */
  started_at: string;
  /** Its state. */
  state: ProcessState;
  /** Why the sandbox ended it, if it did. */
  stopped: ProcessStop | null;
  /** The caller's own word. */
  tag: string | null;
};

/** How long the processes of a sandbox live. */
export type Processes = "per_command" | "kept";

/** A terminal. */
export type PtyRequest = {
  /** Its width, 1 to 4096. */
  cols: number;
  /** Its height, 1 to 4096. */
  rows: number;
  /** `TERM`; by default `xterm-256color`. Letters, digits and `.+_-`, at most 64 bytes. */
  term?: string | null;
};

/** What became of the receipt of a run: the member `receipt` of its document. */
export type ReceiptReport = {
  /** Why it was not written. */
  error?: Failure | null;
  /** The file on the host; lossy where it is not UTF-8. */
  file: string;
};

/** A host that was refused. */
export type RefusedHost = {
  /** The rules to add to the allow list; empty if none would help. */
  allow: string[];
  /** Its name or address, normalised; as the guest wrote it, where it is neither. */
  host: string;
  /** Its port. */
  port: number;
  /** Why, in a few words. */
  reason: string;
};

/** The document of `--json`, for every way a run can end, including failures of sandboxctl itself. */
export type ResultExecution = {
  /** What was copied out of the io dir, if that was asked for. */
  artifacts?: ArtifactsReport | null;
  /** The changes, as the change manifest lists them. */
  changes?: ChangeManifest | null;
  /** Whether the io dir has the changes, where they were staged. */
  committed?: boolean | null;
  /** Its confinement beyond its container. */
  confinement: Confinement | null;
  /** When it was accepted. */
  created_at: string;
  /** What bounds the disk space that programs take in the io dir. */
  disk?: Disk | null;
  /** When it ended. */
  ended_at: string | null;
  /** The engine it ran on. */
  engine: EngineKind | null;
  /** Why another engine was not chosen. */
  engine_notice?: string | null;
  /** Why it failed. */
  error: Failure | null;
  /** The exit code; null before the end, and of a command that a signal ended. */
  exit_code: number | null;
  /** The files that changed. */
  files_touched: TouchedFile[];
  /** How they were found. */
  files_touched_source: TouchedSource;
  /** There are more than are listed. */
  files_touched_truncated: boolean;
  /** The generation of that sandbox that it runs in; before that, the one that was asked for. */
  generation: number | null;
  /** The run's id. */
  id: string | null;
  /** The io dir on the host; lossy where it is not UTF-8. */
  io_dir: string | null;
  /** The limits it ran under. */
  limits: Limits | null;
  /** Its log, an entry a text. */
  logs: string[];
  /** Entries were omitted, and the last one says why; or some were cut, and say so. */
  logs_truncated: boolean;
  /** The members of its caller's own. */
  metadata: Record<string, unknown>;
  /** The hosts that its commands reached, and those that they were refused; null if no host was allowed. */
  network: Network | null;
  /** What stood in its way in the sandbox; absent if nothing did, or it ended well. */
  notes?: Note[];
  /** Whether its receipt was written, if that was asked for. */
  receipt?: ReceiptReport | null;
  /** The body of the request that asked a service for it; absent if that had secrets or is large. */
  request?: Record<string, unknown> | null;
  /** Whether it started that generation in place of an earlier one, whose processes are gone; null before its run, and without a kept sandbox. */
  restarted: boolean | null;
  /** The script's result. */
  result: unknown;
  /** The kept sandbox that it runs in; null for one of its own. */
  sandbox: string | null;
  /** Its name and version. */
  schema: ResultSchema;
  /** How the changes were kept apart from the io dir until then. */
  staging?: StagingMethod | null;
  /** When its run began. */
  started_at: string | null;
  /** Its state. */
  status: ExecutionStatus;
  /** Its test cases, if it has some. */
  tests?: TestCase[];
  /** How long its parts took. */
  timing: Timing | null;
  /** Its calls of tools of the host, if it made some: the first 1,000. */
  tool_calls?: ToolCall[];
  /** There were more calls than are listed. */
  tool_calls_truncated?: boolean;
  /** The resources it used. */
  usage: Usage | null;
};

/** The name and version of a script's result document. */
export type ResultSchema = "sandboxctl.result/1";

/** Kept sandboxes, by their state. */
export type SandboxCounts = {
  /** Those with a container that is frozen. */
  paused: number;
  /** Those with a container. */
  ready: number;
  /** Those that are being started. */
  starting: number;
  /** Those without a container. */
  stopped: number;
};

/** A page of a list of a subject's kept sandboxes, the latest first. */
export type SandboxList = {
  /** The `cursor` of the next page; null on the last one. */
  next_cursor: string | null;
  /** The sandboxes. */
  sandboxes: SandboxView[];
};

/** A sandbox to create, or the one of this name if its spec is the same. */
export type SandboxRequest = {
  /** What happens then. */
  idle?: IdleAction;
  /** For how long its container exists without use, in milliseconds. A process that was started and has not ended is a use, unless `idle` is `freeze`. */
  idle_ms?: number | null;
  /** Members of the caller's own, which are kept and given back. */
  metadata?: Record<string, unknown>;
  /** A name of the caller's own; without one it is always a new sandbox. */
  name?: string | null;
  /** What it is. */
  spec?: KeptSpecInput;
  /** For how long it exists at most, in milliseconds; it can be extended up to the server's limit. */
  ttl_ms?: number | null;
};

/** The state of a kept sandbox. */
export type SandboxStatus = "starting" | "ready" | "paused" | "stopped";

/** A kept sandbox. */
export type SandboxView = {
  /** When it was created. */
  created_at: string;
  /** When it ends, unless it is extended. */
  expires_at: string;
  /** The number of its container, from 1: processes of an earlier one are gone. */
  generation: number;
  /** Its id. */
  id: string;
  /** What happens then. */
  idle: IdleAction;
  /** When its container ends, or is frozen, unless it is used; null while it is in use, and without one. */
  idle_at: string | null;
  /** When it was last used. Reading a sandbox does not count as use. */
  last_used_at: string;
  /** Until when it can be extended. */
  max_expires_at: string;
  /** The members of its creator's own. */
  metadata: Record<string, unknown>;
  /** The name that its creator gave it. */
  name: string | null;
  /** Whether the node of the cluster that has it is not there: it can be deleted, and not be used. */
  node_away?: boolean;
  /** The bytes of memory that it had when it was paused, which it keeps meanwhile; of a paused one alone. */
  paused_memory?: number | null;
  /** How many processes have been started in its generation and have not ended; null if it is at another node. */
  processes: number | null;
  /** What it is. */
  spec: KeptSpec;
  /** Its state. */
  status: SandboxStatus;
};

/** What a check of a script has found. */
export type ScriptCheck = {
  /** What is wrong with it, in no order; nothing if it compiles and uses no unknown names. */
  problems: ScriptProblem[];
};

/** Something that is wrong with a script. */
export type ScriptProblem = {
  /** Its line, from 1. */
  line: number;
  /** What is wrong. */
  message: string;
  /** Whether it runs all the same. */
  severity: CheckSeverity;
};

/** Secrets by name. They are never stored and never given back. */
export type Secrets = Record<string, Content>;

/** What a service does now, for who administers it. */
export type ServiceStatus = {
  /** The engine that sandboxes run on. */
  engine: EngineKind;
  /** How many may wait. */
  max_queued: number;
  /** How many may run here at one time. */
  max_running: number;
  /** There are more subjects than are listed. */
  more_subjects: boolean;
  /** The nodes of the cluster; none without one. */
  nodes: NodeStatus[];
  /** The sandboxes that are started ahead; null if none are. */
  pool: PoolStatus | null;
  /** Executions that wait; in a cluster for any of its nodes. */
  queued: number;
  /** Executions that run here. */
  running: number;
  /** The kept sandboxes that are here. */
  sandboxes: SandboxCounts;
  /** Subjects of which something waits, runs, is kept or has ended today; those of which most is under way first. */
  subjects: SubjectStatus[];
  /** How long it has been running. */
  uptime_ms: number;
  /** The version of the program. */
  version: string;
};

/** Who is signed in. */
export type SessionView = {
  /** When the session ends; null without one, where no token is needed or another one was sent. */
  expires_at: string | null;
  /** What each request of the session has in `Session-Proof`, beside the cookie. Given at its begin alone. */
  proof: string | null;
  /** What it may do. */
  scopes: string[];
  /** Whose objects the caller has. */
  subject: Subject;
};

/** The signals that can be sent to a command. */
export type SignalName = "HUP" | "INT" | "QUIT" | "KILL" | "USR1" | "USR2" | "TERM" | "CONT" | "STOP" | "TSTP" | "WINCH";

/** A signal to send. */
export type SignalRequest = {
  /** Which one. */
  signal: SignalName;
  /** To which processes. */
  to?: SignalTarget;
};

/** To which processes of a command a signal is sent. */
export type SignalTarget = "process" | "group" | "foreground" | "tree";

/** How a run's changes are kept apart from its io dir until they are committed. */
export type StagingMethod = "copy" | "overlay";

/** How a sandbox was started. */
export type StartKind = "warm" | "cold";

/** Who asks: the owner of executions and sandboxes. One subject sees nothing of another's. */
export type Subject = string;

/** What there is of a subject now, and what it has used today, by UTC. */
export type SubjectStatus = {
  /** Their processor time. */
  cpu_ms_today: number;
  /** Executions that ended today. */
  executions_today: number;
  /** Executions that wait. */
  queued: number;
  /** Executions that run. */
  running: number;
  /** Kept sandboxes. */
  sandboxes: number;
  /** The bytes of results and files that are stored. */
  stored_bytes: number;
  /** The subject. */
  subject: Subject;
};

/** A test case of a script: `test.case(name, fn)`. */
export type TestCase = {
  /** How long it took. */
  duration_ms: number;
  /** The line of the script where it failed. */
  line?: number | null;
  /** Why it failed or was skipped, at most 1,024 bytes in JSON. */
  message?: string | null;
  /** Its name, at most 256 bytes in JSON. */
  name: string;
  /** How it ended. */
  status: TestStatus;
};

/** How a test case ended. */
export type TestStatus = "passed" | "failed" | "skipped";

/** How long the parts of an execution took, one after another. */
export type Timing = {
  /** The wait in a queue; null without a queue. It counts towards no time limit. */
  queued_ms: number | null;
  /** From the request in the sandbox to its answer. */
  run_ms: number;
  /** How the sandbox was started; null if it was open already. */
  start: StartKind | null;
  /** The start of its sandbox; null if that was open already. */
  start_ms: number | null;
};

/** A call of a tool by a script. */
export type ToolCall = {
  /** The size of its arguments as JSON. */
  argument_bytes: number;
  /** The digest of its arguments as JSON. */
  arguments_sha256: string;
  /** How long it took. */
  duration_ms: number;
  /** How it ended. */
  outcome: ToolOutcome;
  /** The size of its result: its value as JSON, or its text if it failed, and its files. */
  result_bytes: number;
  /** The digest of its value as JSON, or of the text if it failed. */
  result_sha256: string;
  /** The tool, as the script named it. */
  tool: string;
};

/** How a call of a tool ended. */
export type ToolOutcome = "ok" | "failed" | "refused" | "unknown" | "timeout" | "too_large" | "limit" | "unavailable" | "cancelled";

/** A file that a run changed. */
export type TouchedFile = {
  /** Its current size; 0 if it was removed. */
  bytes: number;
  /** Relative to the io dir; lossy where it is not UTF-8. */
  name: string;
  /** The name's bytes, where they are not UTF-8. */
  name_b64?: string | null;
  /** The kind of change. */
  op: FileOp;
};

/** How changed files were found. */
export type TouchedSource = "observed" | "scan";

/** The UNIX sockets that commands can connect or send to. Socket pairs (stream and seqpacket) work in every mode. */
export type UnixSockets = "none" | "landlock" | "supervised" | "pairs" | "unrestricted";

/** The resources that a run used. null means unknown. */
export type Usage = {
  /** Processor time. */
  cpu_ms: number | null;
  /** The maximum resident set size: of a script's agent, over the sandbox's life so far; of a command's largest process. */
  peak_memory_bytes: number | null;
  /** From when the agent accepted the script until it ended. */
  wall_ms: number;
  /** Bytes written to files. */
  written_bytes: number | null;
};

/** What a subject has used so far, and what it has now. */
export type UsageTotals = {
  /** Their processor time in milliseconds. */
  cpu_ms: number;
  /** Executions that ended, ever. */
  executions: number;
  /** Executions that wait now. */
  queued: number;
  /** Executions that run now. */
  running: number;
  /** Kept sandboxes that exist now. */
  sandboxes: number;
  /** The bytes of results and files that are kept now. */
  stored_bytes: number;
  /** Their time in milliseconds. */
  wall_ms: number;
  /** The bytes that they wrote. */
  written_bytes: number;
};

/** The lines of a file that are wanted. */
export type ViewOptions = {
  /** The maximum number of lines; by default that of a view (2,000 lines, 50 KiB). */
  limit?: number | null;
  /** The first line, counted from 1. */
  offset?: number;
};

/** The result of `write`. */
export type WriteData = {
  /** The size of the content in bytes. */
  bytes_written: number;
  /** Whether the file did not exist before. */
  created: boolean;
  /** The file. */
  path: string;
  /** The path's bytes, where they are not UTF-8. */
  path_b64?: string | null;
};

/** What to do if the file exists. */
export type WriteMode = "overwrite" | "append" | "create_new";
