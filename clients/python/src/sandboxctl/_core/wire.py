"""The types of the wire. Made by scripts/wire from docs/src/reference/openapi.json."""

# ruff: noqa
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Literal, TypedDict, Union

if TYPE_CHECKING:
    from typing_extensions import NotRequired

class ArtifactsReport(TypedDict):
    """What was copied out of the io dir after a run: the member `artifacts` of its document."""
    bytes: int
    """The bytes of all files together."""
    dir: str
    """The artifacts directory on the host; lossy where it is not UTF-8."""
    error: NotRequired[Union[Failure, None]]
    """Why nothing was copied."""
    files: int
    """The number of files; 0 if they could not be copied."""
    omitted: List[OmittedEntry]
    """What matched and was not copied."""
    unmatched: NotRequired[List[str]]
    """The globs that no file matches, where that is not an error."""


class Before(TypedDict):
    """What a path was before a run."""
    bytes: Union[int, None]
    """The size of a file, and of a link's target; null for anything else."""
    mode: Union[str, None]
    """The permission bits, such as `0644`; null for links, which have none."""
    sha256: Union[str, None]
    """The SHA-256 of a file's content or a link's target, in hexadecimal digits."""


Change = TypedDict(
    "Change",
    {
        "before": "Union[Before, None]",
        "bytes": "Union[int, None]",
        "from": "NotRequired[Union[str, None]]",
        "mime": "Union[str, None]",
        "mode": "Union[str, None]",
        "op": "ChangeOp",
        "path": "str",
        "path_b64": "NotRequired[Union[str, None]]",
        "sha256": "Union[str, None]",
        "target": "NotRequired[Union[str, None]]",
        "type": "ChangeType",
    },
)
"""A change of one path: its state after the run, and before it."""


class ChangeManifest(TypedDict):
    """The change manifest of a run: schema `sandboxctl.changes/1`."""
    changes: List[Change]
    """By path."""
    schema: ChangesSchema
    """The name and version of this schema."""
    truncated: bool
    """There are more changes than are listed."""


class CommandRequest(TypedDict):
    """A command: exactly one of `program` and `shell`."""
    args: NotRequired[List[Content]]
    """The program's arguments."""
    cwd: NotRequired[Union[Content, None]]
    """The working directory; by default the io dir."""
    env: NotRequired[Dict[str, Content]]
    """Environment variables."""
    program: NotRequired[Union[Content, None]]
    """A path in the sandbox, or a name to search in the `PATH` there."""
    shell: NotRequired[Union[Content, None]]
    """A line for `/bin/sh -c` of the image."""
    stdin: NotRequired[Union[Content, None]]
    """The stdin; by default empty."""


class Confinement(TypedDict):
    """What confines the agent beyond its container."""
    landlock_abi: Union[int, None]
    """The ABI of Landlock in force; null without Landlock."""
    missing: List[str]
    """For people: why layers are not in force, one entry for each missing layer."""
    no_new_privileges: bool
    """`PR_SET_NO_NEW_PRIVS` is set."""
    seccomp: bool
    """The agent's own seccomp filter is in force."""
    undumpable: bool
    """The agent cannot be traced or dumped (`PR_SET_DUMPABLE` 0), nor its descriptors opened by programs."""
    unix_sockets: UnixSockets
    """The UNIX sockets that commands can connect to."""


class ContactedHost(TypedDict):
    """A host that was connected to."""
    host: str
    """Its name or address, normalised; IPv6 in brackets."""
    port: int
    """Its port."""


class Disk(TypedDict):
    """What bounds the disk space that the programs of a sandbox take in its io dir."""
    backend: DiskBackend
    """What the io dir is."""
    bound: DiskBound
    """What enforces it."""
    bytes: int
    """The bytes that fit in it, or that it may grow by."""
    entries: int
    """The same of files and directories."""
    reason: NotRequired[Union[str, None]]
    """Why a private or staged io dir is watched."""


class Envelope(TypedDict):
    """The response to an operation: `{"success":true,"data":{…},"error":null,"metadata":{…}}`."""
    data: Any
    """The operation's result; null if it failed."""
    error: Union[Failure, None]
    """Why it failed."""
    metadata: OperationMetadata
    """Statistics."""
    success: bool
    """Whether the operation succeeded."""


