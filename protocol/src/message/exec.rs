//! Commands: the `exec` request, its answer, and the control requests for its processes.
//!
//! The command's output is sent on the streams that the request names, its input comes on another.
//! A *kept* command differs in when it is over, and in the two notifications that say what has become
//! of it meanwhile:
//!
//! ```text
//!                            kept: started          kept: exited
//! exec ──> executed ──────────────┴── chunks ──────────┴── chunks ──> last chunks ──> answer
//!   └────> error: no notification, no chunk, and the streams are free again
//! ```
//!
//! - The answer to a command that is not kept is sent when its program has exited, every process that
//!   it started has been killed, and what is in its pipes has been sent.
//! - The answer to a kept one is sent when its program has exited, no process that it started is left,
//!   and what is in its pipes has been sent. What the program leaves behind may print for as long as it
//!   runs; that is sent under the same credit.
//! - [`Started`] is sent exactly once, before the first chunk and before `exited`; [`Exited`] exactly
//!   once, before the answer, whose `end` is the same. Neither is sent if the answer is an error that
//!   came before (the command never ran), or for a command that is not kept.
//! - `exited` is sent after what was in the command's outputs when its program ended has been sent. So
//!   who reads until `exited` has all that the program itself printed. It therefore waits for credit,
//!   but not after a `cancel`, nor at the timeout.
//! - After `exited`, and before the answer, each output stream gets its last chunk, which is empty: also
//!   a stream whose pipe was closed long before. Those of a kept command get it together, as soon as all
//!   processes have closed both pipes: nothing that is left can print. The answer frees the numbers of
//!   all streams. Credit and input that arrive later are ignored.
//! - If the kernel does not end what was killed, the answer is the error `internal`: also after
//!   `started`, and without a last chunk.
//! - The order of chunks is that in which the agent read. With two pipes this need not be the order of
//!   writing; with a terminal, or if stderr is stdout's pipe, it is.
//!
//! `cancel` stops a command, also one of which only left processes run: its processes get SIGTERM, with
//! a terminal SIGHUP too, and SIGCONT; those that run on after the grace get SIGKILL. A `cancel` with
//! `at_once`, the first or a later one, kills at once. The end of the session is a `cancel` at once.
//! `stopped` of the answer says so, if anything was left to stop.

use serde::{Deserialize, Serialize};

use super::secret::Secret;
use crate::WireString;

/// `exec`: runs a command. Several may run at once, at most
/// [`MAX_COMMANDS`](crate::limits::MAX_COMMANDS).
///
/// An error means that the command never ran: `command_not_found`, `not_executable`, `not_found`
/// and similar for the working directory, `busy` if no process can be started, or no terminal made, or
/// if there are too many commands or terminals, `invalid_request` in
/// a sandbox that runs scripts only, or if it is kept and this kernel cannot distinguish the processes of
/// commands. In that case no stream has a chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// The command. Together with `env` at most
    /// [`MAX_COMMAND_BYTES`](crate::limits::MAX_COMMAND_BYTES).
    pub command: Command,
    /// The working directory: any directory of the sandbox, written as a script writes a path; null
    /// for the sandbox's working directory.
    pub cwd: Option<WireString>,
    /// Added to the image's variables; replaces those of the same name. If a name occurs twice, the
    /// last one counts. `HOME` is always the sandbox's own.
    pub env: Vec<Variable>,
    /// Secrets, each as a variable of this command alone; they replace those of `env`. They do not
    /// count towards the bytes of the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// The stream for its stdin, from the controller; null for an immediate end of file. Credit is
    /// granted only for what the command reads. In a terminal it is what is typed: null if nothing is,
    /// and its last chunk has no effect on the terminal, which stays open (an end of file is typed, as
    /// Ctrl-D, by who sends the input).
    pub stdin: Option<u32>,
    /// The stream for its stdout.
    pub stdout: u32,
    /// The stream for its stderr; null if it is stdout's pipe too, or with a terminal.
    pub stderr: Option<u32>,
    /// A terminal in place of pipes: `stdin` is what is typed, `stdout` what it shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    /// It lives on with what it leaves behind, until it ends by itself, is cancelled, or the session ends.
    /// [`Started`] and [`Exited`] are sent for it, and its answer comes when none of its processes is
    /// left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// The timeout, counted from when the agent receives the request; null for none, if it is kept.
    /// That of a kept command also ends what it has left behind.
    pub timeout_ms: Option<u64>,
    /// How long its processes may go on after SIGTERM, which they get at the timeout and at the first
    /// `cancel`; 0 if they are killed at once.
    pub grace_ms: u64,
    /// The signal that they get in place of SIGTERM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<SignalName>,
}

/// A terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pty {
    /// Its width, 1 to 4096.
    pub cols: u16,
    /// Its height, 1 to 4096.
    pub rows: u16,
    /// `TERM`, unless `env` has one: letters, digits and `.+_-`, at most
    /// [`MAX_TERM_BYTES`](crate::limits::MAX_TERM_BYTES).
    pub term: String,
}

/// `started`: the program of a kept command has been executed, or was killed before that. Sent once,
/// before its first chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Started {
    /// The id of the `exec`.
    pub request: u64,
    /// Its process id in the sandbox.
    pub pid: u32,
}

/// `exited`: the program of a kept command has ended, and what it printed has been sent. What it
/// started may still run, and print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exited {
    /// The id of the `exec`.
    pub request: u64,
    /// How it ended. The answer says the same.
    pub end: ExecEnd,
    /// Why the agent ended it; null if it exited by itself, or was killed by anything else.
    pub stopped: Option<ExecStop>,
}

