//! What runs in a sandbox, a script or a command, and what a request says is to run. Pure.

use std::time::Duration;

use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{MAX_COMMAND_BYTES, MAX_SOURCE_BYTES};

use crate::command::{Command, CommandLine, Stdin};
use crate::execution::ExecutionKind;
use crate::limits::{ByteSize, Limits};
use crate::process::{
    DEFAULT_SCROLLBACK, MAX_TAG_BYTES, ProcessCommand, ProcessRequest, check_terminal,
};
use crate::secrets::Secrets;
use crate::service::{CommandRequest, ExecutionRequest, RequestSecrets};
use crate::spec::Script;

/// What runs in a sandbox.
#[derive(Debug, Clone)]
pub enum Workload {
    /// A script.
    Script(Script),
    /// A command.
    Command(Command),
}

impl From<Script> for Workload {
    fn from(script: Script) -> Self {
        Self::Script(script)
    }
}

impl From<Command> for Workload {
    fn from(command: Command) -> Self {
        Self::Command(command)
    }
}

/// A member of a request that is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct WorkloadError {
    /// The member's path: `command.args`.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
    /// The next step, if there is one.
    pub hint: Option<String>,
    /// Its kind.
    pub kind: ErrorKind,
}

impl WorkloadError {
    fn invalid(field: &'static str, problem: impl Into<String>) -> Self {
        let kind = ErrorKind::InvalidRequest;
        Self { field, problem: problem.into(), hint: None, kind }
    }

    fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    fn with_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }
}

impl Workload {
    /// What the request's members `script`, `command`, `stop_signal`, `args`, `seed`, `now` and `secrets`
    /// say; the others are of the sandbox. A command's stdin has at most this many bytes.
    ///
    /// # Errors
    ///
    /// [`WorkloadError`] for the first member that is not usable.
    pub fn of(request: ExecutionRequest, max_stdin: ByteSize) -> Result<Self, WorkloadError> {
        let ExecutionRequest { script, command, stop_signal, args, seed, now, secrets, .. } =
            request;
        let mut workload = match (script, command) {
            (Some(_), None) if stop_signal.is_some() => {
                return Err(WorkloadError::invalid("stop_signal", "it is that of a command"));
            }
            (Some(source), None) => {
                Script::check_args(&args)
                    .map_err(|error| WorkloadError::invalid("args", error.to_string()))?;
                Self::Script(Script::new(source.0).args(args).seed(seed).now(now))
            }
            (None, Some(_)) if !args.is_empty() || seed.is_some() || now.is_some() => {
                let problem = "`args`, `seed` and `now` are those of a script";
                return Err(WorkloadError::invalid("command", problem)
                    .with_hint("arguments of a program are `command.args`"));
            }
            (None, Some(command)) => {
                Self::Command(Command { stop_signal, ..Command::try_from(command)? })
            }
            _ => {
                let problem = "give one of `script` and `command`";
                return Err(WorkloadError::invalid("script", problem));
            }
        };
        let secrets = secrets_of(secrets)?;
        match &mut workload {
            Self::Script(script) => {
                script.secrets = secrets;
                if script.source.len() > MAX_SOURCE_BYTES {
                    let problem = format!("longer than {MAX_SOURCE_BYTES} bytes");
                    let refused = WorkloadError::invalid("script", problem);
                    return Err(refused.with_kind(ErrorKind::SourceTooLarge));
                }
            }
            Self::Command(command) => {
                command.secrets = secrets;
                check_command(command, max_stdin)?;
            }
        }
        Ok(workload)
    }

    /// The same in a sandbox that is there: only the time limit may differ from its own limits, and the
    /// stop timeout of a command.
    ///
    /// # Errors
    ///
    /// [`WorkloadError`], also for a member that is set when a sandbox is created.
    pub fn in_sandbox(
        request: ExecutionRequest,
        limits: &Limits,
        of_sandbox: &Limits,
        max_stdin: ByteSize,
    ) -> Result<Self, WorkloadError> {
        let fixed = |field, is_given: bool| match is_given {
            true => Err(WorkloadError::invalid(field, "the sandbox has its own")
                .with_hint("it is set when a sandbox is created")),
            false => Ok(()),
        };
        fixed("image", request.image.is_some())?;
        fixed("inputs", !request.inputs.is_empty())?;
        fixed("io", !crate::is_default(&request.io))?;
        fixed("network", !crate::is_default(&request.network))?;
        let mut others = Limits { timeout: of_sandbox.timeout, ..*limits };
        if request.command.is_some() {
            others.stop_timeout = of_sandbox.stop_timeout;
        }
        fixed("limits", others != *of_sandbox)?;
        let own = |time: Duration, of_sandbox: Duration| (time != of_sandbox).then_some(time);
        let timeout = own(limits.timeout, of_sandbox.timeout);
        let mut workload = Self::of(request, max_stdin)?;
        match &mut workload {
            Self::Script(script) => script.timeout = timeout,
            Self::Command(command) => {
                command.timeout = timeout;
                command.stop_timeout = own(limits.stop_timeout, of_sandbox.stop_timeout);
            }
        }
        Ok(workload)
    }

    /// Its time limit, if it is not that of its sandbox.
    pub const fn timeout(&self) -> Option<Duration> {
        match self {
            Self::Script(script) => script.timeout,
            Self::Command(command) => command.timeout,
        }
    }

