//! Reports of `run` and `exec`: what runs, and the end.

use crate::cli::exec::CommandLine;
use crate::error::Error;
use crate::input::ScriptSource;
use crate::output::Output;
use crate::report::{self, Reports, Subject};

/// A script.
pub fn script(script: &ScriptSource) -> Subject {
    let ScriptSource { source, name } = script;
    Subject { name: name.clone(), source: Some(source.clone()) }
}

/// A command.
pub fn command(line: &CommandLine) -> Subject {
    let name = match line {
        CommandLine::Shell(line) => line.to_string_lossy().into_owned(),
        CommandLine::Program(program, args) => {
            let words = std::iter::once(program).chain(args);
            words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        }
    };
    Subject { name, source: None }
}

/// Writes the reports. One that cannot be written is an error, and does not change how a failed run
/// ended.
///
/// # Errors
///
/// The error that ended the command.
pub fn finish(output: &Output, reports: Reports, ended: Result<u8, Error>) -> Result<u8, Error> {
    let (_, failures) = reports.finish(ended.as_ref());
    failures.iter().for_each(|failure| output.error(failure));
    ended.map(|code| report::exit_code(code, !failures.is_empty()))
}
