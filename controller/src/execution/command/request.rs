//! A command as the caller requests it: arguments, working directory, environment, stdin.

use std::time::Duration;

use sandbox_api::millis;
use sandbox_protocol::WireString;
use sandbox_protocol::limits::MAX_COMMAND_BYTES;
use sandbox_protocol::message::{self, Variable};

use crate::error::Error;
use crate::session::ConsoleStreams;

/// The maximum number of bytes of each output stream that [`Sandbox::exec`](crate::Sandbox::exec)
/// keeps, unless the command sets another.
pub const DEFAULT_COLLECTED_BYTES: usize = 1_000_000;

/// A command to run in a sandbox.
///
/// All of its strings are bytes, without NUL.
#[derive(Debug, Clone)]
pub struct Command {
    what: What,
    cwd: Option<Vec<u8>>,
    env: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) stdin: Stdin,
    pub(super) timeout: Option<Duration>,
    pub(super) collected: usize,
}

#[derive(Debug, Clone)]
enum What {
    Program { program: Vec<u8>, args: Vec<Vec<u8>> },
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
    /// The bytes written to [`Execution::stdin`](super::Execution::stdin), until that is dropped.
    Stream,
}

/// The program that runs a shell line.
const SHELL: &[u8] = b"/bin/sh";

impl Command {
    /// A program: a path in the sandbox if it contains a slash, otherwise a name to search in the
    /// `PATH` there. No shell is involved.
    pub fn new(program: impl Into<Vec<u8>>) -> Self {
        Self::of(What::Program { program: program.into(), args: Vec::new() })
    }

    /// A line for `/bin/sh -c` of the image.
    pub fn shell(line: impl Into<Vec<u8>>) -> Self {
        Self::of(What::Shell(line.into()))
    }

    const fn of(what: What) -> Self {
        Self {
            what,
            cwd: None,
            env: Vec::new(),
            stdin: Stdin::Null,
            timeout: None,
            collected: DEFAULT_COLLECTED_BYTES,
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
        if let What::Program { args, .. } = &mut self.what {
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

    /// Sets the stdin.
    #[must_use]
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    /// Sets the time limit, in place of the sandbox's
    /// [`Limits::timeout`](sandbox_api::Limits::timeout) and under the same ceiling.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how many bytes of each output stream the result keeps, from the beginning. More output
    /// does not end the command; [`Limits::output_bytes`](sandbox_api::Limits::output_bytes) is the
    /// limit that does.
    #[must_use]
    pub fn output_limit(mut self, bytes: usize) -> Self {
        self.collected = bytes;
        self
    }

    /// The program to execute.
    pub(super) fn program(&self) -> &[u8] {
        match &self.what {
            What::Program { program, .. } => program,
            What::Shell(_) => SHELL,
        }
    }

    /// The request, and the source of the input. `workdir` is the default working directory.
    pub(super) fn request(
        self,
        workdir: Option<&str>,
        timeout: Duration,
    ) -> Result<impl FnOnce(ConsoleStreams) -> message::Exec + use<>, Error> {
        let refuse = |reason: String| Err(Error::Command { reason });
        let command = match self.what {
            What::Program { program, args } => {
                let args = args.iter().map(WireString::new).collect();
                message::Command::Program(message::Program {
                    program: WireString::new(program),
                    args,
                })
            }
            What::Shell(line) => message::Command::Shell(WireString::new(line)),
        };
        let cwd = self.cwd.as_deref().or(workdir.map(str::as_bytes)).map(WireString::new);
        let env: Vec<Variable> = self
            .env
            .iter()
            .map(|(name, value)| Variable {
                name: WireString::new(name),
                value: WireString::new(value),
            })
            .collect();
        if let Some(variable) = env.iter().find(|variable| {
            let name = variable.name.as_bytes();
            name.is_empty() || name.contains(&b'=')
        }) {
            return refuse(format!(
                "'{}' is not the name of a variable",
                variable.name.to_string_lossy()
            ));
        }
        let timeout_ms = millis(timeout);
        let request =
            message::Exec { command, cwd, env, stdin: None, stdout: 0, stderr: 0, timeout_ms };
        if request.command_bytes() > MAX_COMMAND_BYTES {
            return refuse(format!(
                "its words and its environment are longer than {MAX_COMMAND_BYTES} bytes, each \
                 word counted with eight more"
            ));
        }
        if request.words().any(|word| word.as_bytes().contains(&0)) {
            return refuse("one of its words has a NUL byte".to_owned());
        }
        Ok(move |ConsoleStreams { stdin, stdout, stderr }| message::Exec {
            stdin,
            stdout,
            stderr,
            ..request
        })
    }
}