class ExecExecution(TypedDict):
    """The document of `exec --json`, for every way a command can end, including failures of sandboxctl itself."""
    artifacts: NotRequired[Union[ArtifactsReport, None]]
    """What was copied out of the io dir, if that was asked for."""
    changes: NotRequired[Union[ChangeManifest, None]]
    """The changes, as the change manifest lists them."""
    committed: NotRequired[Union[bool, None]]
    """Whether the io dir has the changes, where they were staged."""
    confinement: Union[Confinement, None]
    """Its confinement beyond its container."""
    created_at: str
    """When it was accepted."""
    disk: NotRequired[Union[Disk, None]]
    """What bounds the disk space that programs take in the io dir."""
    ended_at: Union[str, None]
    """When it ended."""
    engine: Union[EngineKind, None]
    """The engine it ran on."""
    engine_notice: NotRequired[Union[str, None]]
    """Why another engine was not chosen."""
    error: Union[Failure, None]
    """Why it failed."""
    exit_code: Union[int, None]
    """The exit code; null before the end, and of a command that a signal ended."""
    failed: bool
    """Whether it did not exit with code 0."""
    files_touched: List[TouchedFile]
    """The files that changed."""
    files_touched_source: TouchedSource
    """How they were found."""
    files_touched_truncated: bool
    """There are more than are listed."""
    generation: Union[int, None]
    """The generation of that sandbox that it runs in; before that, the one that was asked for."""
    id: Union[str, None]
    """The command's id."""
    io_dir: Union[str, None]
    """The io dir on the host; lossy where it is not UTF-8."""
    limits: Union[Limits, None]
    """The limits it ran under."""
    metadata: Dict[str, Any]
    """The members of its caller's own."""
    network: Union[Network, None]
    """The hosts that its commands reached, and those that they were refused; null if no host was allowed."""
    notes: NotRequired[List[Note]]
    """What stood in its way in the sandbox; absent if nothing did, or it ended well."""
    receipt: NotRequired[Union[ReceiptReport, None]]
    """Whether its receipt was written, if that was asked for."""
    request: NotRequired[Union[Dict[str, Any], None]]
    """The body of the request that asked a service for it; absent if that had secrets or is large."""
    restarted: Union[bool, None]
    """Whether it started that generation in place of an earlier one, whose processes are gone; null before its run, and without a kept sandbox."""
    sandbox: Union[str, None]
    """The kept sandbox that it runs in; null for one of its own."""
    schema: ExecSchema
    """Its name and version."""
    signal: Union[int, None]
    """The signal that ended the command."""
    staging: NotRequired[Union[StagingMethod, None]]
    """How the changes were kept apart from the io dir until then."""
    started_at: Union[str, None]
    """When its run began."""
    status: ExecutionStatus
    """Its state."""
    stderr: str
    """The beginning of its stderr."""
    stderr_encoding: OutputEncoding
    """How `stderr` is encoded."""
    stderr_truncated: bool
    """There was more output."""
    stdout: str
    """The beginning of its stdout."""
    stdout_encoding: OutputEncoding
    """How `stdout` is encoded."""
    stdout_truncated: bool
    """There was more output."""
    timed_out: bool
    """Whether it exceeded its time limit."""
    timing: Union[Timing, None]
    """How long its parts took."""
    usage: Union[Usage, None]
    """The resources it used."""


class ExecutionEvent(TypedDict):
    """An event as a line."""
    case: NotRequired[Union[TestCase, None]]
    """A test case."""
    document: NotRequired[Union[Dict[str, Any], None]]
    """The result document: `sandboxctl.result/1` or `sandboxctl.exec/1`; of a process its view."""
    encoding: NotRequired[Union[OutputEncoding, None]]
    """How output is encoded."""
    event: EventKind
    """What happened."""
    exit_code: NotRequired[Union[int, None]]
    """The exit code of a program, or at the end that of a process which forwards the result."""
    host: NotRequired[Union[RefusedHost, None]]
    """A host that was refused."""
    level: NotRequired[Union[LogLevel, None]]
    """By which function a log entry was written."""
    name: NotRequired[Union[str, None]]
    """The name of what runs, where several things report to one place."""
    schema: NotRequired[Union[EventsSchema, None]]
    """The name and version of the events, in the first of them."""
    seq: int
    """Its number, from 1 without gaps."""
    signal: NotRequired[Union[int, None]]
    """The signal that ended a program."""
    stream: NotRequired[Union[OutputStream, None]]
    """Where output was printed."""
    text: NotRequired[Union[str, None]]
    """A log entry, or output."""
    time: str
    """When it happened."""


class ExecutionRequest(TypedDict):
    """An execution to queue: a script or a command, in a sandbox of its own."""
    args: NotRequired[Dict[str, Any]]
    """The script's `args`."""
    command: NotRequired[Union[CommandRequest, None]]
    """A command."""
    image: NotRequired[Union[str, None]]
    """The image that commands run in."""
    inputs: NotRequired[Dict[str, Content]]
    """Read-only files at `/in/NAME`, by name."""
    io: NotRequired[IoRequest]
    """The io dir."""
    limits: NotRequired[LimitsRequest]
    """The limits that differ from the server's defaults."""
    metadata: NotRequired[Dict[str, Any]]
    """Members of the caller's own, which are kept and given back."""
    network: NotRequired[NetworkRequestInput]
    """The network of commands."""
    now: NotRequired[Union[int, None]]
    """The script's time in seconds since 1970, which stands still."""
    script: NotRequired[Union[Content, None]]
    """The source code of a Luau script. Exactly one of `script` and `command` is given."""
    secrets: NotRequired[Secrets]
    """Secrets: `secrets.NAME` of a script, environment variables of a command."""
    seed: NotRequired[Union[int, None]]
    """The seed of the script's `math.random`."""
    stop_signal: NotRequired[Union[SignalName, None]]
    """The signal that asks a command to end, before what is left of it is killed; by default `TERM`."""


class Failure(TypedDict):
    """A failure as data: the `error` of a `ResultDocument` and an `ExecDocument`."""
    hint: NotRequired[Union[str, None]]
    """A suggested next step."""
    kind: ErrorKind
    """The error's kind."""
    line: NotRequired[Union[int, None]]
    """The line of the script where it failed."""
    message: str
    """A one-line message."""
    traceback: NotRequired[Union[str, None]]
    """The script's call stack."""
    value: NotRequired[Any]
    """The table that the script raised, as JSON: `error({ code = 7 })`."""


class InvalidMember(TypedDict):
    """A member of a request that is unknown, missing or invalid."""
    detail: str
    """What is wrong with it."""
    pointer: str
    """Where it is: in the body, a JSON Pointer as a fragment (`#/limits/timeout_ms`); otherwise the name of a parameter or a header."""


