//! The whole vocabulary: what the two sides say to each other.
//!
//! Controller to agent: the requests ([`Request`]) and, either way, [`Chunk`] and [`Credit`].
//! Agent to controller: one answer a request, the notifications [`Log`], [`Touched`], [`Refused`] and
//! [`Page`], and again [`Chunk`] and [`Credit`]. A session is `hello`, any requests, `shutdown`; the end of
//! stdin without `shutdown` ends the agent at once.
//!
//! Where programs may reach hosts, the agent asks for each connection by [`Connect`]; what the two
//! sides then say of it is [`Connected`], [`Close`] and [`Closed`].
//!
//! Every size is in bytes, every time in milliseconds.

mod egress;
mod exec;
mod files;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};

pub use egress::{Close, Closed, ClosedReason, Connect, Connected};
pub use exec::{Command, Exec, ExecEnd, ExecReply, ExecStop, Program, Variable, Word};
pub use files::{
    Edit, EditReply, Entry, EntryKind, Exists, ExistsReply, ImageContent, List, ListReply, Mkdir,
    MkdirReply, Page, Read, ReadReply, Remove, RemoveReply, Rename, RenameReply, Stat, StatReply,
    TextWindow, Timestamp, TruncatedBy, View, ViewContent, ViewReply, Write, WriteMode, WriteReply,
    permissions_text,
};

use crate::{Base64, ErrorKind};

/// A request's parameters, tied to its method and the type of its answer.
pub trait Call: Into<Request> {
    /// What the agent answers with.
    type Reply: DeserializeOwned;
    /// It ends what is under way, and takes no place of the
    /// [requests in flight](crate::limits::MAX_IN_FLIGHT).
    const IS_CONTROL: bool;
}

macro_rules! requests {
    ($($(#[$doc:meta])* $method:literal $variant:ident -> $reply:ty,)+) => {
        /// What the controller asks of the agent.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Request {
            $($(#[$doc])* $variant($variant),)+
        }

        /// The names of the requests.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
        pub(crate) enum RequestMethod {
            $(#[serde(rename = $method)] $variant,)+
        }

        impl Request {
            /// Every method, as on the wire.
            pub const METHODS: &[&str] = &[$($method),+];

            /// The method's name, as on the wire.
            #[must_use]
            pub const fn method(&self) -> &'static str {
                match self { $(Self::$variant(_) => $method,)+ }
            }

            pub(crate) fn decode(
                method: RequestMethod,
                params: &RawValue,
            ) -> Result<Self, serde_json::Error> {
                match method {
                    $(RequestMethod::$variant =>
                        serde_json::from_str(params.get()).map(Self::$variant),)+
                }
            }

            pub(crate) fn params(&self) -> Result<Box<RawValue>, serde_json::Error> {
                match self {
                    $(Self::$variant(params) => serde_json::value::to_raw_value(params),)+
                }
            }
        }

        $(
            impl From<$variant> for Request {
                fn from(params: $variant) -> Self { Self::$variant(params) }
            }
            impl Call for $variant {
                type Reply = $reply;
                const IS_CONTROL: bool = matches!($method.as_bytes(), b"cancel" | b"shutdown");
            }
        )+
    };
}

requests! {
    /// The first request: versions and confinement. Again, with a `nonce`, to prove a bind mount.
    "hello" Hello -> HelloReply,
    /// Limits and policy, once, before anything else but `hello`.
    "configure" Configure -> ConfigureReply,
    /// Runs a script. One at a time; another one meanwhile is `busy`.
    "run" Run -> RunReply,
    /// Runs a program, in a sandbox that has some.
    "exec" Exec -> ExecReply,
    /// Gives the content of a file, or a range of it.
    "read" Read -> ReadReply,
    /// Gives a window of a file for people and models.
    "view" View -> ViewReply,
    /// Writes a file.
    "write" Write -> WriteReply,
    /// Replaces text in a file.
    "edit" Edit -> EditReply,
    /// Lists a directory.
    "list" List -> ListReply,
    /// Makes a directory.
    "mkdir" Mkdir -> MkdirReply,
    /// Removes a name, or a tree.
    "remove" Remove -> RemoveReply,
    /// Says whether a name is there.
    "exists" Exists -> ExistsReply,
    /// Says what is known of a name.
    "stat" Stat -> StatReply,
    /// Renames.
    "rename" Rename -> RenameReply,
    /// Ends a request that is under way.
    "cancel" Cancel -> CancelReply,
    /// Ends the session: the agent answers and exits with code 0.
    "shutdown" Shutdown -> ShutdownReply,
}

/// `hello`: the versions of both sides, and what confines the agent. It decides nothing about what
/// the sandbox may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION) of the controller.
    pub protocol: u32,
    /// The name of a file in the root of the home mount whose content the agent is to give back
    /// and to remove. Null where the controller needs no such proof.
    #[serde(default)]
    pub nonce: Option<String>,
}

/// `configure`: what the sandbox may use and do, for its whole life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configure {
    /// What the sandbox may use.
    pub limits: Limits,
    /// What the sandbox may do.
    pub policy: Policy,
}

/// The agent's answer to `configure`: the limits are in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigureReply {}

/// Limits that the agent enforces. They hold for the whole life of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory of the Luau VM.
    pub vm_memory_bytes: u64,
    /// Bytes written to files, overwritten or not, holes counted.
    pub write_bytes: u64,
    /// Files and directories made.
    pub entries: u64,
    /// Size of one file that a file operation reads or writes whole.
    pub file_bytes: u64,
    /// File handles open at one time.
    pub open_handles: u64,
    /// Encoded bytes of all log entries together.
    pub log_bytes: u64,
    /// Number of log entries.
    pub log_lines: u64,
    /// Encoded bytes of a run's result.
    pub result_bytes: u64,
    /// Entries of one list.
    pub list_entries: u64,
    /// Depth of one recursive list.
    pub list_depth: u64,
    /// Time of one file operation.
    pub operation_timeout_ms: u64,
    /// Bytes of a program's output, both streams together.
    pub output_bytes: u64,
    /// Bytes a stream of the output that a script's `process.exec` keeps.
    pub collected_bytes: u64,
    /// Bytes that whatever the agent writes leaves free on the file system.
    pub disk_reserve_bytes: u64,
    /// Processor time of the agent's process, and of each program, from its beginning on
    /// (`RLIMIT_CPU`). Null without a limit.
    pub cpu_seconds: Option<u64>,
}

