//! Reports of `run` and `exec`: what runs, and the end.

use std::path::Path;

use sandbox_api::{InputSource, RootFs, SandboxSpec};
use sandbox_controller::Config;

use super::Context;
use crate::ci::{Ci, CiMode, Stdout};
use crate::clashes::NamedFiles;
use crate::cli::artifacts::ArtifactArgs;
use crate::cli::changes::ChangesArgs;
use crate::cli::exec::CommandLine;
use crate::cli::receipt::ReceiptArgs;
use crate::cli::report::ReportArgs;
use crate::cli::secret::SecretArgs;
use crate::error::Error;
use crate::input::ScriptSource;
use crate::output::Output;
use crate::report::{self, Reports, Subject};

/// A script.
pub fn script(script: &ScriptSource) -> Subject {
    let ScriptSource { source, name, is_file } = script;
    Subject { name: name.clone(), source: Some(source.clone()), is_file: *is_file }
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
    Subject { name, source: None, is_file: false }
}

/// From here on what is printed is the log of a CI job, if it is one.
///
/// # Errors
///
/// If the runner cannot be told.
pub fn begin_ci(
    context: &Context<'_>,
    mode: CiMode,
    title: &str,
    stdout: Stdout,
) -> Result<(), Error> {
    let variable = |name: &str| context.environment.variable(name);
    if let Some(ci) = Ci::begin(mode, title, stdout, variable)? {
        context.output.begin_ci(ci);
    }
    Ok(())
}

/// Refuses files of guests' text that are the log of the job.
///
/// # Errors
///
/// If one is.
pub fn check_files(
    context: &Context<'_>,
    reports: &ReportArgs,
    receipt: &ReceiptArgs,
    changes: &ChangesArgs,
) -> Result<(), Error> {
    let Some(ci) = context.output.ci() else { return Ok(()) };
    for report in &reports.reports {
        ci.check_file(&report::flag(report.kind), &report.file)?;
    }
    let receipt = receipt.file.as_deref().map(|file| ("--receipt", file));
    let changes = changes.file.as_deref().map(|file| ("--changes", file));
    receipt.into_iter().chain(changes).try_for_each(|(flag, file)| ci.check_file(flag, file))
}

/// The flags of `run` and `exec` that name files.
type FileFlags<'a> =
    (&'a ReportArgs, &'a ReceiptArgs, &'a ChangesArgs, &'a ArtifactArgs, &'a SecretArgs);

/// The files that `run` and `exec` both write and read.
pub fn named_files(
    config: &Config,
    (reports, receipt, changes, artifacts, secrets): FileFlags<'_>,
    spec: &SandboxSpec,
) -> NamedFiles {
    let mut files = NamedFiles::default();
    files.writes("--audit", config.audit.as_deref());
    for report in &reports.reports {
        files.writes(&report::flag(report.kind), [&*report.file]);
    }
    files.writes("--changes", changes.file.as_deref().filter(|it| *it != Path::new("-")));
    files.writes("--receipt", receipt.file.as_deref());
    files.makes("--artifacts-dir", artifacts.dir.as_deref());
    files.makes("--keep-staged", changes.keep_staged.as_deref());
    files.reads("--sign", receipt.key_file());
    files.reads("--secret", secrets.files());
    let inputs = spec.inputs.iter().filter_map(|input| match &input.source {
        InputSource::Path(path) => Some(&**path),
        InputSource::Bytes(_) => None,
    });
    files.reads("--in", inputs);
    if let RootFs::Archive(file) = &spec.root {
        files.reads("--image-archive", [&**file]);
    }
    files
}

/// Refuses an io dir that contains files of the runner.
///
/// # Errors
///
/// If it does.
pub fn check_io_dir(context: &Context<'_>, io_dir: Option<&Path>) -> Result<(), Error> {
    context.output.ci().map_or(Ok(()), |ci| ci.check_io_dir(io_dir))
}

/// Writes the reports. One that cannot be written is an error, and does not change how a failed run
/// ended.
///
/// # Errors
///
/// The error that ended the command.
pub fn finish(output: &Output, reports: Reports, ended: Result<u8, Error>) -> Result<u8, Error> {
    let (entries, mut failures) = reports.finish(ended.as_ref());
    if let Some(ci) = output.ci() {
        failures.extend(ci.report(&entries));
    }
    failures.iter().for_each(|failure| output.error(failure));
    ended.map(|code| report::exit_code(code, !failures.is_empty()))
}