class IoRequest(TypedDict):
    """The io dir of an execution."""
    errors: NotRequired[Union[IoErrors, None]]
    """How a script's `io` reports OS errors: `raise` or `return`."""
    mode: NotRequired[Union[IoMode, None]]
    """Which one; by default what the server has for scripts, and a private one for commands."""
    mount_path: NotRequired[Union[str, None]]
    """Its path in the sandbox; by default `/io`."""
    workdir: NotRequired[Union[str, None]]
    """The working directory, to which relative paths are resolved; by default the io dir."""


class KeptSpec(TypedDict):
    """What a kept sandbox is. Its io dir is its own, and outlives its processes."""
    env: NotRequired[Dict[str, Content]]
    """Environment variables of every command and process, which may replace them. They are stored and given back: what is secret is a secret of a request."""
    files: NotRequired[FileScope]
    """Where file operations may go: `io`, its io dir and inputs, or `all`, wherever its programs may. Its image has programs then."""
    image: NotRequired[Union[str, None]]
    """The image that commands run in; without one it runs scripts and file operations."""
    inputs: NotRequired[Dict[str, Content]]
    """Read-only files at `/in/NAME`, by name."""
    limits: NotRequired[LimitsRequest]
    """The limits that differ from the server's defaults."""
    mount_path: NotRequired[Union[str, None]]
    """The path of its io dir in it; by default `/io`."""
    network: NotRequired[NetworkRequest]
    """The network of commands."""
    ports: NotRequired[Ports]
    """The TCP ports of its loopback that may be connected to from outside: a list, or `any`. Its image has programs then."""
    prepared: NotRequired[Union[str, None]]
    """The name of what the server has prepared: a process that runs before the sandbox is asked for. Its image is the sandbox's, and its processes are kept."""
    processes: NotRequired[Processes]
    """Whether processes can be started that live on after the request: `kept`."""
    workdir: NotRequired[Union[str, None]]
    """The working directory, to which relative paths are resolved; by default the io dir."""


class KeptSpecInput(TypedDict):
    """What a kept sandbox is. Its io dir is its own, and outlives its processes."""
    env: NotRequired[Dict[str, Content]]
    """Environment variables of every command and process, which may replace them. They are stored and given back: what is secret is a secret of a request."""
    files: NotRequired[FileScope]
    """Where file operations may go: `io`, its io dir and inputs, or `all`, wherever its programs may. Its image has programs then."""
    image: NotRequired[Union[str, None]]
    """The image that commands run in; without one it runs scripts and file operations."""
    inputs: NotRequired[Dict[str, Content]]
    """Read-only files at `/in/NAME`, by name."""
    limits: NotRequired[LimitsRequest]
    """The limits that differ from the server's defaults."""
    mount_path: NotRequired[Union[str, None]]
    """The path of its io dir in it; by default `/io`."""
    network: NotRequired[NetworkRequestInput]
    """The network of commands."""
    ports: NotRequired[Ports]
    """The TCP ports of its loopback that may be connected to from outside: a list, or `any`. Its image has programs then."""
    prepared: NotRequired[Union[str, None]]
    """The name of what the server has prepared: a process that runs before the sandbox is asked for. Its image is the sandbox's, and its processes are kept."""
    processes: NotRequired[Processes]
    """Whether processes can be started that live on after the request: `kept`."""
    workdir: NotRequired[Union[str, None]]
    """The working directory, to which relative paths are resolved; by default the io dir."""


class Limits(TypedDict):
    """The limits of a sandbox. Every limit is always set, to the documented default if nothing else. In JSON every value is a plain number, with its unit in the member's name."""
    connect_timeout_ms: int
    """DNS and connect timeout."""
    connection_idle_ms: int
    """Idle timeout of a connection."""
    connections: int
    """Connections of commands to allowed hosts; refused ones count too."""
    cpus: float
    """Processors."""
    entries: int
    """Created files and directories."""
    file_bytes: int
    """Size of a file that an operation reads or writes whole."""
    list_depth: int
    """Depth of a recursive list, where 1 is the directory alone."""
    log_bytes: int
    """Encoded size of all log entries of a run, in bytes."""
    log_lines: int
    """Log entries of a run."""
    memory_bytes: int
    """Memory of the container. Docker requires at least 6 MiB; the agent needs some in addition."""
    network_bytes: int
    """Bytes over all these connections, both directions together."""
    open_handles: int
    """Simultaneously open file handles."""
    operation_timeout_ms: int
    """The deadline of a file operation."""
    output_bytes: int
    """Bytes of a command's streamed output."""
    pids: int
    """Processes and threads. The agent itself uses a few threads."""
    shm_bytes: int
    """Size in bytes of the commands' `/dev/shm`, their shared memory."""
    stop_timeout_ms: int
    """How long the processes of a command that is to end may go on after SIGTERM, until they are killed; 0 if they are killed at once."""
    timeout_ms: int
    """The run's deadline."""
    tmpfs_bytes: int
    """Size in bytes of the commands' `/tmp`, which is in memory: at most this, and seven eighths of the sandbox's memory. A tmpfs of size 0 would have no limit."""
    vm_memory_bytes: int
    """Memory of the Luau VM."""
    write_bytes: int
    """Bytes written to files, including overwritten bytes."""


