//! Processes of a kept sandbox that live on after the request that started them.

use std::ops::RangeInclusive;
use std::str::FromStr;

use sandbox_protocol::limits::{MAX_TERM_BYTES, MAX_TERMINAL_SIZE};
use sandbox_protocol::message::{Pty, SignalName, SignalTarget};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::limits::ByteSize;
use crate::outcome::Exit;
use crate::service::{CommandRequest, RequestSecrets, Time};

/// Fewest and most columns or rows of a terminal.
pub const TERMINAL_SIZES: RangeInclusive<u16> = 1..=MAX_TERMINAL_SIZE;
/// The `TERM` of a terminal whose request has none.
pub const DEFAULT_TERM: &str = "xterm-256color";
/// The most bytes of a [tag](ProcessRequest::tag).
pub const MAX_TAG_BYTES: usize = 128;
/// How much of a process's output is kept, unless something else is asked for.
pub const DEFAULT_SCROLLBACK: ByteSize = ByteSize::b(1 << 20);
/// The least and the most that is kept, in bytes.
pub const SCROLLBACKS: RangeInclusive<u64> = (64 << 10)..=(16 << 20);
/// The most bytes of output in one event of a process.
pub const MAX_OUTPUT_EVENT_BYTES: usize = 32 << 10;

/// How a process ended.
pub type ProcessEnd = Exit;

/// A process to start in a sandbox that [keeps](crate::Processes::Kept) its processes.
#[derive(Debug, Clone)]
pub struct ProcessCommand {
    /// What runs. It has no time limit unless this has one, and its `stdin` is written at once:
    /// [`Stdin::Stream`](crate::Stdin::Stream) is nothing to write, with a stdin that stays open.
    pub command: Command,
    /// Whether its stdin stays open after that, for input that comes later.
    pub open_stdin: bool,
    /// The caller's own word for it.
    pub tag: Option<String>,
    /// How much of its output is kept, within [`SCROLLBACKS`].
    pub scrollback: ByteSize,
}

impl From<Command> for ProcessCommand {
    fn from(command: Command) -> Self {
        Self { command, open_stdin: false, tag: None, scrollback: DEFAULT_SCROLLBACK }
    }
}

/// From which event on a process's events are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFrom {
    /// From the one after that of this number; 0 for all that are kept.
    After(u64),
    /// From the next one that happens.
    Now,
}

impl FromStr for ReadFrom {
    type Err = std::num::ParseIntError;

    /// A number, or `now`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "now" => Ok(Self::Now),
            number => number.parse().map(Self::After),
        }
    }
}

/// What happens when a reader is slower than the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReadMode {
    /// It misses events, and gets an `omitted` event for them.
    #[default]
    Lossy,
    /// The process waits for it, but at most for 30 s: then it is lossy.
    Wait,
}

/// Why a terminal cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TerminalError {
    /// Its size is not within [`TERMINAL_SIZES`].
    #[error("a terminal has 1 to 4096 columns and rows")]
    Size,
    /// Its `TERM` is not one that is passed on.
    #[error("TERM has 1 to 64 letters, digits and characters of `.+_-`")]
    Term,
}

/// Checks a terminal that a command is to have.
///
/// # Errors
///
/// [`TerminalError`].
pub fn check_terminal(pty: &Pty) -> Result<(), TerminalError> {
    TerminalSize { cols: pty.cols, rows: pty.rows }.check()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".+_-".contains(&byte);
    let is_term = (1..=MAX_TERM_BYTES).contains(&pty.term.len()) && pty.term.bytes().all(is_plain);
    if is_term { Ok(()) } else { Err(TerminalError::Term) }
}

