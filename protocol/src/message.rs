//! All messages between the controller and the agent.
//!
//! Controller to agent: the requests ([`Request`]), [`Chunk`] and [`Credit`]. Agent to controller:
//! one answer per request, the notifications [`Log`], [`CaseEnd`], [`Touched`], [`Refused`], [`Page`],
//! [`Started`], [`Exited`], [`Watched`], [`Changes`] and [`HostCall`], and also [`Chunk`] and [`Credit`]. A session is `hello`, any number of requests, `shutdown`; if
//! stdin ends without `shutdown`, the agent exits at once.
//!
//! If commands have egress, the agent requests each connection by [`Connect`]; [`Connected`],
//! [`Close`] and [`Closed`] report what becomes of it.
//!
//! Every size is in bytes, every time in milliseconds.

pub(crate) mod configure;
mod egress;
mod exec;
mod host;
mod ports;
mod secret;
mod watch;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};

pub use configure::{
    Access, AllowedPath, CA_FILES, Ca, Configure, FileScope, IoErrors, Limits, Policy,
};
pub use egress::{Close, Closed, ClosedReason, Connect, Connected};
pub use exec::{
    Command, ControlReply, Exec, ExecEnd, ExecReply, ExecStop, Exited, Program, Pty, Resize, Sign,
    Signal, SignalName, SignalTarget, Started, Variable,
};
pub use host::{CallEnd, CallFile, CallResult, CallTarget, HostCall};
pub use ports::{Dial, ListPorts, ListPortsReply, ListeningPort};
pub use secret::Secret;
pub use watch::{ChangedEntry, Changes, FileChange, Flush, Watch, Watched};

pub use crate::operation::*;
use crate::{Base64, ErrorKind, WireString};

/// A request's parameters, with the method and the type of the answer.
pub trait Call: Into<Request> {
    /// The type of the agent's answer.
    type Reply: DeserializeOwned + Send + 'static;
    /// The request is about others, and does not count towards the [requests in
    /// flight](crate::limits::MAX_IN_FLIGHT).
    const IS_CONTROL: bool = false;
}

macro_rules! requests {
    ($(
        $(#[$doc:meta])* $method:literal $variant:ident -> $reply:ident $($is_control:ident)?,
    )+) => {
        /// A request from the controller to the agent.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Request {
            $($(#[$doc])* $variant($variant),)+
            /// A file operation.
            File(Operation),
        }

        impl Request {
            /// The names of the requests that are no file operations.
            pub const METHODS: &[&str] = &[$($method),+];

            /// The method's name on the wire.
            pub const fn method(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $method,)+
                    Self::File(operation) => operation.name(),
                }
            }

            /// Reads the params of the method with this name; `None` if no method has it.
            pub(crate) fn decode(
                method: &str,
                params: &RawValue,
            ) -> Option<Result<Self, serde_json::Error>> {
                Some(match method {
                    $($method => serde_json::from_str(params.get()).map(Self::$variant),)+
                    // A raw value is whole: nothing is left behind it.
                    _ => Operation::decode(method, params)?.map(Self::File),
                })
            }

            pub(crate) fn params(&self) -> Result<Box<RawValue>, serde_json::Error> {
                match self {
                    $(Self::$variant(params) => serde_json::value::to_raw_value(params),)+
                    Self::File(operation) => operation.options(),
                }
            }

            /// Whether its envelope has the number of a stream.
            pub(crate) fn has_stream(&self) -> bool {
                matches!(self, Self::File(operation) if operation.stream().is_some())
            }
        }

        $(
            impl From<$variant> for Request {
                fn from(params: $variant) -> Self { Self::$variant(params) }
            }
            impl Call for $variant {
                type Reply = $reply;
                $(const $is_control: bool = true;)?
            }
        )+
    };
}

impl<O: FileOperation> From<O> for Request {
    fn from(operation: O) -> Self {
        Self::File(operation.into())
    }
}

impl<O: FileOperation> Call for O {
    type Reply = O::Reply;
}