class LimitsRequest(TypedDict):
    """The limits that a request sets, by their names in `Limits`; the others have a server's defaults."""
    connect_timeout_ms: NotRequired[Union[int, None]]
    """DNS and connect timeout."""
    connection_idle_ms: NotRequired[Union[int, None]]
    """Idle timeout of a connection."""
    connections: NotRequired[Union[int, None]]
    """Connections of commands to allowed hosts; refused ones count too."""
    cpus: NotRequired[Union[float, None]]
    """Processors."""
    entries: NotRequired[Union[int, None]]
    """Created files and directories."""
    file_bytes: NotRequired[Union[int, None]]
    """Size of a file that an operation reads or writes whole."""
    list_depth: NotRequired[Union[int, None]]
    """Depth of a recursive list, where 1 is the directory alone."""
    log_bytes: NotRequired[Union[int, None]]
    """Encoded size of all log entries of a run, in bytes."""
    log_lines: NotRequired[Union[int, None]]
    """Log entries of a run."""
    memory_bytes: NotRequired[Union[int, None]]
    """Memory of the container. Docker requires at least 6 MiB; the agent needs some in addition."""
    network_bytes: NotRequired[Union[int, None]]
    """Bytes over all these connections, both directions together."""
    open_handles: NotRequired[Union[int, None]]
    """Simultaneously open file handles."""
    operation_timeout_ms: NotRequired[Union[int, None]]
    """The deadline of a file operation."""
    output_bytes: NotRequired[Union[int, None]]
    """Bytes of a command's streamed output."""
    pids: NotRequired[Union[int, None]]
    """Processes and threads. The agent itself uses a few threads."""
    shm_bytes: NotRequired[Union[int, None]]
    """Size in bytes of the commands' `/dev/shm`, their shared memory."""
    stop_timeout_ms: NotRequired[Union[int, None]]
    """How long the processes of a command that is to end may go on after SIGTERM, until they are killed; 0 if they are killed at once."""
    timeout_ms: NotRequired[Union[int, None]]
    """The run's deadline."""
    tmpfs_bytes: NotRequired[Union[int, None]]
    """Size in bytes of the commands' `/tmp`, which is in memory: at most this, and seven eighths of the sandbox's memory. A tmpfs of size 0 would have no limit."""
    vm_memory_bytes: NotRequired[Union[int, None]]
    """Memory of the Luau VM."""
    write_bytes: NotRequired[Union[int, None]]
    """Bytes written to files, including overwritten bytes."""


class Network(TypedDict):
    """The connections while a script or a command ran, those of others in the same sandbox included: each host, port and reason once, in order, at most 100 of each kind."""
    contacted: List[ContactedHost]
    """The hosts that were connected to."""
    refused: List[RefusedHost]
    """The hosts that were refused."""
    truncated: bool
    """There are more than are listed."""


class NetworkRequest(TypedDict):
    """The hosts that commands may reach; none by default."""
    allow: List[str]
    """Rules as of `--allow`: `HOST[:PORT]`."""


class NetworkRequestInput(TypedDict):
    """The hosts that commands may reach; none by default."""
    allow: NotRequired[List[str]]
    """Rules as of `--allow`: `HOST[:PORT]`."""


class Note(TypedDict):
    """Something in the sandbox that stood in the way of a script or a command."""
    hint: NotRequired[Union[str, None]]
    """What to do about it."""
    kind: NoteKind
    """What it was."""
    message: str
    """For people."""


class OmittedEntry(TypedDict):
    """An entry that matched and was not copied."""
    path: str
    """Its path."""
    path_b64: NotRequired[Union[str, None]]
    """The path's bytes, where they are not UTF-8."""
    reason: OmitReason
    """Why it was not copied."""


class OperationMetadata(TypedDict):
    """Statistics of an operation in its `Envelope`."""
    bytes: NotRequired[Union[int, None]]
    """The number of bytes of content that were read or written."""
    duration_ms: int
    """The duration in milliseconds."""
    items: NotRequired[Union[int, None]]
    """The number of listed or removed entries, or of replacements."""


class Problem(TypedDict):
    """Why a request was refused or failed: the body of every answer with a status of 400 or more."""
    detail: str
    """What is wrong with this request, in one line."""
    errors: NotRequired[List[InvalidMember]]
    """The invalid members of the request."""
    hint: NotRequired[Union[str, None]]
    """A suggested next step."""
    instance: NotRequired[Union[str, None]]
    """This request, for questions about it: `urn:sandboxctl:request:` and its id."""
    kind: ProblemKind
    """The kind, for programs."""
    status: int
    """The status of the answer."""
    title: str
    """The kind in a few words."""
    type: str
    """The kind as a URI: `urn:sandboxctl:problem:` and the kind."""


class ProcessRequest(TypedDict):
    """A process to start. Its output is kept in memory: the last mebibyte of it, unless the server has another bound."""
    command: NotRequired[CommandRequest]
    """What runs. Its `stdin` is written at once; with `stdin` of the process left out, that is all of it."""
    merge: NotRequired[bool]
    """Whether stdout and stderr are one stream, in the order of writing."""
    pty: NotRequired[Union[PtyRequest, None]]
    """A terminal in place of pipes."""
    secrets: NotRequired[Secrets]
    """Secrets, each as an environment variable of this process."""
    stdin: NotRequired[bool]
    """Whether its stdin stays open for input that comes later."""
    stop_signal: NotRequired[Union[SignalName, None]]
    """The signal that asks it to end, before what is left of it is killed; by default `TERM`."""
    stop_timeout_ms: NotRequired[Union[int, None]]
    """The time from that signal until it is killed, in milliseconds; by default the sandbox's. 0 kills at once."""
    tag: NotRequired[Union[str, None]]
    """A word of the caller's own, by which the process can be found."""
    timeout_ms: NotRequired[Union[int, None]]
    """After how many milliseconds it is stopped; by default it may run as long as its sandbox."""


