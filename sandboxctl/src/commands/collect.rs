//! Artifacts of `run` and `exec`: checked before anything runs, copied when it has ended.

use std::path::Path;

use sandbox_api::artifacts::{Artifact, ArtifactsReport};
use sandbox_api::{Outcome, SandboxSpec};
use sandbox_controller::Sandbox;
use sandbox_controller::artifacts::{self, Collected, Destination, Request, Selection, Unmatched};

use crate::cli::artifacts::ArtifactArgs;
use crate::error::Error;
use crate::input;
use crate::output::Output;
use crate::render;
use crate::signals::Signals;
use crate::target;

/// The exit code if artifacts cannot be copied, and nothing else failed.
pub const FAILED: u8 = 125;

/// What is to be copied, if anything.
pub struct Artifacts(Option<Request>);

/// What was copied.
pub struct Copied {
    /// For the document; `None` if nothing was to be copied.
    pub report: Option<ArtifactsReport>,
    /// The files; `None` if nothing was copied.
    pub files: Option<Vec<Artifact>>,
    /// The exit code that it asks for.
    code: u8,
    has_ended_well: bool,
}

impl Artifacts {
    /// Checks the flags of a command that launches this sandbox.
    ///
    /// # Errors
    ///
    /// If they do not fit each other or the sandbox.
    pub fn of(args: &ArtifactArgs, spec: &SandboxSpec) -> Result<Self, Error> {
        let dir = match (&args.dir, args.globs.is_empty()) {
            (Some(dir), false) => dir,
            (None, false) => {
                return Err(Error::usage("--artifact", "there is no directory to copy to")
                    .with_hint("--artifacts-dir DIR names one"));
            }
            (Some(_), true) => {
                return Err(Error::usage("--artifacts-dir", "nothing is selected to copy there")
                    .with_hint("--artifact GLOB selects files of the io dir, '**' all of them"));
            }
            (None, true) if args.is_optional => {
                return Err(Error::usage("--artifact-optional", "there are no artifacts")
                    .with_hint("--artifact GLOB selects files of the io dir"));
            }
            (None, true) => return Ok(Self(None)),
        };
        if spec.io_is_off {
            return Err(Error::usage("--artifact", "a sandbox without an io dir has no files"));
        }
        let refuse = |what: &str, error: &artifacts::Error| {
            Error::usage(what, error.to_string()).with_hint_of(error.hint())
        };
        let selection = Selection::new(&args.globs, &spec.mount_path)
            .map_err(|error| refuse("--artifact", &error))?;
        let io_dir = spec.io_dir.as_deref().map(|dir| ("the io dir", dir));
        let inputs = input::paths(spec).map(|(_, path)| ("an input", path));
        let others: Vec<_> = io_dir.into_iter().chain(inputs).collect();
        let destination =
            Destination::new(dir, &others).map_err(|error| refuse("--artifacts-dir", &error))?;
        // What is elsewhere may be so by a link that a guest left in the io dir.
        target::refuse_in_io_dir("--artifacts-dir", dir, spec.io_dir.as_deref())?;
        let unmatched = if args.is_optional { Unmatched::Allow } else { Unmatched::Refuse };
        Ok(Self(Some(Request {
            selection,
            destination: Some(destination),
            unmatched,
            reference: None,
        })))
    }

    /// The artifacts directory.
    pub fn directory(&self) -> Option<&Path> {
        self.0.as_ref()?.destination.as_ref().map(Destination::path)
    }

    /// The globs.
    pub fn globs(&self) -> &[String] {
        self.0.as_ref().map_or(&[], |request| request.selection.globs())
    }

    /// Refuses artifacts of several runs, which would be one upon another.
    ///
    /// # Errors
    ///
    /// If there are some.
    pub fn of_one_run(self, runs: usize) -> Result<Self, Error> {
        match self {
            Self(Some(_)) if runs > 1 => {
                Err(Error::usage("--artifacts-dir", "it is for one script at a time")
                    .with_hint("run each script with an artifacts directory of its own"))
            }
            artifacts => Ok(artifacts),
        }
    }

    /// Copies what a run left that has ended. A signal cancels it.
    ///
    /// # Errors
    ///
    /// If signals cannot be handled.
    pub async fn copy(&self, sandbox: &Sandbox, outcome: &Outcome) -> Result<Copied, Error> {
        let has_ended_well = matches!(outcome, Outcome::Ok { .. });
        let Some(request) = &self.0 else {
            return Ok(Copied { report: None, files: None, code: 0, has_ended_well });
        };
        let dir = self.directory().unwrap_or(Path::new("")).to_string_lossy().into_owned();
        let mut listed = None;
        // What a failed run did not get to is not missing for another reason.
        let unmatched = if has_ended_well { request.unmatched } else { Unmatched::Allow };
        let (report, code) = match copy(sandbox, Request { unmatched, ..request.clone() }).await {
            Ok(copied) => {
                let (files, bytes) = (copied.files(), copied.bytes());
                let (omitted, unmatched) = (copied.manifest.omitted, copied.unmatched);
                listed = Some(copied.manifest.files);
                (ArtifactsReport { dir, files, bytes, omitted, unmatched, error: None }, 0)
            }
            Err(error) => {
                let code = match error {
                    Error::Signalled(signal) => signal.exit_code(),
                    _ => FAILED,
                };
                let error = Some(error.document());
                (ArtifactsReport { dir, error, ..ArtifactsReport::default() }, code)
            }
        };
        Ok(Copied { report: Some(report), files: listed, code, has_ended_well })
    }
}

async fn copy(sandbox: &Sandbox, request: Request) -> Result<Collected, Error> {
    let mut signals = Signals::listen()?;
    let mut copy = sandbox.start_artifacts(request);
    let signal = tokio::select! {
        biased;
        copied = copy.wait() => return Ok(copied?),
        signal = signals.next() => signal,
    };
    copy.cancel();
    // It removes what it has written; another signal does not wait for that.
    if let Ok(Ok(copied)) = signals.guard(copy.wait()).await {
        return Ok(copied);
    }
    Err(Error::Signalled(signal))
}

impl Copied {
    /// The exit code, where `code` is the run's own: that of a failed run counts.
    pub const fn exit_code(&self, code: u8) -> u8 {
        if code == 0 { self.code } else { code }
    }

    /// Something else that was to be written at the end was not.
    pub const fn fail(&mut self) {
        if self.code == 0 {
            self.code = FAILED;
        }
    }

    /// Whether artifacts were asked for and copied.
    pub fn is_complete(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.error.is_none())
    }

    /// Says what was copied.
    pub fn print(&self, output: &Output) {
        let Some(report) = &self.report else { return };
        match &report.error {
            Some(error) if self.has_ended_well => {
                output.failure(&error.message, error.hint.as_deref());
            }
            // The failure of the run is the error.
            Some(error) => output.caution(&format!("no artifacts: {}", error.message)),
            None => {
                let (files, size) =
                    (render::count(report.files, "file", "files"), render::size(report.bytes));
                let omitted = match &*report.omitted {
                    [] => String::new(),
                    [one] => format!("; omitted {}: it is {}", one.path, one.reason.as_str()),
                    more => format!("; omitted {} entries: see manifest.json", more.len()),
                };
                output.notice(&format!("copied {files} ({size}) to {}{omitted}", report.dir));
                for pattern in &report.unmatched {
                    output.notice(&format!("no file matches the artifact '{pattern}'"));
                }
            }
        }
    }
}
