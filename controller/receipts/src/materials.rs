//! What runs, as dependencies of its receipt.

use sandbox_api::receipt::Dependency;
use sandbox_api::{Command, CommandLine, Script, Workload};
use serde_json::{Map, Value};

use crate::sha256;

/// The text and the arguments of a script, or the words, the variables and the directory of a command.
#[must_use]
pub fn materials(workload: &Workload) -> Vec<Dependency> {
    match workload {
        Workload::Script(it) => {
            vec![script(it), Dependency::new(Dependency::ARGS, args_digest(&it.args))]
        }
        Workload::Command(Command { what, env, cwd, .. }) => {
            let command = Dependency::new(Dependency::COMMAND, command_digest(what));
            let env = (!env.is_empty()).then(|| Dependency::new(Dependency::ENV, env_digest(env)));
            let cwd = cwd.as_ref().map(|cwd| Dependency::new(Dependency::CWD, sha256(cwd)));
            [Some(command), env, cwd].into_iter().flatten().collect()
        }
    }
}

/// The text of a script.
#[must_use]
pub fn script(script: &Script) -> Dependency {
    Dependency::new(Dependency::SCRIPT, sha256(&script.source))
}

/// Of the arguments as JSON without spaces, its keys sorted.
fn args_digest(args: &Map<String, Value>) -> String {
    let mut value = Value::Object(args.clone());
    value.sort_all_objects();
    sha256(value.to_string())
}

/// Of the words of a command, each with a zero byte at its end.
fn command_digest(command: &CommandLine) -> String {
    let words: Vec<&[u8]> = match command {
        CommandLine::Shell(line) => vec![&b"sh"[..], b"-c", line],
        CommandLine::Program { program, args } => {
            [program].into_iter().chain(args).map(Vec::as_slice).collect()
        }
    };
    sha256(words.iter().flat_map(|word| [word, &b"\0"[..]]).collect::<Vec<_>>().concat())
}

/// Of the variables that the caller set, sorted: `NAME=VALUE`, each with a zero byte at its end.
fn env_digest(variables: &[(Vec<u8>, Vec<u8>)]) -> String {
    let mut lines: Vec<Vec<u8>> =
        variables.iter().map(|(name, value)| [&**name, b"=", value, b"\0"].concat()).collect();
    lines.sort_unstable();
    sha256(lines.concat())
}
