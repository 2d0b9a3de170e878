//! Changes of `run` and `exec` that are staged: listed, and committed whole or not at all.

use std::io;
use std::path::{Path, PathBuf};

use sandbox_api::changes::{ChangeManifest, Changes, CommitPolicy};
use sandbox_api::{ErrorKind, ExecutionResult, Failure, Outcome, SandboxSpec, SomePaths};
use sandbox_controller::{FinishOptions, NewDirectory, Sandbox};

use crate::cli::changes::ChangesArgs;
use crate::error::Error;
use crate::output::Output;
use crate::render;
use crate::target::{Place, is_in, parent_of, refuse_opened_in_io_dir};

/// What becomes of the changes.
pub struct Staging {
    /// `None` if they are made in place.
    options: Option<FinishOptions>,
    /// Where the manifest is written.
    manifest: Option<ChangesFile>,
    /// Where the diff is written, if it is not printed.
    diff: Option<ChangesFile>,
}

/// A file, or stdout.
struct ChangesFile {
    flag: &'static str,
    path: PathBuf,
    /// `None` for stdout.
    place: Option<Place>,
}

/// The end of a run, with what is printed of its changes.
#[derive(Default)]
pub struct Staged {
    diff: Option<Vec<u8>>,
    /// Why nothing was committed, if the run itself failed.
    problem: Option<Failure>,
    is_staged: bool,
    /// What became of the changes.
    pub changes: Option<Changes>,
    commit: CommitPolicy,
    /// Where everything is if nothing was committed.
    kept: Option<PathBuf>,
}

impl Staging {
    /// Checks the flags, and has the sandbox staged if they ask for it, or if what changes is to be
    /// listed for another reason.
    ///
    /// # Errors
    ///
    /// If they do not fit each other or the sandbox.
    pub fn of(
        args: &ChangesArgs,
        json: bool,
        runs: usize,
        spec: SandboxSpec,
        is_listed: bool,
    ) -> Result<(Self, SandboxSpec), Error> {
        let is_staged = args.is_staged() || is_listed && spec.io_dir.is_some();
        if !is_staged {
            return Ok((Self { options: None, manifest: None, diff: None }, spec));
        }
        let flag = match args {
            ChangesArgs { file: Some(_), .. } => "--changes",
            ChangesArgs { diff: Some(_), .. } => "--diff",
            ChangesArgs { keep_staged: Some(_), .. } => "--keep-staged",
            _ => "--commit",
        };
        let Some(io_dir) = &spec.io_dir else {
            let why = "the sandbox has no io dir that stays";
            return Err(Error::usage(flag, why).with_hint("--io-dir DIR names one"));
        };
        let kept = args.keep_staged.as_deref();
        let keep_staged = kept.map(|kept| open_kept(kept, io_dir, runs)).transpose()?;
        if let Some(file) = &args.file {
            if runs > 1 {
                return Err(Error::usage(flag, "it is for one script at a time")
                    .with_hint("with --json each document has the member `changes`"));
            }
            if json && file == Path::new("-") {
                return Err(Error::usage(flag, "stdout is taken by the document of --json")
                    .with_hint("the document has the member `changes`"));
            }
        }
        if let Some(file) = args.diff_file() {
            if runs > 1 {
                return Err(Error::usage("--diff", "a file is for one script at a time"));
            }
            if file == Path::new("-") {
                return Err(Error::usage("--diff", "stdout has what the run prints")
                    .with_hint("name a file: --diff=FILE"));
            }
        }
        // Before anything runs.
        let open = |flag, file: Option<&Path>| {
            file.map(|file| ChangesFile::open(flag, file, io_dir)).transpose()
        };
        let manifest = open("--changes", args.file.as_deref())?;
        let diff = open("--diff", args.diff_file())?;
        let commit = args.commit.unwrap_or_default();
        let options = FinishOptions { commit, diff: args.diff.is_some(), keep_staged };
        Ok((Self { options: Some(options), manifest, diff }, spec.staged()))
    }

    /// When changes are committed; `None` if they are made in place.
    pub fn policy(&self) -> Option<CommitPolicy> {
        self.options.as_ref().map(|options| options.commit)
    }

    /// Ends the sandbox and decides about the changes. What goes wrong then is the outcome of a run that
    /// had ended well.
    ///
    /// # Errors
    ///
    /// If the manifest or the diff cannot be written.
    pub async fn finish(
        &self,
        sandbox: &Sandbox,
        result: &mut ExecutionResult,
        output: &Output,
    ) -> Result<Staged, Error> {
        let Some(options) = &self.options else { return Ok(Staged::default()) };
        let mut staged = Staged {
            is_staged: true,
            commit: options.commit,
            kept: options.keep_staged.as_ref().map(|kept| kept.path().to_owned()),
            ..Staged::default()
        };
        let problem = match sandbox.finish(options.clone(), &result.outcome).await {
            Ok(Some(end)) => {
                let conflict = conflict(&end.changes);
                staged.diff = end.diff;
                result.changes = Some(end.changes);
                conflict.map(|failure| (failure, ErrorKind::Conflict))
            }
            Ok(None) => None,
            Err(error) => Some((Failure::from(&error), error.kind())),
        };
        if let Some((failure, kind)) = problem {
            match &result.outcome {
                Outcome::Ok { .. } => {
                    let exit_code = sandbox_api::exit_code(kind);
                    result.outcome = Outcome::Error { failure, exit_code };
                }
                _ => staged.problem = Some(failure),
            }
        }
        if let (Some(file), Some(changes)) = (&self.manifest, &result.changes) {
            file.write_manifest(&changes.manifest, output)?;
        }
        if let Some(file) = &self.diff
            && let Some(diff) = staged.diff.take()
        {
            file.write(Ok(diff))?;
        }
        Ok(staged)
    }
}

