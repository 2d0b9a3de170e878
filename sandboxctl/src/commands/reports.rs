//! Reports of `run` and `exec`: what runs, and the end.

use std::path::Path;

use sandbox_api::{RootFs, SandboxSpec, Secrets};
use sandbox_controller::{Config, Patterns};

use super::Context;
use crate::ci::{Ci, CiMode, Stdout};
use crate::cli::artifacts::ArtifactArgs;
use crate::cli::changes::ChangesArgs;
use crate::cli::exec::CommandLine;
use crate::cli::receipt::ReceiptArgs;
use crate::cli::report::ReportArgs;
use crate::cli::secret::SecretArgs;
use crate::config::{Key, Settings};
use crate::error::Error;
use crate::file_conflicts::NamedFiles;
use crate::input::{self, ScriptSource};
use crate::output::Output;
use crate::report::{self, Reports, Subject};
use crate::target;

/// A script.
pub fn script(script: &ScriptSource) -> Subject {
    let ScriptSource { source, name, is_file } = script;
    let (name, source) = (name.clone(), Some(source.clone()));
    Subject { name, source, is_file: *is_file, secrets: Secrets::new() }
}

/// A command. Its words may be those of a caller who put a secret among them.
pub fn command(line: &CommandLine, secrets: &Secrets) -> Subject {
    let mut name = line.text();
    Patterns::of([secrets]).text(&mut name);
    Subject { name, source: None, is_file: false, secrets: secrets.clone() }
}

/// From here on what is printed is the log of a CI job, if it is one.
///
/// # Errors
///
/// If the runner cannot be determined.
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

/// The files that what a guest made is written to, each with its flag.
fn written<'a>(
    reports: &'a ReportArgs,
    receipt: &'a ReceiptArgs,
    changes: &'a ChangesArgs,
) -> impl Iterator<Item = (String, &'a Path)> {
    let reports = reports.reports.iter().map(|it| (report::flag(it.kind), &*it.file));
    let others = [
        ("--changes", changes.file.as_deref().filter(|it| *it != Path::new("-"))),
        ("--diff", changes.diff_file()),
        ("--receipt", receipt.file.as_deref()),
    ];
    let others = others.into_iter().filter_map(|(flag, file)| Some((flag.to_owned(), file?)));
    reports.chain(others)
}

/// The flags of `run` and `exec` that name files.
type FileFlags<'a> =
    (&'a ReportArgs, &'a ReceiptArgs, &'a ChangesArgs, &'a ArtifactArgs, &'a SecretArgs);

/// The files that `run` and `exec` both write and read.
///
/// # Errors
///
/// If what a guest made would be written into a directory of sandboxctl's own, or the audit into the
/// io dir.
pub fn named_files(
    context: &Context<'_>,
    config: &Config,
    (reports, receipt, changes, artifacts, secrets): FileFlags<'_>,
    spec: &SandboxSpec,
) -> Result<NamedFiles, Error> {
    let mut files = NamedFiles::default();
    // What a guest can choose the name or the text of is no file of the runner.
    for (variable, file) in context.output.ci().into_iter().flat_map(Ci::files) {
        files.writes(variable, [file]);
    }
    if let Some(audit) = config.audit.as_deref() {
        // Before it is opened: a link in the io dir may lead it anywhere.
        target::refuse_in_io_dir("--audit", audit, spec.io_dir.as_deref())?;
        target::refuse_used("--audit", audit)?;
        files.writes("--audit", [audit]);
    }
    for (flag, file) in written(reports, receipt, changes) {
        target::refuse_own(&flag, file, config)?;
        files.writes(&flag, [file]);
    }
    for (flag, directory) in
        [("--artifacts-dir", &artifacts.dir), ("--keep-staged", &changes.keep_staged)]
    {
        let directory = directory.as_deref();
        directory.map_or(Ok(()), |directory| target::refuse_own(flag, directory, config))?;
        files.makes(flag, directory);
    }
    files.reads("--sign", receipt.key_file());
    files.reads("--secret", secrets.files());
    files.reads("--in", input::paths(spec).map(|(_, path)| path));
    if let RootFs::Archive(file) = &spec.root {
        files.reads("--image-archive", [&**file]);
    }
    Ok(files)
}

/// From here on errors are reported in the files of the runner, unless one is in the configured io
/// dir, or in a directory of sandboxctl's own. Refuses files of guests' text that are the log of the job.
///
/// # Errors
///
/// If one is.
pub fn begin_files(
    context: &Context<'_>,
    reports: &ReportArgs,
    receipt: &ReceiptArgs,
    changes: &ChangesArgs,
    settings: &Settings,
) -> Result<(), Error> {
    let Some(ci) = context.output.ci() else { return Ok(()) };
    if let Ok(io_dir) = settings.io_dir(&context.environment.working_directory) {
        // The io dir that it is in the end is checked too.
        _ = ci.check_files(Some(&io_dir), &context.controller(settings));
    }
    if let Some(audit) = settings.path_of(Key::AuditFile) {
        ci.check_file(&settings.named(Key::AuditFile), &audit)?;
    }
    written(reports, receipt, changes).try_for_each(|(flag, file)| ci.check_file(&flag, file))
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