    /// Its secrets.
    pub const fn secrets(&self) -> &Secrets {
        match self {
            Self::Script(script) => &script.secrets,
            Self::Command(command) => &command.secrets,
        }
    }

    /// Which of the two.
    pub const fn kind(&self) -> ExecutionKind {
        match self {
            Self::Script(_) => ExecutionKind::Script,
            Self::Command(_) => ExecutionKind::Command,
        }
    }
}

impl ProcessCommand {
    /// What the request says. Its stdin has at most this many bytes.
    ///
    /// # Errors
    ///
    /// [`WorkloadError`] for the first member that is not usable.
    pub fn of(request: ProcessRequest, max_stdin: ByteSize) -> Result<Self, WorkloadError> {
        let ProcessRequest {
            command,
            secrets,
            tag,
            stdin,
            pty,
            merge,
            timeout_ms,
            stop_signal,
            stop_timeout_ms,
            scrollback,
        } = request;
        let mut command = Command {
            secrets: secrets_of(secrets)?,
            pty: pty.map(Into::into),
            merge,
            timeout: timeout_ms.map(Duration::from_millis),
            stop_signal,
            stop_timeout: stop_timeout_ms.map(Duration::from_millis),
            ..Command::try_from(command)?
        };
        check_command(&command, max_stdin)?;
        if command.timeout == Some(Duration::ZERO) {
            return Err(WorkloadError::invalid("timeout_ms", "it is 0"));
        }
        if let Some(error) = command.pty.as_ref().and_then(|pty| check_terminal(pty).err()) {
            return Err(WorkloadError::invalid("pty", error.to_string()));
        }
        if tag.as_ref().is_some_and(|tag| tag.len() > MAX_TAG_BYTES) {
            return Err(WorkloadError::invalid("tag", format!("over {MAX_TAG_BYTES} bytes")));
        }
        if stdin && command.stdin == Stdin::Null {
            command.stdin = Stdin::Stream;
        }
        let scrollback = scrollback.unwrap_or(DEFAULT_SCROLLBACK);
        Ok(Self { command, open_stdin: stdin, tag, scrollback })
    }
}

impl TryFrom<CommandRequest> for Command {
    type Error = WorkloadError;

    fn try_from(request: CommandRequest) -> Result<Self, WorkloadError> {
        let CommandRequest { program, args, shell, env, cwd, stdin } = request;
        let command = match (program, shell) {
            (Some(program), None) if !program.0.is_empty() => {
                Self::new(program.0).args(args.into_iter().map(|arg| arg.0))
            }
            (None, Some(line)) if args.is_empty() => Self::shell(line.0),
            (None, Some(_)) => {
                return Err(WorkloadError::invalid(
                    "command.args",
                    "a shell line has no arguments",
                ));
            }
            _ => {
                let problem = "give one of `program` and `shell`";
                return Err(WorkloadError::invalid("command.program", problem));
            }
        };
        let command = env
            .into_iter()
            .fold(command, |command, (name, value)| command.env(name.into_bytes(), value.0));
        let command = match cwd {
            Some(cwd) => command.cwd(cwd.0),
            None => command,
        };
        Ok(match stdin {
            Some(stdin) => command.stdin(Stdin::Bytes(stdin.0)),
            None => command,
        })
    }
}

fn secrets_of(given: RequestSecrets) -> Result<Secrets, WorkloadError> {
    let mut secrets = Secrets::new();
    for (name, value) in given.0 {
        secrets.add(name, value).map_err(|error| {
            WorkloadError::invalid("secrets", error.to_string()).with_hint(error.hint())
        })?;
    }
    Ok(secrets)
}

fn check_command(command: &Command, max_stdin: ByteSize) -> Result<(), WorkloadError> {
    let invalid = |problem: String| Err(WorkloadError::invalid("command", problem));
    if let Stdin::Bytes(bytes) = &command.stdin
        && bytes.len() as u64 > max_stdin.as_u64()
    {
        let problem = format!("more than {}", max_stdin);
        return Err(WorkloadError::invalid("command.stdin", problem)
            .with_hint("larger data is an input")
            .with_kind(ErrorKind::TooLarge));
    }
    let words = match &command.what {
        CommandLine::Program { program, args } => {
            std::iter::once(program).chain(args).collect::<Vec<_>>()
        }
        CommandLine::Shell(line) => vec![line],
    };
    let env = command.env.iter().flat_map(|(name, value)| [name, value]);
    let all: Vec<&Vec<u8>> = words.into_iter().chain(env).chain(&command.cwd).collect();
    if all.iter().any(|word| word.contains(&0)) {
        return invalid("one of its words has a NUL byte".to_owned());
    }
    // Each word costs eight more.
    if all.iter().map(|word| word.len() + 8).sum::<usize>() > MAX_COMMAND_BYTES {
        return invalid(format!(
            "its words and its environment are longer than {MAX_COMMAND_BYTES} bytes"
        ));
    }
    let is_name = |name: &[u8]| !name.is_empty() && !name.contains(&b'=');
    if let Some((name, _)) = command.env.iter().find(|(name, _)| !is_name(name)) {
        let name = String::from_utf8_lossy(name);
        return invalid(format!("'{name}' is not the name of a variable"));
    }
    let is_in_env = |name: &str| command.env.iter().any(|(its, _)| its == name.as_bytes());
    match command.secrets.iter().find(|(name, _)| is_in_env(name)) {
        Some((name, _)) => invalid(format!("{name} is a variable of its environment and a secret")),
        None => Ok(()),
    }
}
