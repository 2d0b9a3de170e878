//! `artifacts`: verifies, archives and compares artifacts directories.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandbox_api::artifacts::{
    Artifact, ArtifactManifest, CheckDifference, DiffChange, PathDifference,
};
use sandbox_controller::artifacts::{self, ArchiveFormat, ArtifactsDir, ContinueFn};

use super::{Context, block_on};
use crate::cli::artifacts::ArtifactsCommand;
use crate::error::Error;
use crate::input;
use crate::render;
use crate::signals::Signals;
use crate::target::Target;

pub fn artifacts(context: &Context<'_>, command: ArtifactsCommand) -> Result<u8, Error> {
    match command {
        ArtifactsCommand::Verify { dir, json } => {
            let check = cancellable(move |proceed| ArtifactsDir::open(&dir)?.verify(proceed))?;
            let code = u8::from(!check.differences.is_empty());
            context.output.show(json, &check, |_| match &*check.differences {
                [] => {
                    let files = render::count(check.files, "file", "files");
                    format!("verified {files} ({})\n", render::size(check.bytes))
                }
                differences => lines(differences, CheckDifference::as_str),
            })?;
            Ok(code)
        }
        ArtifactsCommand::Diff { old, new, json } => {
            let diff = cancellable(move |proceed| {
                artifacts::diff(&ArtifactsDir::open(&old)?, &ArtifactsDir::open(&new)?, proceed)
            })?;
            let text = |_| lines(&diff.differences, DiffChange::as_str);
            context.output.show(json, &diff, text)?;
            Ok(u8::from(!diff.differences.is_empty()))
        }
        ArtifactsCommand::Ls { dir, long, json } => {
            let dir = ArtifactsDir::open(&dir)?;
            let ArtifactManifest { files, omitted, .. } = dir.manifest();
            let line = |it: &Artifact| format!("{}\n", render::escaped_line(&it.path));
            context.output.show(json, dir.manifest(), |_| match long {
                true => table_of(files),
                false => files.iter().map(line).collect(),
            })?;
            for entry in omitted.iter().filter(|_| !json) {
                let reason = entry.reason.as_str();
                context.output.notice(&format!("'{}' was omitted: {reason}", entry.path));
            }
            Ok(0)
        }
        ArtifactsCommand::Archive { dir, output } => {
            archive(context, dir.as_path(), &output).map(|()| 0)
        }
    }
}

fn table_of(files: &[Artifact]) -> String {
    let row = |it: &Artifact| {
        let mode = format!("{:04o}", it.mode.bits());
        let (size, path) = (it.bytes.to_string(), render::escaped_line(&it.path).into_owned());
        [mode, size, it.sha256.clone(), it.mime.clone(), path]
    };
    render::table(["MODE", "SIZE", "SHA256", "TYPE", "PATH"], files.iter().map(row), None)
}

fn archive(context: &Context<'_>, dir: &Path, file: &Path) -> Result<(), Error> {
    context.check_output("--output", file)?;
    let name = format!("--output {}", file.display());
    let format = ArchiveFormat::of(file).ok_or_else(|| {
        Error::usage(&name, "its name does not say which format to write")
            .with_hint("FILE.tar.zst, FILE.tar.gz or FILE.zip")
    })?;
    let dir = ArtifactsDir::open(dir)?;
    // Nothing that exists changes before the archive is complete.
    let unusable = |error: std::io::Error| Error::usage(&name, input::reason(&error));
    let target = Target::open(file).map_err(unusable)?;
    let to = target.writer().map_err(unusable)?;
    cancellable(move |proceed| dir.archive(format, to, proceed))?;
    target.finish().map_err(|source| Error::Content { what: file.display().to_string(), source })
}

/// Works in a thread until it is done or a signal arrives.
pub fn cancellable<T: Send + 'static, E: Into<Error> + Send + 'static>(
    work: impl FnOnce(ContinueFn<'_>) -> Result<T, E> + Send + 'static,
) -> Result<T, Error> {
    block_on(async {
        let mut signals = Signals::listen()?;
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let cancelled = is_cancelled.clone();
        let work =
            tokio::task::spawn_blocking(move || work(&|| !cancelled.load(Ordering::Relaxed)));
        let done = signals.guard(work).await;
        is_cancelled.store(true, Ordering::Relaxed);
        done?.map_err(|error| Error::system("a thread", error))?.map_err(Into::into)
    })
}

impl From<artifacts::Error> for Error {
    fn from(error: artifacts::Error) -> Self {
        sandbox_controller::Error::from(error).into()
    }
}

/// A line for each path.
pub fn lines<T: Copy>(differences: &[PathDifference<T>], name: fn(T) -> &'static str) -> String {
    let line = |it: &PathDifference<T>| {
        format!("{:10} {}\n", name(it.change), render::escaped_line(&it.path))
    };
    differences.iter().map(line).collect()
}