requests! {
    /// The first request: versions and confinement. May be repeated with a `nonce` to prove a bind
    /// mount.
    "hello" Hello -> HelloReply,
    /// Limits and policy. Sent once, before any request but `hello`.
    "configure" Configure -> Done,
    /// Runs a script. Only one runs at a time; a second one is answered `busy`.
    "run" Run -> RunReply,
    /// Runs a command, in a sandbox that supports commands.
    "exec" Exec -> ExecReply,
    /// Cancels a request that is in progress.
    "cancel" Cancel -> ControlReply IS_CONTROL,
    /// Sends a signal to processes of a command.
    "signal" Signal -> ControlReply IS_CONTROL,
    /// Sets the size of a command's terminal.
    "resize" Resize -> ControlReply IS_CONTROL,
    /// Connects to a port of the sandbox's loopback.
    "dial" Dial -> Done,
    /// Lists the ports of the sandbox that something listens on.
    "ports" ListPorts -> ListPortsReply IS_CONTROL,
    /// Watches a directory, in a sandbox that supports commands.
    "watch" Watch -> Done,
    /// Waits until the changes so far are reported.
    "flush" Flush -> Done IS_CONTROL,
    /// The result of a script's call.
    "call_result" CallResult -> ControlReply IS_CONTROL,
    /// Ends the session: the agent answers and exits with code 0.
    "shutdown" Shutdown -> Done IS_CONTROL,
}

/// `hello`: the versions of both sides, and what confines the agent. It does not set what the
/// sandbox may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION) of the controller.
    pub protocol: u32,
    /// The name of a file in the root of the home mount. The agent must return its content and
    /// remove it. Null if the controller needs no such proof.
    pub nonce: Option<String>,
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
    /// The kernel's boot id: if two are equal, the kernel is the same.
    pub boot_id: String,
    /// The roots of the mounts, in the order of the agent's arguments.
    pub mounts: Vec<MountIdentity>,
    /// The content of the nonce file, if one was requested and could be read.
    pub nonce: Option<String>,
}

/// What confines the agent beyond its container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Confinement {
    /// `PR_SET_NO_NEW_PRIVS` is set.
    pub no_new_privileges: bool,
    /// The agent cannot be traced or dumped (`PR_SET_DUMPABLE` 0), nor its descriptors opened by
    /// programs.
    pub undumpable: bool,
    /// The ABI of Landlock in force; null without Landlock.
    pub landlock_abi: Option<u32>,
    /// The agent's own seccomp filter is in force.
    pub seccomp: bool,
    /// The UNIX sockets that commands can connect to.
    pub unix_sockets: UnixSockets,
    /// For people: why layers are not in force, one entry for each missing layer.
    #[serde(default)]
    pub missing: Vec<String>,
}

/// The UNIX sockets that commands can connect or send to. Socket pairs (stream and seqpacket) work
/// in every mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum UnixSockets {
    /// None: the sandbox runs scripts only, which have no sockets.
    None,
    /// Those that were created in the sandbox, enforced by Landlock (ABI 9).
    Landlock,
    /// Abstract ones, and those on the sandbox's own file systems: the agent makes every connection
    /// (seccomp user notification). No datagram sockets.
    Supervised,
    /// Only socket pairs: this kernel or engine supports neither of the two above.
    Pairs,
    /// Any, including those in a mount.
    Unrestricted,
}

/// How the agent resolves paths beneath a mount. Both ways give the same guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resolver {
    /// One `openat2` with `RESOLVE_BENEATH` and related flags.
    Openat2,
    /// Component by component with `O_NOFOLLOW`, if the kernel has no `openat2`.
    Walk,
}

/// Identifies the directory or file that is mounted, as the agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountIdentity {
    /// Its path in the sandbox.
    pub path: String,
    /// `st_dev`.
    pub dev: u64,
    /// `st_ino`.
    pub ino: u64,
}

/// `run`: runs a script.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The script's source, at most [`MAX_SOURCE_BYTES`](crate::limits::MAX_SOURCE_BYTES).
    pub source: String,
    /// The script's `args`, at most [`MAX_ARGS_BYTES`](crate::limits::MAX_ARGS_BYTES) encoded.
    pub args: Map<String, Value>,
    /// The script's `secrets`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// The timeout, counted from when the agent receives the request.
    pub timeout_ms: u64,
    /// The seed of `math.random`; `None` for another one each time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// The script's time in seconds since 1970, which stands still; `None` for that of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<u64>,
    /// Whether it has `tools`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tools: bool,
}

/// The result of a run. What the script did is data.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunReply {
    /// How it ended.
    pub end: RunEnd,
    /// Log entries were dropped because of `log_bytes` or `log_lines`.
    pub logs_truncated: bool,
    /// Resource usage.
    pub usage: AgentUsage,
}

/// How a run ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnd {
    /// The script returned; its values as JSON.
    Returned(Box<RawValue>),
    /// The script did not return.
    Failed(ScriptError),
}