class PtyRequest(TypedDict):
    """A terminal."""
    cols: int
    """Its width, 1 to 4096."""
    rows: int
    """Its height, 1 to 4096."""
    term: NotRequired[Union[str, None]]
    """`TERM`; by default `xterm-256color`. Letters, digits and `.+_-`, at most 64 bytes."""


class ReceiptReport(TypedDict):
    """What became of the receipt of a run: the member `receipt` of its document."""
    error: NotRequired[Union[Failure, None]]
    """Why it was not written."""
    file: str
    """The file on the host; lossy where it is not UTF-8."""


class RefusedHost(TypedDict):
    """A host that was refused."""
    allow: List[str]
    """The rules to add to the allow list; empty if none would help."""
    host: str
    """Its name or address, normalised; as the guest wrote it, where it is neither."""
    port: int
    """Its port."""
    reason: str
    """Why, in a few words."""


class ResultExecution(TypedDict):
    """The document of `--json`, for every way a run can end, including failures of sandboxctl itself."""
    artifacts: NotRequired[Union[ArtifactsReport, None]]
    """What was copied out of the io dir, if that was asked for."""
    changes: NotRequired[Union[ChangeManifest, None]]
    """The changes, as the change manifest lists them."""
    committed: NotRequired[Union[bool, None]]
    """Whether the io dir has the changes, where they were staged."""
    confinement: Union[Confinement, None]
    """Its confinement beyond its container."""
    created_at: str
    """When it was accepted."""
    disk: NotRequired[Union[Disk, None]]
    """What bounds the disk space that programs take in the io dir."""
    ended_at: Union[str, None]
    """When it ended."""
    engine: Union[EngineKind, None]
    """The engine it ran on."""
    engine_notice: NotRequired[Union[str, None]]
    """Why another engine was not chosen."""
    error: Union[Failure, None]
    """Why it failed."""
    exit_code: Union[int, None]
    """The exit code; null before the end, and of a command that a signal ended."""
    files_touched: List[TouchedFile]
    """The files that changed."""
    files_touched_source: TouchedSource
    """How they were found."""
    files_touched_truncated: bool
    """There are more than are listed."""
    generation: Union[int, None]
    """The generation of that sandbox that it runs in; before that, the one that was asked for."""
    id: Union[str, None]
    """The run's id."""
    io_dir: Union[str, None]
    """The io dir on the host; lossy where it is not UTF-8."""
    limits: Union[Limits, None]
    """The limits it ran under."""
    logs: List[str]
    """Its log, an entry a text."""
    logs_truncated: bool
    """Entries were omitted, and the last one says why; or some were cut, and say so."""
    metadata: Dict[str, Any]
    """The members of its caller's own."""
    network: Union[Network, None]
    """The hosts that its commands reached, and those that they were refused; null if no host was allowed."""
    notes: NotRequired[List[Note]]
    """What stood in its way in the sandbox; absent if nothing did, or it ended well."""
    receipt: NotRequired[Union[ReceiptReport, None]]
    """Whether its receipt was written, if that was asked for."""
    request: NotRequired[Union[Dict[str, Any], None]]
    """The body of the request that asked a service for it; absent if that had secrets or is large."""
    restarted: Union[bool, None]
    """Whether it started that generation in place of an earlier one, whose processes are gone; null before its run, and without a kept sandbox."""
    result: Any
    """The script's result."""
    sandbox: Union[str, None]
    """The kept sandbox that it runs in; null for one of its own."""
    schema: ResultSchema
    """Its name and version."""
    staging: NotRequired[Union[StagingMethod, None]]
    """How the changes were kept apart from the io dir until then."""
    started_at: Union[str, None]
    """When its run began."""
    status: ExecutionStatus
    """Its state."""
    tests: NotRequired[List[TestCase]]
    """Its test cases, if it has some."""
    timing: Union[Timing, None]
    """How long its parts took."""
    tool_calls: NotRequired[List[ToolCall]]
    """Its calls of tools of the host, if it made some: the first 1,000."""
    tool_calls_truncated: NotRequired[bool]
    """There were more calls than are listed."""
    usage: Union[Usage, None]
    """The resources it used."""


class SandboxRequest(TypedDict):
    """A sandbox to create, or the one of this name if its spec is the same."""
    idle: NotRequired[IdleAction]
    """What happens then."""
    idle_ms: NotRequired[Union[int, None]]
    """For how long its container exists without use, in milliseconds. A process that was started and has not ended is a use, unless `idle` is `freeze`."""
    metadata: NotRequired[Dict[str, Any]]
    """Members of the caller's own, which are kept and given back."""
    name: NotRequired[Union[str, None]]
    """A name of the caller's own; without one it is always a new sandbox."""
    spec: NotRequired[KeptSpecInput]
    """What it is."""
    ttl_ms: NotRequired[Union[int, None]]
    """For how long it exists at most, in milliseconds; it can be extended up to the server's limit."""


class SandboxView(TypedDict):
    """A kept sandbox."""
    created_at: str
    """When it was created."""
    expires_at: str
    """When it ends, unless it is extended."""
    generation: int
    """The number of its container, from 1: processes of an earlier one are gone."""
    id: str
    """Its id."""
    idle: IdleAction
    """What happens then."""
    idle_at: Union[str, None]
    """When its container ends, or is frozen, unless it is used; null while it is in use, and without one."""
    last_used_at: str
    """When it was last used. Reading a sandbox does not count as use."""
    max_expires_at: str
    """Until when it can be extended."""
    metadata: Dict[str, Any]
    """The members of its creator's own."""
    name: Union[str, None]
    """The name that its creator gave it."""
    node_away: NotRequired[bool]
    """Whether the node of the cluster that has it is not there: it can be deleted, and not be used."""
    paused_memory: NotRequired[Union[int, None]]
    """The bytes of memory that it had when it was paused, which it keeps meanwhile; of a paused one alone."""
    processes: Union[int, None]
    """How many processes have been started in its generation and have not ended; null if it is at another node."""
    spec: KeptSpec
    """What it is."""
    status: SandboxStatus
    """Its state."""