/// Opens the place of a directory that is to be made. It may not be a part of the io dir.
fn open_kept(kept: &Path, io_dir: &Path, runs: usize) -> Result<NewDirectory, Error> {
    let refuse = |why: String| Err(Error::usage("--keep-staged", why));
    let shown = kept.display();
    if runs > 1 {
        return refuse("it is for one script at a time".to_owned());
    }
    if kept.symlink_metadata().is_ok() {
        return refuse(format!("{shown} exists; name a new directory"));
    }
    let parent = parent_of(kept);
    match NewDirectory::at(kept) {
        Err(error) => Err(Error::unusable("--keep-staged", parent, &error)),
        Ok(_) if is_in(parent, io_dir) => {
            refuse(format!("{shown} is in the io dir; name a directory elsewhere"))
        }
        Ok(new) => {
            refuse_opened_in_io_dir("--keep-staged", kept, new.parent(), Some(io_dir))?;
            Ok(new)
        }
    }
}

/// The failure of a commit that would have overwritten what something else changed.
fn conflict(changes: &Changes) -> Option<Failure> {
    const SHOWN: usize = 3;
    let paths = &changes.conflicts;
    let first: Vec<_> = paths.iter().take(SHOWN).cloned().collect();
    let shown = SomePaths { more: paths.len() - first.len(), first };
    (!paths.is_empty()).then(|| {
        let (message, hint) = match changes.committed {
            false => (
                format!("nothing was committed: {shown} changed in the io dir meanwhile"),
                "run it again; --keep-staged DIR keeps what such a run wrote",
            ),
            true => (
                format!("not committed: {shown} changed in the io dir during the commit"),
                "the other changes are in the io dir; run it again",
            ),
        };
        Failure::new(ErrorKind::Conflict, message, Some(hint.to_owned()))
    })
}

impl ChangesFile {
    fn open(flag: &'static str, path: &Path, io_dir: &Path) -> Result<Self, Error> {
        let is_stdout = path == Path::new("-");
        let place = (!is_stdout).then(|| Place::outside(flag, path, Some(io_dir)));
        Ok(Self { flag, path: path.to_owned(), place: place.transpose()? })
    }

    fn write_manifest(&self, manifest: &ChangeManifest, output: &Output) -> Result<(), Error> {
        if self.place.is_none() {
            return output.json_line(manifest);
        }
        let text = serde_json::to_string(manifest).map(|text| (text + "\n").into_bytes());
        self.write(text.map_err(io::Error::from))
    }

    fn write(&self, content: io::Result<Vec<u8>>) -> Result<(), Error> {
        let Some(place) = &self.place else { return Ok(()) };
        let written = content.and_then(|content| place.target()?.write(&content));
        written.map_err(|error| Error::unusable(self.flag, &self.path, &error))
    }
}

/// Refuses a diff on stderr if the guest writes there too: a saved diff would contain its output. A person at a
/// terminal can tell them apart.
///
/// # Errors
///
/// If it is asked for.
pub fn refuse_diff_beside_output(args: &ChangesArgs, output: &Output) -> Result<(), Error> {
    match args.diff {
        Some(None) if !output.stderr_is_terminal => {
            Err(Error::usage("--diff", "stderr has what the run writes to it too")
                .with_hint("--diff=FILE writes the diff alone to a file"))
        }
        _ => Ok(()),
    }
}

impl Staged {
    /// Whether the changes are in the io dir.
    pub fn is_kept(&self) -> bool {
        !self.is_staged || self.changes.as_ref().is_some_and(|changes| changes.committed)
    }

    /// Prints the diff, if it was asked for.
    pub fn print_diff(&self, output: &Output) {
        if let Some(diff) = &self.diff {
            output.diff(diff);
        }
    }

    /// Prints the diff, and what became of the changes.
    pub fn print(&self, output: &Output) {
        if !self.is_staged {
            return;
        }
        self.print_diff(output);
        if let Some(problem) = &self.problem {
            output.caution(&problem.message);
        }
        let Some(changes) = &self.changes else { return };
        let count = changes.manifest.changes.len();
        let count = match changes.manifest.truncated {
            false => render::count(count, "change", "changes"),
            true => format!("more than {count} changes"),
        };
        let policy = self.commit.as_str();
        match &self.kept {
            _ if changes.committed => output.notice(&format!("committed {count}")),
            Some(kept) => output.notice(&format!("kept {count} in {}", kept.display())),
            None if changes.conflicts.is_empty() => {
                output.notice(&format!("discarded {count} (--commit {policy})"));
            }
            None => {}
        }
    }
}