/// Why a script did not return.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScriptError {
    /// `syntax`, `runtime`, `result_not_json`, a limit, `timeout` or `cancelled`.
    pub kind: ErrorKind,
    /// The message as `pcall` would return it: `script:3: …`.
    pub message: String,
    /// The line of the script that the message refers to.
    #[serde(default)]
    pub line: Option<u32>,
    /// The call stack at the error.
    #[serde(default)]
    pub traceback: Option<String>,
    /// The table that the script raised, as JSON: `error({ code = 7 })`.
    #[serde(default)]
    pub value: Option<Value>,
}

impl ScriptError {
    /// An error of which there is nothing but the message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), line: None, traceback: None, value: None }
    }
}

/// Resource usage of a run, as the agent counted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentUsage {
    /// CPU time of the agent since it started, and of the commands of its scripts that have ended.
    pub cpu_ms: u64,
    /// Peak resident size of the agent since it started; 0 if its kernel does not report it.
    pub peak_memory_bytes: u64,
    /// Bytes written to files in this run.
    pub written_bytes: u64,
}

/// `cancel`: cancels a request that is in progress. That request still gets its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// The id of the request to cancel.
    pub id: u64,
    /// Kill the processes of a command without the [grace](Exec::grace_ms) after SIGTERM.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_once: bool,
}

/// `shutdown`: ends the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shutdown {}

/// The agent's answer to a request that asks for nothing: `configure` (the limits are in force), `dial` (bytes
/// can flow), `watch` (it has ended), `flush` and `shutdown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {}

/// `log`: a log entry, sent while the script runs and before the run's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// The id of the `run`.
    pub request: u64,
    /// `print` or `warn`.
    pub level: LogLevel,
    /// The entry, at most [`MAX_LOG_ENTRY_BYTES`](crate::limits::MAX_LOG_ENTRY_BYTES) encoded.
    pub text: String,
    /// The entry was not UTF-8, and `text` contains U+FFFD.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lossy: bool,
    /// The entry was too long and was cut.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// `case`: a test case of the script has ended. Sent at most
/// [`MAX_TEST_CASES`](crate::limits::MAX_TEST_CASES) times a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseEnd {
    /// The id of the `run`.
    pub request: u64,
    /// The test case.
    pub case: TestCase,
}

/// A test case of a script: `test.case(name, fn)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TestCase {
    /// Its name, at most 256 bytes in JSON.
    pub name: String,
    /// How it ended.
    pub status: TestStatus,
    /// Why it failed or was skipped, at most 1,024 bytes in JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The line of the script where it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// How long it took.
    pub duration_ms: u64,
}

crate::words! {
    /// How a test case ended.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    pub enum TestStatus {
        /// Its function returned.
        Passed = "passed",
        /// Its function raised an error.
        Failed = "failed",
        /// Its function called `test.skip`.
        Skipped = "skipped",
    }
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

/// `touched`: a script is about to change a path. Sent before the change, so that no path is lost if the
/// agent is killed; sent again for the same path only if a later change is of another kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Touched {
    /// The id of the run. It has not been answered yet.
    pub request: u64,
    /// The normalised guest path.
    pub path: WireString,
    /// Whether the path existed before.
    pub existed: bool,
    /// The kind of change.
    pub change: Change,
}

/// `refused`: a rule of the sandbox refused a script access to a path. Sent before the script gets
/// the error, once per path and kind of refusal, and at most
/// [`MAX_REFUSALS`](crate::limits::MAX_REFUSALS) times a run. A refused request is reported in its
/// answer instead.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// The id of the run. It has not been answered yet.
    pub request: u64,
    /// What the script tried to do.
    pub operation: OperationName,
    /// The normalised guest path, or what the script wrote if it has none; at most
    /// [`MAX_PATH_BYTES`](crate::path::MAX_PATH_BYTES) of it.
    pub path: WireString,
    /// The rule: a kind for which [`ErrorKind::is_refusal`] holds.
    pub kind: ErrorKind,
}

/// How a path is about to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It is created or its content is overwritten.
    Write,
    /// It is appended to.
    Append,
    /// It is removed.
    Remove,
    /// No change: the last change that was announced for this path failed. The announcement before
    /// it is valid again.
    Failed,
}

/// `chunk`: a piece of a byte stream, in either direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunk {
    /// The number of the stream, set by the request that opened it; or the number of a tunnel.
    pub stream: u32,
    /// 0 for the first chunk of a stream, then incremented by one.
    pub seq: u64,
    /// At most [`MAX_CHUNK_BYTES`](crate::limits::MAX_CHUNK_BYTES).
    pub data: Base64,
    /// This is the last chunk of the stream.
    pub last: bool,
}

/// `credit`: permission to send more of a stream, in either direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credit {
    /// The stream's number.
    pub stream: u32,
    /// How many more bytes may be sent.
    pub bytes: u64,
}