class SignalRequest(TypedDict):
    """A signal to send."""
    signal: SignalName
    """Which one."""
    to: NotRequired[SignalTarget]
    """To which processes."""


class TestCase(TypedDict):
    """A test case of a script: `test.case(name, fn)`."""
    duration_ms: int
    """How long it took."""
    line: NotRequired[Union[int, None]]
    """The line of the script where it failed."""
    message: NotRequired[Union[str, None]]
    """Why it failed or was skipped, at most 1,024 bytes in JSON."""
    name: str
    """Its name, at most 256 bytes in JSON."""
    status: TestStatus
    """How it ended."""


class Timing(TypedDict):
    """How long the parts of an execution took, one after another."""
    queued_ms: Union[int, None]
    """The wait in a queue; null without a queue. It counts towards no time limit."""
    run_ms: int
    """From the request in the sandbox to its answer."""
    start: Union[StartKind, None]
    """How the sandbox was started; null if it was open already."""
    start_ms: Union[int, None]
    """The start of its sandbox; null if that was open already."""


class ToolCall(TypedDict):
    """A call of a tool by a script."""
    argument_bytes: int
    """The size of its arguments as JSON."""
    arguments_sha256: str
    """The digest of its arguments as JSON."""
    duration_ms: int
    """How long it took."""
    outcome: ToolOutcome
    """How it ended."""
    result_bytes: int
    """The size of its result: its value as JSON, or its text if it failed, and its files."""
    result_sha256: str
    """The digest of its value as JSON, or of the text if it failed."""
    tool: str
    """The tool, as the script named it."""


class TouchedFile(TypedDict):
    """A file that a run changed."""
    bytes: int
    """Its current size; 0 if it was removed."""
    name: str
    """Relative to the io dir; lossy where it is not UTF-8."""
    name_b64: NotRequired[Union[str, None]]
    """The name's bytes, where they are not UTF-8."""
    op: FileOp
    """The kind of change."""


class Usage(TypedDict):
    """The resources that a run used. null means unknown."""
    cpu_ms: Union[int, None]
    """Processor time."""
    peak_memory_bytes: Union[int, None]
    """The maximum resident set size: of a script's agent, over the sandbox's life so far; of a command's largest process."""
    wall_ms: int
    """From when the agent accepted the script until it ended."""
    written_bytes: Union[int, None]
    """Bytes written to files."""


class ViewOptions(TypedDict):
    """The lines of a file that are wanted."""
    limit: NotRequired[Union[int, None]]
    """The maximum number of lines; by default that of a view (2,000 lines, 50 KiB)."""
    offset: NotRequired[int]
    """The first line, counted from 1."""


class WriteData(TypedDict):
    """The result of `write`."""
    bytes_written: int
    """The size of the content in bytes."""
    created: bool
    """Whether the file did not exist before."""
    path: str
    """The file."""
    path_b64: NotRequired[Union[str, None]]
    """The path's bytes, where they are not UTF-8."""


ChangeOp = Literal["created", "modified", "removed", "mode", "times"]
"""What happened to a path. Equal content, mode and times are no change."""


ChangeType = Literal["file", "directory", "symlink", "other"]
"""The type of a changed path."""


ChangesSchema = Literal["sandboxctl.changes/1"]
"""The name and version of the schema of a change manifest."""


class ContentB64(TypedDict):
    b64: str


Content = Union[str, ContentB64]
"""Text, or bytes in base64."""


DiskBackend = Literal["tmpfs", "ext4", "directory"]
"""What an io dir is."""


DiskBound = Literal["kernel", "watched"]
"""What enforces a bound."""


Encoding = Literal["utf-8", "base64", "hex", "latin1", "utf-16le", "utf-16be", "ascii", "utf8"]
"""An encoding of file content as text."""


EngineKind = Literal["docker", "embedded"]
"""A kind of engine."""


ErrorKind = Literal["not_found", "already_exists", "is_directory", "not_a_directory", "not_empty", "permission_denied", "path_escape", "invalid_path", "not_allowed", "protected", "read_only", "symlink", "special_file", "too_large", "write_limit", "too_many_files", "too_many_handles", "disk_full", "encoding", "out_of_memory", "output_limit", "source_too_large", "result_too_large", "syntax", "runtime", "result_not_json", "not_executable", "command_not_found", "network_refused", "timeout", "cancelled", "killed", "busy", "invalid_request", "usage", "config", "policy", "engine", "image", "conflict", "agent_lost", "internal"]
"""The kind of an error. The same names are used in the agent's answers, in results, in the HTTP API and in MCP."""


EventKind = Literal["queued", "start", "log", "output", "omitted", "test", "refused", "exit", "end"]
"""The values of the member `event`."""


EventsSchema = Literal["sandboxctl.events/1"]
"""The name and version of the events, in the first of them."""


ExecSchema = Literal["sandboxctl.exec/1"]
"""The name and version of a command's result document."""


ExecutionStatus = Literal["queued", "running", "ok", "script_error", "exit", "limit", "timeout", "cancelled", "killed", "agent_lost", "error"]
"""The state of an execution: it waits, it runs, or how it ended."""


