//! Programs: the request that runs one, and its answer.
//!
//! What a program writes travels on the two streams that the request names, what it reads on a
//! third. The answer comes when the program has ended, everything that it started is dead, and both
//! of its streams have had their last chunk.

use serde::{Deserialize, Serialize};

use crate::Base64;
use crate::path::{to_wire, written};

/// `exec`: a program. Several may run at once.
///
/// An error answers that it never ran: `command_not_found`, `not_executable`, `not_found` and its
/// like for the working directory, `busy` where no process can be started, `invalid_request` in a
/// sandbox that runs scripts only. Then no stream has a chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// What to run. Together with `env` at most
    /// [`MAX_COMMAND_BYTES`](crate::limits::MAX_COMMAND_BYTES).
    pub command: Command,
    /// Where to run it: any directory of the sandbox, written as a script writes a path; null for
    /// the working directory of the sandbox.
    pub cwd: Option<Word>,
    /// Set beside the variables of the image, or instead of those of the same name. Of equal names
    /// the last one counts; `HOME` is the sandbox's own.
    pub env: Vec<Variable>,
    /// The stream for its input, from the controller; null for none, which is an end of file at once.
    /// What the program does not read is never asked for.
    pub stdin: Option<u32>,
    /// The stream for its output.
    pub stdout: u32,
    /// The stream for its error output.
    pub stderr: u32,
    /// The deadline, counted from the moment the agent takes the request.
    pub timeout_ms: u64,
}

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A program and its arguments, with no shell anywhere.
    Program(Program),
    /// A line for the image's `/bin/sh -c`.
    Shell(Word),
}

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// A path, where it has a slash; otherwise a name to look for along `PATH`.
    pub program: Word,
    /// The arguments after the program's name.
    pub args: Vec<Word>,
}

/// A variable of the environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    /// Its name: not empty, without `=`.
    pub name: Word,
    /// Its value.
    pub value: Word,
}

/// A string of the system's: any bytes but NUL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Word {
    /// It, lossy where it is not UTF-8.
    pub text: String,
    /// Its bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b64: Option<Base64>,
}

impl Word {
    /// The word of those bytes.
    #[must_use]
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        let (text, b64) = to_wire(bytes.as_ref());
        Self { text, b64 }
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        written(&self.text, self.b64.as_ref())
    }
}

impl Exec {
    /// Every word of it.
    pub fn words(&self) -> impl Iterator<Item = &Word> {
        let (first, rest): (&Word, &[Word]) = match &self.command {
            Command::Program(Program { program, args }) => (program, args),
            Command::Shell(line) => (line, &[]),
        };
        let env = self.env.iter().flat_map(|variable| [&variable.name, &variable.value]);
        std::iter::once(first).chain(rest).chain(env).chain(&self.cwd)
    }

    /// What [`MAX_COMMAND_BYTES`](crate::limits::MAX_COMMAND_BYTES) bounds: every word's bytes, and
    /// eight more for each, as the kernel counts them.
    #[must_use]
    pub fn command_bytes(&self) -> usize {
        self.words().map(|word| word.as_bytes().len() + 8).sum()
    }
}

/// The agent's answer to `exec`: the program ran. How it went is data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecReply {
    /// How the program itself ended.
    pub end: ExecEnd,
    /// Why the agent killed it; null where it ended by itself, or somebody else killed it.
    pub stopped: Option<ExecStop>,
    /// Bytes of its output that were sent.
    pub stdout_bytes: u64,
    /// Bytes of its error output that were sent.
    pub stderr_bytes: u64,
    /// Processor time of the program, and of those that it started and waited for.
    pub cpu_ms: u64,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecEnd {
    /// By itself, with this code.
    Exited(u8),
    /// By this signal.
    Signaled(u8),
}

/// Why the agent killed a program, and everything that it had started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecStop {
    /// The deadline.
    Timeout,
    /// `cancel`, or the end of the session.
    Cancelled,
    /// Both streams together have had `limits.output_bytes`, and there was more.
    OutputLimit,
}
