//! A command as the caller requests it: arguments, working directory, environment, stdin. Not
//! serialized: [`service::CommandRequest`](crate::service::CommandRequest) is its form on the wire.

use std::time::Duration;

use sandbox_protocol::message::{Pty, SignalName};

use crate::secrets::Secrets;
use crate::setters::setters;

/// The maximum number of bytes of each output stream that `Sandbox::exec`
/// keeps, unless the command sets another.
pub const DEFAULT_COLLECTED_BYTES: usize = 1_000_000;

/// A command to run in a sandbox.
///
/// All of its strings are bytes, without NUL.
#[derive(Debug, Clone)]
pub struct Command {
    /// What runs.
    pub what: CommandLine,
    /// The working directory.
    pub cwd: Option<Vec<u8>>,
    /// Environment variables.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Secrets, each as an environment variable of this command alone.
    pub secrets: Secrets,
    /// The stdin.
    pub stdin: Stdin,
    /// The time limit, in place of the sandbox's.
    pub timeout: Option<Duration>,
    /// How many bytes of each output stream the result keeps.
    pub output_limit: usize,
    /// A terminal in place of pipes: its output is stdout.
    pub pty: Option<Pty>,
    /// Whether stdout and stderr are one stream, in the order of writing.
    pub merge: bool,
    /// The signal that asks it to end, in place of SIGTERM.
    pub stop_signal: Option<SignalName>,
    /// The time after that signal until what is left is killed, in place of the sandbox's.
    pub stop_timeout: Option<Duration>,
}

/// What a [`Command`] runs.
#[derive(Debug, Clone)]
pub enum CommandLine {
    /// A program and its arguments.
    Program {
        /// A path in the sandbox, or a name to search in the `PATH` there.
        program: Vec<u8>,
        /// Its arguments, without its name.
        args: Vec<Vec<u8>>,
    },
    /// A line for the shell.
    Shell(Vec<u8>),
}

/// The stdin of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Stdin {
    /// Nothing: `/dev/null`.
    #[default]
    Null,
    /// These bytes.
    Bytes(Vec<u8>),
    /// The bytes written to `Execution::stdin`, until that is dropped.
    Stream,
}

/// The program that runs a shell line.
const SHELL: &[u8] = b"/bin/sh";

impl Command {
    /// A program: a path in the sandbox if it contains a slash, otherwise a name to search in the
    /// `PATH` there. No shell is involved.
    pub fn new(program: impl Into<Vec<u8>>) -> Self {
        Self::of(CommandLine::Program { program: program.into(), args: Vec::new() })
    }

    /// A line for `/bin/sh -c` of the image.
    pub fn shell(line: impl Into<Vec<u8>>) -> Self {
        Self::of(CommandLine::Shell(line.into()))
    }

    const fn of(what: CommandLine) -> Self {
        Self {
            what,
            cwd: None,
            env: Vec::new(),
            secrets: Secrets::new(),
            stdin: Stdin::Null,
            timeout: None,
            output_limit: DEFAULT_COLLECTED_BYTES,
            pty: None,
            merge: false,
            stop_signal: None,
            stop_timeout: None,
        }
    }

    /// Adds an argument. Ignored for a shell line.
    #[must_use]
    pub fn arg(self, arg: impl Into<Vec<u8>>) -> Self {
        self.args([arg])
    }

    /// Adds arguments. Ignored for a shell line.
    #[must_use]
    pub fn args<A: Into<Vec<u8>>>(mut self, more: impl IntoIterator<Item = A>) -> Self {
        if let CommandLine::Program { args, .. } = &mut self.what {
            args.extend(more.into_iter().map(Into::into));
        }
        self
    }

    /// Sets the working directory: any directory in the sandbox, in the path syntax of scripts. The
    /// default is the sandbox's working directory; without an io dir, that of the image.
    #[must_use]
    pub fn cwd(mut self, cwd: impl Into<Vec<u8>>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Sets an environment variable, in addition to those of the image or overriding one of them.
    /// `HOME` is always the sandbox's.
    #[must_use]
    pub fn env(mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Makes stdout and stderr one stream, in the order of writing.
    #[must_use]
    pub const fn merged(mut self) -> Self {
        self.merge = true;
        self
    }

    /// The program to execute.
    pub fn program(&self) -> &[u8] {
        match &self.what {
            CommandLine::Program { program, .. } => program,
            CommandLine::Shell(_) => SHELL,
        }
    }
}

setters! {
    Command {
        /// Sets the secrets, each of which is an environment variable of this command, and of the
        /// processes that it starts. A launch refuses a name that [`env`](Self::env) has too.
        secrets: Secrets,
        /// Sets the stdin.
        stdin: Stdin,
        /// Sets how many bytes of each output stream the result keeps, from the beginning. More output
        /// does not end the command; [`Limits::output_bytes`](crate::Limits::output_bytes) is the
        /// limit that does.
        output_limit: usize,
    }
    some {
        /// Sets the time limit, in place of the sandbox's
        /// [`Limits::timeout`](crate::Limits::timeout) and under the same ceiling.
        timeout: Duration,
        /// Gives it a terminal in place of pipes.
        pty: Pty,
        /// Sets the signal that asks it to end, in place of SIGTERM.
        stop_signal: SignalName,
        /// Sets the time after that signal until what is left is killed, in place of the sandbox's
        /// [`Limits::stop_timeout`](crate::Limits::stop_timeout) and under the same ceiling; 0 kills at once.
        stop_timeout: Duration,
    }
}