FileOp = Literal["write", "append", "remove"]
"""How a file changed."""


FileScope = Literal["io", "all"]
"""Where the file operations of a sandbox may go."""


IdleAction = Literal["stop", "freeze"]
"""What happens to a sandbox that nothing has used for its idle time."""


IoErrors = Literal["raise", "return"]
"""How `io` reports OS errors. A broken rule of the sandbox always raises an error."""


IoMode = Literal["off", "private", "shared"]
"""Which io dir an execution has."""


LogLevel = Literal["print", "warn", "truncated"]
"""The origin of a log entry."""


NoteKind = Literal["out_of_memory", "processes", "no_space", "shared_memory", "read_only", "file_size", "no_network", "proxy", "unreached_host"]
"""What stood in the way."""


OmitReason = Literal["symlink", "fifo", "socket", "device", "reserved_name"]
"""Why an entry was not copied."""


class OperationRead(TypedDict):
    """Reads a file, or a range of it, as text in an encoding."""
    encoding: NotRequired[Union[Encoding, None]]
    """The encoding of the content; by default the sandbox's."""
    limit: NotRequired[Union[int, None]]
    """The maximum number of bytes."""
    offset: NotRequired[int]
    """The offset of the first byte."""
    operation: Literal["read"]
    path: Content
    """The file."""


class OperationView(TypedDict):
    """Returns a range of a file for people and models."""
    lines: NotRequired[ViewOptions]
    """The lines."""
    operation: Literal["view"]
    path: Content
    """The file."""


class OperationWrite(TypedDict):
    """Writes a file completely, or not at all."""
    atomic: NotRequired[bool]
    """Whether every reader sees either the old file or the new one whole."""
    content: str
    """The content, in the encoding."""
    encoding: NotRequired[Union[Encoding, None]]
    """The encoding; by default the sandbox's."""
    mode: NotRequired[WriteMode]
    """What happens to an existing file."""
    operation: Literal["write"]
    parents: NotRequired[bool]
    """Whether to create missing parent directories."""
    path: Content
    """The file."""
    permissions: NotRequired[Union[int, None]]
    """The permissions of a file that is created, such as 0o640; an existing one keeps its own."""


class OperationEdit(TypedDict):
    """Replaces text that occurs in a file exactly `count` times."""
    count: NotRequired[int]
    """The expected number of occurrences."""
    new: str
    """The replacement."""
    old: str
    """The text to replace."""
    operation: Literal["edit"]
    path: Content
    """The file."""


class OperationList(TypedDict):
    """Lists a directory."""
    details: NotRequired[bool]
    """Whether each entry has the details that `stat` gives."""
    limit: NotRequired[Union[int, None]]
    """The maximum number of entries."""
    max_depth: NotRequired[Union[int, None]]
    """The maximum depth."""
    operation: Literal["list"]
    path: NotRequired[Content]
    """The directory."""
    recursive: NotRequired[bool]
    """Whether to descend into subdirectories."""


class OperationGlob(TypedDict):
    """Finds paths by a pattern."""
    exclude: NotRequired[List[str]]
    """Paths to leave out: globs of names, or with a slash of paths as they are returned, such as `node_modules` and `**/target/**`."""
    hidden: NotRequired[bool]
    """Whether names that begin with a dot match where the pattern has no such name."""
    limit: NotRequired[Union[int, None]]
    """The maximum number of paths."""
    operation: Literal["glob"]
    path: NotRequired[Content]
    """The directory."""
    pattern: str
    """The pattern, relative to the directory."""


class OperationGrep(TypedDict):
    """Finds lines by a regular expression."""
    context: NotRequired[int]
    """The number of lines of context on each side of a match."""
    exclude: NotRequired[List[str]]
    """Files and directories to leave out: globs of names, or with a slash of paths below the directory."""
    glob: NotRequired[Union[str, None]]
    """Only files whose path or name matches this glob; with `!` before it, all others."""
    hidden: NotRequired[bool]
    """Whether to search files and directories whose names begin with a dot, without those of version control."""
    ignore_case: NotRequired[bool]
    """Whether to ignore case."""
    limit: NotRequired[Union[int, None]]
    """The maximum number of matching lines."""
    operation: Literal["grep"]
    path: NotRequired[Content]
    """The file, or the directory whose files are searched."""
    pattern: str
    """The regular expression."""


class OperationMkdir(TypedDict):
    """Creates a directory."""
    operation: Literal["mkdir"]
    parents: NotRequired[bool]
    """Whether to create missing parent directories."""
    path: Content
    """The directory."""


class OperationTouch(TypedDict):
    """Creates an empty file if there is none, and sets when a file or a directory was last modified."""
    mtime: NotRequired[Union[str, None]]
    """When it was last modified, in RFC 3339; now if it is absent."""
    operation: Literal["touch"]
    path: Content
    """The file or directory."""


class OperationRemove(TypedDict):
    """Removes a file or a directory."""
    force: NotRequired[bool]
    """Whether to ignore a nonexistent path."""
    operation: Literal["remove"]
    path: Content
    """The path to remove."""
    recursive: NotRequired[bool]
    """Whether to remove a directory with its contents."""


class OperationExists(TypedDict):
    """Tests whether a path exists."""
    operation: Literal["exists"]
    path: Content
    """The path."""


class OperationStat(TypedDict):
    """Returns the metadata of a path."""
    follow: NotRequired[bool]
    """Whether to follow a link at its end, in a sandbox with `files: all`."""
    operation: Literal["stat"]
    path: Content
    """The path."""