/// A process to start. Its output is kept in memory: the last mebibyte of it, unless the server has
/// another bound.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessRequest {
    /// What runs. Its `stdin` is written at once; with `stdin` of the process left out, that is all of it.
    pub command: CommandRequest,
    /// Secrets, each as an environment variable of this process.
    #[serde(skip_serializing)]
    pub secrets: RequestSecrets,
    /// A word of the caller's own, by which the process can be found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether its stdin stays open for input that comes later.
    pub stdin: bool,
    /// A terminal in place of pipes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<PtyRequest>,
    /// Whether stdout and stderr are one stream, in the order of writing.
    pub merge: bool,
    /// After how many milliseconds it is stopped; by default it may run as long as its sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The signal that asks it to end, before what is left of it is killed; by default `TERM`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<SignalName>,
    /// The time from that signal until it is killed, in milliseconds; by default the sandbox's. 0 kills at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_timeout_ms: Option<u64>,
    /// How much of its output is kept, within [`SCROLLBACKS`], if a front end knows: by default what the server keeps.
    #[serde(skip)]
    pub scrollback: Option<ByteSize>,
}

/// A terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PtyRequest {
    /// Its width, 1 to 4096.
    pub cols: u16,
    /// Its height, 1 to 4096.
    pub rows: u16,
    /// `TERM`; by default `xterm-256color`. Letters, digits and `.+_-`, at most 64 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<String>,
}

impl From<PtyRequest> for Pty {
    fn from(PtyRequest { cols, rows, term }: PtyRequest) -> Self {
        Self { cols, rows, term: term.unwrap_or_else(|| DEFAULT_TERM.to_owned()) }
    }
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Its width, 1 to 4096.
    pub cols: u16,
    /// Its height, 1 to 4096.
    pub rows: u16,
}

impl TerminalSize {
    /// Checks that a terminal can have it.
    ///
    /// # Errors
    ///
    /// [`TerminalError::Size`].
    pub fn check(self) -> Result<(), TerminalError> {
        let is_one = |number| TERMINAL_SIZES.contains(&number);
        if is_one(self.cols) && is_one(self.rows) { Ok(()) } else { Err(TerminalError::Size) }
    }
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProcessState {
    /// It runs.
    Running,
    /// It has exited, and processes that it started still run.
    Left,
    /// It has exited, and no process that it started is left.
    Ended,
}

/// A process of a kept sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessView {
    /// Its id: a number from 1, never used twice in a generation.
    pub id: u32,
    /// Its process id in the sandbox.
    pub pid: u32,
    /// The generation of the sandbox that it runs in.
    pub generation: u64,
    /// What runs, for lists: the program and its arguments, or the shell line; lossy, and cut.
    pub command: String,
    /// The caller's own word.
    pub tag: Option<String>,
    /// Its state.
    pub state: ProcessState,
    /// Whether it has a terminal.
    pub pty: bool,
    /// When it was started.
    pub started_at: Time,
    /// When it exited; null while it runs.
    pub exited_at: Option<Time>,
    /// Its exit code; null while it runs, or if a signal ended it.
    pub exit_code: Option<u8>,
    /// The signal that ended it.
    pub signal: Option<u8>,
    /// Why the sandbox ended it, if it did.
    pub stopped: Option<ProcessStop>,
    /// Whether the kernel killed it because the sandbox ran out of memory; null if that is unknown.
    pub out_of_memory: Option<bool>,
    /// Processor time of it and of what it started, in milliseconds; null while it runs.
    pub cpu_ms: Option<u64>,
    /// Peak resident bytes of the largest of these processes; null while it runs.
    pub peak_memory_bytes: Option<u64>,
    /// The number of the first event that is still kept; 0 if there is none.
    pub first_event: u64,
    /// The number of the last event; 0 if there is none.
    pub last_event: u64,
}

/// Why a sandbox ended a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessStop {
    /// Its timeout.
    Timeout,
    /// A caller stopped it.
    Cancelled,
    /// Processes of another command evaded their end, so everything in the sandbox was killed.
    EvasionOfAnother,
}

/// The processes of a sandbox's generation, the latest first: those that run, and those that ended
/// lately.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessList {
    /// The processes.
    pub processes: Vec<ProcessView>,
}

/// A signal to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// Which one.
    pub signal: SignalName,
    /// To which processes.
    #[serde(default)]
    pub to: SignalTarget,
}