/// What the sandbox may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Whether scripts have files at all.
    pub io: bool,
    /// How `io` reports OS errors.
    pub io_errors: IoErrors,
    /// Guest path prefixes that may be used, by component.
    pub allowed_paths: Vec<AllowedPath>,
    /// Names that refuse writes wherever they stand: `.bashrc`, `.git/hooks`.
    pub protected: Vec<String>,
}

/// How `io` reports OS errors. Breaking a rule of the sandbox always raises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IoErrors {
    /// An error, as `error` raises it.
    #[default]
    Raise,
    /// `nil, message, errno`, as standard Lua does.
    Return,
}

/// A guest path prefix and what may be done below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedPath {
    /// A guest path.
    pub path: String,
    /// Reading, or reading and writing.
    pub access: Access,
}

/// Reading, or reading and writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing.
    Write,
}

/// The agent's answer to `hello`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HelloReply {
    /// [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION) of the agent.
    pub protocol: u32,
    /// The agent's package version.
    pub agent: String,
    /// What confines the agent beyond its container.
    pub confinement: Confinement,
    /// How paths are resolved.
    pub resolver: Resolver,
    /// The kernel's boot id: an equal one means the same kernel.
    pub boot_id: String,
    /// The roots of the mounts, in the order of the agent's argv.
    pub mounts: Vec<MountIdentity>,
    /// The content of the nonce file, where one was asked for and could be read.
    #[serde(default)]
    pub nonce: Option<String>,
}

/// What confines the agent beyond its container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confinement {
    /// `PR_SET_NO_NEW_PRIVS` is set.
    pub no_new_privileges: bool,
    /// The agent cannot be traced or dumped (`PR_SET_DUMPABLE` 0).
    pub undumpable: bool,
    /// The ABI of Landlock in force, null without.
    pub landlock_abi: Option<u32>,
    /// The agent's own seccomp filter is in force.
    pub seccomp: bool,
    /// Which UNIX sockets programs can connect to.
    pub unix_sockets: UnixSockets,
    /// Why a layer is not in force, for people: one entry a layer that is missing.
    #[serde(default)]
    pub missing: Vec<String>,
}

/// Which UNIX sockets programs can connect or send to. Pairs of stream and seqpacket sockets work
/// under each of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnixSockets {
    /// None: the sandbox runs scripts, which have no sockets.
    None,
    /// Those that the sandbox itself made, enforced by Landlock (ABI 9).
    Landlock,
    /// Abstract ones, and those on the sandbox's own file systems: the agent makes every connection
    /// (seccomp user notification). No datagram sockets.
    Supervised,
    /// None but pairs: this kernel or engine has neither of the two above.
    Pairs,
    /// Any, those included that a mount shows.
    Unrestricted,
}

/// How the agent resolves paths beneath a mount. Both give the same guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resolver {
    /// One `openat2` with `RESOLVE_BENEATH` and its like.
    Openat2,
    /// Component by component with `O_NOFOLLOW`, where the kernel has no `openat2`.
    Walk,
}

/// Which directory or file a mount is, as the agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountIdentity {
    /// Where it is in the sandbox.
    pub path: String,
    /// `st_dev`.
    pub dev: u64,
    /// `st_ino`.
    pub ino: u64,
}

/// `run`: a script.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The chunk's text, at most [`MAX_SOURCE_BYTES`](crate::limits::MAX_SOURCE_BYTES).
    pub source: String,
    /// The script's `args`, at most [`MAX_ARGS_BYTES`](crate::limits::MAX_ARGS_BYTES) encoded.
    pub args: Map<String, Value>,
    /// The deadline, counted from the moment the agent takes the request.
    pub timeout_ms: u64,
}