OperationRename = TypedDict(
    "OperationRename",
    {
        "from": "Content",
        "operation": "Literal[\"rename\"]",
        "overwrite": "NotRequired[bool]",
        "parents": "NotRequired[bool]",
        "to": "Content",
    },
)
"""Moves or renames."""


OperationCopy = TypedDict(
    "OperationCopy",
    {
        "from": "Content",
        "operation": "Literal[\"copy\"]",
        "overwrite": "NotRequired[bool]",
        "recursive": "NotRequired[bool]",
        "to": "Content",
    },
)
"""Copies a file or a directory."""


class OperationChmod(TypedDict):
    """Sets the permissions of a file or a directory."""
    operation: Literal["chmod"]
    path: Content
    """The file or directory."""
    permissions: int
    """The lowest nine bits of its mode, such as 0o640; no others."""
    recursive: NotRequired[bool]
    """Whether to do so for all that is in a directory too, but for links."""


class OperationSymlink(TypedDict):
    """Creates a symbolic link, in a sandbox with `files: all`."""
    operation: Literal["symlink"]
    path: Content
    """The path of the link."""
    target: Content
    """What it points to, as it is stored."""


class OperationReadLink(TypedDict):
    """Returns what a symbolic link points to, in a sandbox with `files: all`."""
    operation: Literal["read_link"]
    path: Content
    """The path of the link."""


class OperationSetMetadata(TypedDict):
    """Replaces the metadata of a file or a directory, in a sandbox with `files: all`."""
    metadata: Dict[str, str]
    """Values by key: all that there are in the namespace from now on."""
    namespace: NotRequired[str]
    """The namespace: `sbx` or `e2b`."""
    operation: Literal["set_metadata"]
    path: Content
    """The file or directory."""


Operation = Union[OperationRead, OperationView, OperationWrite, OperationEdit, OperationList, OperationGlob, OperationGrep, OperationMkdir, OperationTouch, OperationRemove, OperationExists, OperationStat, OperationRename, OperationCopy, OperationChmod, OperationSymlink, OperationReadLink, OperationSetMetadata]
"""A file operation with all of its options, read from `{"operation": "read", "path": "a.txt", …}`."""


OutputEncoding = Literal["utf-8", "base64"]
"""The encoding of a command's output in the document."""


OutputStream = Literal["stdout", "stderr"]
"""The stream of a command's output."""


Ports = Union[List[int], Literal["any"]]
"""The TCP ports of a sandbox's loopback that may be reached from outside: a list, or `any`."""


ProblemKind = Literal["malformed", "unauthenticated", "forbidden", "policy", "not_found", "method_not_allowed", "request_timeout", "conflict", "in_flight", "no_stdin", "stdin_full", "process_ended", "gone", "precondition_failed", "too_large", "unsupported_media_type", "range_not_satisfiable", "misdirected", "invalid_request", "idempotency_key_reused", "rate_limited", "quota_exceeded", "internal", "port_closed", "full", "unavailable", "already_exists", "is_directory", "not_a_directory", "not_empty", "permission_denied", "path_escape", "invalid_path", "not_allowed", "protected", "read_only", "symlink", "special_file", "write_limit", "too_many_files", "too_many_handles", "disk_full", "encoding", "out_of_memory", "output_limit", "source_too_large", "result_too_large", "syntax", "runtime", "result_not_json", "not_executable", "command_not_found", "network_refused", "timeout", "cancelled", "killed", "busy", "usage", "config", "engine", "image", "agent_lost"]
"""The kind of a problem."""


Processes = Literal["per_command", "kept"]
"""How long the processes of a sandbox live."""


ResultSchema = Literal["sandboxctl.result/1"]
"""The name and version of a script's result document."""


SandboxStatus = Literal["starting", "ready", "paused", "stopped"]
"""The state of a kept sandbox."""


Secrets = Dict[str, Content]
"""Secrets by name. They are never stored and never given back."""


SignalName = Literal["HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP", "TSTP", "WINCH"]
"""The signals that can be sent to a command."""


SignalTarget = Literal["process", "group", "foreground", "tree"]
"""To which processes of a command a signal is sent."""


StagingMethod = Literal["copy", "overlay"]
"""How a run's changes are kept apart from its io dir until they are committed."""


StartKind = Literal["warm", "cold"]
"""How a sandbox was started."""


TestStatus = Literal["passed", "failed", "skipped"]
"""How a test case ended."""


ToolOutcome = Literal["ok", "failed", "refused", "unknown", "timeout", "too_large", "limit", "unavailable", "cancelled"]
"""How a call of a tool ended."""


TouchedSource = Literal["observed", "scan"]
"""How changed files were found."""


UnixSockets = Literal["none", "landlock", "supervised", "pairs", "unrestricted"]
"""The UNIX sockets that commands can connect or send to. Socket pairs (stream and seqpacket) work in every mode."""


WriteMode = Literal["overwrite", "append", "create_new"]
"""What to do if the file exists."""


OperationName = Literal[
    "read",
    "view",
    "write",
    "edit",
    "list",
    "glob",
    "grep",
    "mkdir",
    "touch",
    "remove",
    "exists",
    "stat",
    "rename",
    "copy",
    "chmod",
    "symlink",
    "read_link",
    "set_metadata",
]
"""The name of an operation on files."""


OPERATIONS = (
    "read",
    "view",
    "write",
    "edit",
    "list",
    "glob",
    "grep",
    "mkdir",
    "touch",
    "remove",
    "exists",
    "stat",
    "rename",
    "copy",
    "chmod",
    "symlink",
    "read_link",
    "set_metadata",
)
"""The operations on files."""
