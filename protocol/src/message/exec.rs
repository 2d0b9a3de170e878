//! Commands: the `exec` request, and its answer.
//!
//! The command's output is sent on the two streams that the request names, its input on a third.
//! The answer is sent when the command has exited, every process that it started is dead, and the
//! last chunk of both output streams has been sent.

use serde::{Deserialize, Serialize};

use super::secret::Secret;
use crate::WireString;

/// `exec`: runs a command. Several may run at once.
///
/// An error means that the command never ran: `command_not_found`, `not_executable`, `not_found`
/// and similar for the working directory, `busy` if no process can be started, `invalid_request` in
/// a sandbox that runs scripts only. In that case no stream has a chunk.
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
    /// granted only for what the command reads.
    pub stdin: Option<u32>,
    /// The stream for its stdout.
    pub stdout: u32,
    /// The stream for its stderr.
    pub stderr: u32,
    /// The timeout, counted from when the agent receives the request.
    pub timeout_ms: u64,
    /// How long its processes may go on after SIGTERM, which they get at the timeout and at the first
    /// `cancel`; 0 if they are killed at once.
    pub grace_ms: u64,
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
    #[must_use]
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

/// A sign that something in the sandbox stood in a command's way, as the agent saw it when the command
/// had ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// `/tmp` is full.
    TmpFull,
    /// `/dev/shm` is full.
    ShmFull,
    /// The io dir, which is in memory, is full.
    IoFull,
    /// It says that a file system is full.
    NoSpace,
    /// It says that a file system is read-only.
    ReadOnly,
    /// It says that a file is too large.
    FileTooLarge,
    /// It says that a name was not resolved, or that there is no route.
    NoNetwork,
}

impl Sign {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::TmpFull,
        Self::ShmFull,
        Self::IoFull,
        Self::NoSpace,
        Self::ReadOnly,
        Self::FileTooLarge,
        Self::NoNetwork,
    ];
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
    /// stdout and stderr together reached `limits.output_bytes`, and there was more.
    OutputLimit,
}
