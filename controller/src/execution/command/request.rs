//! The request for a command.

use sandbox_api::{Command, CommandLine, Limits, millis};
use sandbox_protocol::WireString;
use sandbox_protocol::limits::MAX_COMMAND_BYTES;
use sandbox_protocol::message::{self, Variable};
use sandbox_session::ConsoleStreams;

use crate::error::Error;

/// The request, and the source of the input. `workdir` is the default working directory.
pub(super) fn request(
    asked: Command,
    workdir: Option<&str>,
    limits: &Limits,
) -> Result<impl FnOnce(ConsoleStreams) -> message::Exec + use<>, Error> {
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
        stderr: 0,
        timeout_ms: millis(limits.timeout),
        grace_ms: millis(limits.stop_timeout),
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
    Ok(move |ConsoleStreams { stdin, stdout, stderr }| message::Exec {
        stdin,
        stdout,
        stderr,
        ..request
    })
}