/// `signal`: sends a signal to processes of a command, kept or not. Answered at once, outside of the
/// requests in flight; before `started` and after the answer there is none to be found. It never
/// reaches a process that the command did not start. A process that is being forked at that moment may
/// be missed: only `cancel` ends all of them for certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signal {
    /// The id of the `exec`.
    pub id: u64,
    /// Which one.
    pub signal: SignalName,
    /// To which of its processes.
    pub to: SignalTarget,
}

/// The agent's answer to `cancel`, `signal`, `resize` and `call_result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlReply {
    /// Whether there was such a request in progress, such a process, terminal or call.
    pub found: bool,
}

crate::words! {
    /// The signals that can be sent to a command.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    pub enum SignalName {
        /// The terminal is gone.
        Hup = "HUP",
        /// As Ctrl-C types it.
        Int = "INT",
        /// As Ctrl-\\ types it.
        Quit = "QUIT",
        /// Cannot be caught.
        Kill = "KILL",
        /// The first one for programs' own use.
        Usr1 = "USR1",
        /// The second one for programs' own use.
        Usr2 = "USR2",
        /// Asks a program to end.
        Term = "TERM",
        /// Goes on after `STOP` or `TSTP`.
        Cont = "CONT",
        /// Stops until `CONT`; cannot be caught.
        Stop = "STOP",
        /// As Ctrl-Z types it.
        Tstp = "TSTP",
        /// The size of the terminal has changed.
        Winch = "WINCH",
    }
}

crate::words! {
    /// To which processes of a command a signal is sent.
    #[derive(Default)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    pub enum SignalTarget {
        /// The program itself.
        Process = "process",
        /// Its process group.
        #[default]
        Group = "group",
        /// The foreground process group of its terminal.
        Foreground = "foreground",
        /// Everything that it has started.
        Tree = "tree",
    }
}

/// `resize`: sets the size of a command's terminal; its foreground process group gets SIGWINCH.
/// Answered like `signal`, but a terminal is there from the request on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// The id of the `exec`.
    pub id: u64,
    /// Its width, 1 to 4096.
    pub cols: u16,
    /// Its height, 1 to 4096.
    pub rows: u16,
}

/// The command to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A program and its arguments, with no shell anywhere.
    Program(Program),
    /// A command line for the image's `/bin/sh -c`.
    Shell(WireString),
}

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// A path if it contains a slash; otherwise a name to look up in `PATH`.
    pub program: WireString,
    /// The arguments after the program's name.
    pub args: Vec<WireString>,
}

/// An environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    /// Its name: not empty, without `=`.
    pub name: WireString,
    /// Its value.
    pub value: WireString,
}

impl Exec {
    /// Every string of it.
    pub fn words(&self) -> impl Iterator<Item = &WireString> {
        let (first, rest): (&WireString, &[WireString]) = match &self.command {
            Command::Program(Program { program, args }) => (program, args),
            Command::Shell(line) => (line, &[]),
        };
        let env = self.env.iter().flat_map(|variable| [&variable.name, &variable.value]);
        std::iter::once(first).chain(rest).chain(env).chain(&self.cwd)
    }

    /// The size that [`MAX_COMMAND_BYTES`](crate::limits::MAX_COMMAND_BYTES) limits: the bytes of
    /// every string, and eight more for each, as the kernel counts them.
    pub fn command_bytes(&self) -> usize {
        self.words().map(|word| word.as_bytes().len() + 8).sum()
    }
}

/// The agent's answer to `exec`: the command ran. Its result is data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecReply {
    /// How the command itself ended.
    pub end: ExecEnd,
    /// Why the agent ended it; null if it exited by itself, or was killed by anything else.
    pub stopped: Option<ExecStop>,
    /// Bytes of stdout that were sent.
    pub stdout_bytes: u64,
    /// Bytes of stderr that were sent.
    pub stderr_bytes: u64,
    /// CPU time of the command and all processes that it started, but of none whose parent ignores the exits of
    /// its children: the kernel reaps that.
    pub cpu_ms: u64,
    /// Peak resident size of the largest of these processes; 0 if the kernel does not report it.
    pub peak_memory_bytes: u64,
    /// Signs that something in the sandbox stood in its way; none if it exited with 0.
    pub signs: Vec<Sign>,
}

crate::words! {
    /// A sign that something in the sandbox stood in a command's way, as the agent saw it when the command
    /// had ended.
    pub enum Sign {
        /// `/tmp` is full.
        TmpFull = "tmp_full",
        /// `/dev/shm` is full.
        ShmFull = "shm_full",
        /// The io dir, which is in memory, is full.
        IoFull = "io_full",
        /// It says that a file system is full.
        NoSpace = "no_space",
        /// It says that a file system is read-only.
        ReadOnly = "read_only",
        /// It says that a file is too large.
        FileTooLarge = "file_too_large",
        /// It says that a name was not resolved, or that there is no route.
        NoNetwork = "no_network",
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecEnd {
    /// It exited with this code.
    Exited(u8),
    /// It was killed by this signal.
    Signaled(u8),
}

/// Why the agent ended a command and every process that it had started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecStop {
    /// The timeout.
    Timeout,
    /// `cancel`, or the end of the session.
    Cancelled,
    /// stdout and stderr together reached `limits.output_bytes`, and there was more. Not of a kept
    /// command, which has no such limit.
    OutputLimit,
    /// Another command's processes evaded their end, so everything in the sandbox was killed.
    EvasionOfAnother,
}