/// How a run went. What the script did is data.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunReply {
    /// How it ended.
    pub end: RunEnd,
    /// Log entries were left out, because of `log_bytes` or `log_lines`.
    pub logs_truncated: bool,
    /// What it used.
    pub usage: AgentUsage,
}

/// How a run ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnd {
    /// The chunk returned; its values as JSON.
    Returned(Box<RawValue>),
    /// The chunk did not return.
    Failed(ScriptError),
}

/// Why a chunk did not return.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptError {
    /// `syntax`, `runtime`, `result_not_json`, a limit, `timeout` or `cancelled`.
    pub kind: ErrorKind,
    /// As `pcall` would give it: `script:3: …`.
    pub message: String,
    /// The line in the script that the message names.
    #[serde(default)]
    pub line: Option<u32>,
    /// The call stack at the error.
    #[serde(default)]
    pub traceback: Option<String>,
}

/// What a run used, as the agent counted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentUsage {
    /// Processor time of the agent since it began.
    pub cpu_ms: u64,
    /// Largest resident size of the agent since it began; 0 where its kernel does not tell.
    pub peak_memory_bytes: u64,
    /// Bytes written to files in this run.
    pub written_bytes: u64,
}

/// `cancel`: ends a request that is under way; that request still gets its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// The id of the request to end.
    pub id: u64,
}

/// The agent's answer to `cancel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelReply {
    /// Whether a request of that id was under way.
    pub found: bool,
}

/// `shutdown`: ends the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shutdown {}

/// The agent's answer to `shutdown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShutdownReply {}

/// `log`: an entry of the log, sent while the script runs and before the run's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// The id of the `run` that makes it.
    pub request: u64,
    /// `print` or `warn`.
    pub level: LogLevel,
    /// The entry, at most [`MAX_LOG_ENTRY_BYTES`](crate::limits::MAX_LOG_ENTRY_BYTES) encoded.
    pub text: String,
    /// The entry was not UTF-8, and `text` has U+FFFD in places.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lossy: bool,
    /// The entry was longer and was cut.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// Which function made a log entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// `print`.
    Print,
    /// `warn`.
    Warn,
}

/// `touched`: a path is about to change. Sent before the change, so that an agent that is killed
/// loses none; sent again for a path only where a later change is of another kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Touched {
    /// The id of the request that causes it, which is not answered yet.
    pub request: u64,
    /// The normalised guest path, lossy where it is not UTF-8.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// Whether something was there before.
    pub existed: bool,
    /// What is about to happen.
    pub change: Change,
}

/// `refused`: a rule of the sandbox kept a script from a path. Sent before the script hears of it,
/// once for the same refusal of the same path, and at most
/// [`MAX_REFUSALS`](crate::limits::MAX_REFUSALS) times a run. What a request itself is refused
/// is its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// The id of the run, which is not answered yet.
    pub request: u64,
    /// What the script wanted.
    pub operation: ScriptOperation,
    /// The normalised guest path, or what the script wrote where it has none; at most
    /// [`MAX_PATH_BYTES`](crate::path::MAX_PATH_BYTES) of it, lossy where they are not UTF-8.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// Which rule: one for which [`ErrorKind::is_refusal`] holds.
    pub kind: ErrorKind,
}

/// What a script does with a path, by the names of the file operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScriptOperation {
    /// `fs.read`, `io.lines`, `io.open` to read only.
    Read,
    /// `fs.write`, `io.open` in every other mode.
    Write,
    /// `fs.list`, `io.list`.
    List,
    /// `fs.mkdir`.
    Mkdir,
    /// `fs.remove`, `os.remove`.
    Remove,
    /// `fs.exists`.
    Exists,
    /// `fs.stat`.
    Stat,
    /// `os.rename`.
    Rename,
}

impl ScriptOperation {
    /// Every one of them.
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Write,
        Self::List,
        Self::Mkdir,
        Self::Remove,
        Self::Exists,
        Self::Stat,
        Self::Rename,
    ];

    /// The operation's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::List => "list",
            Self::Mkdir => "mkdir",
            Self::Remove => "remove",
            Self::Exists => "exists",
            Self::Stat => "stat",
            Self::Rename => "rename",
        }
    }
}

/// What is about to happen to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Its content is made or overwritten.
    Write,
    /// It grows at its end.
    Append,
    /// It goes.
    Remove,
    /// Nothing after all: the last change that was announced for this path failed, and what was
    /// announced before it holds.
    Failed,
}

/// `chunk`: a piece of a byte stream, either way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunk {
    /// The stream's number, given by the request that opened it; or a tunnel's.
    pub stream: u32,
    /// 0 for the first chunk of a stream, then one more each.
    pub seq: u64,
    /// At most [`MAX_CHUNK_BYTES`](crate::limits::MAX_CHUNK_BYTES).
    pub data: Base64,
    /// No chunk of this stream follows.
    pub last: bool,
}

/// `credit`: leave to send more of a stream, either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credit {
    /// The stream's number.
    pub stream: u32,
    /// How many more bytes may be sent.
    pub bytes: u64,
}
