//! The request for a command.

use std::time::Duration;

use sandbox_api::process::check_terminal;
use sandbox_api::{Command, CommandLine, millis};
use sandbox_protocol::WireString;
use sandbox_protocol::limits::MAX_COMMAND_BYTES;
use sandbox_protocol::message::{self, Variable};

use crate::error::Error;

/// How long a command may run.
#[derive(Debug, Clone, Copy)]
pub(in crate::execution) enum Term {
    /// Until this time limit.
    Limited(Duration),
    /// Beyond its request, until this time limit if there is one.
    Kept(Option<Duration>),
}

/// The request, without the numbers of its streams. `workdir` is the default working directory, `stop_timeout` its
/// grace.
pub(in crate::execution) fn request(
    asked: Command,
    workdir: Option<&str>,
    term: Term,
    stop_timeout: Duration,
) -> Result<message::Exec, Error> {
    let refuse = |reason: String| Err(Error::Command { reason });
    let command = match asked.what {
        CommandLine::Program { program, args } => {
            let args = args.iter().map(WireString::new).collect();
            message::Command::Program(message::Program { program: WireString::new(program), args })
        }
        CommandLine::Shell(line) => message::Command::Shell(WireString::new(line)),
    };
    let cwd = asked.cwd.as_deref().or(workdir.map(str::as_bytes)).map(WireString::new);
    let env: Vec<Variable> = asked
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
    if let Some(error) = asked.pty.as_ref().and_then(|pty| check_terminal(pty).err()) {
        return refuse(error.to_string());
    }
    let (kept, timeout) = match term {
        Term::Limited(timeout) => (false, Some(timeout)),
        Term::Kept(timeout) => (true, timeout),
    };
    let is_in_env = |name: &str| env.iter().any(|it| it.name.as_bytes() == name.as_bytes());
    if let Some((name, _)) = asked.secrets.iter().find(|(name, _)| is_in_env(name)) {
        return refuse(format!("{name} is a variable of its environment and a secret"));
    }
    let request = message::Exec {
        command,
        cwd,
        env,
        secrets: asked.secrets.to_wire(),
        stdin: None,
        stdout: 0,
        stderr: None,
        pty: asked.pty,
        kept,
        timeout_ms: timeout.map(millis),
        grace_ms: millis(stop_timeout),
        stop_signal: asked.stop_signal,
    };
    if request.command_bytes() > MAX_COMMAND_BYTES {
        return refuse(format!(
            "its words and its environment are longer than {MAX_COMMAND_BYTES} bytes, each \
                 word counted with eight more"
        ));
    }
    if request.words().any(|word| word.as_bytes().contains(&0)) {
        return refuse("one of its words has a NUL byte".to_owned());
    }
    Ok(request)
}
