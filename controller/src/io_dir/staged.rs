//! Staged io dirs: the sandbox works on an overlay or on a private copy, and its changes are committed
//! to the io dir at the end, or not.

use std::os::fd::{AsFd as _, OwnedFd};

use sandbox_api::changes::{Changes, CommitPolicy, StagingMethod};
use sandbox_redact::Redactions;
use sandbox_staging::{Commit, NewDirectory, StageError, copy_out};

use super::StagedIoDir;
use crate::error::Error;

/// The end of a staged io dir.
#[derive(Debug)]
pub struct StagedEnd {
    /// The outcome of the commit.
    pub changes: Changes,
    /// The changes as a diff in the format of git, if it was asked for. It contains what the sandbox
    /// wrote: escape it for a terminal.
    pub diff: Option<Vec<u8>>,
}

/// What to do at the end of a staged io dir.
#[derive(Debug, Clone, Default)]
pub struct FinishOptions {
    /// When to commit.
    pub commit: CommitPolicy,
    /// Whether to make a diff.
    pub diff: bool,
    /// Where to copy the sandbox's view, if nothing is committed. It must not exist.
    pub keep_staged: Option<NewDirectory>,
}

impl StagedIoDir {
    /// Compares the stage with the io dir, and commits the changes if `options` say so. Nothing
    /// runs in the sandbox any more. `view` is what it saw, `most` the maximum number of listed
    /// changes. The secrets of `redactions` are masked in the result.
    pub fn finish(
        mut self,
        view: &OwnedFd,
        options: FinishOptions,
        is_ok: bool,
        most: usize,
        redactions: &Redactions,
        reached: impl FnMut(&'static str),
    ) -> Result<StagedEnd, Error> {
        let path = self.io_dir.path.clone();
        // A file's name may have a secret.
        let shown = |error: &dyn std::fmt::Display| {
            let mut reason = error.to_string();
            redactions.text(&mut reason);
            reason
        };
        let failed =
            |error: StageError| Error::Staging { path: path.clone(), reason: shown(&error) };
        let compared = self.stage.compare(view.as_fd()).map_err(failed)?;
        let mut manifest = self.stage.manifest(&compared, most);
        let diff = options.diff.then(|| {
            // A name is replaced before it is escaped.
            let diff = self.stage.diff(&compared, &|path| redactions.bytes(path).into_owned());
            redactions.bytes(&diff).into_owned()
        });
        let is_wanted = match options.commit {
            CommitPolicy::Always => true,
            CommitPolicy::OnSuccess => is_ok,
            CommitPolicy::Never => false,
        };
        let (committed, conflicts) = match is_wanted {
            false => (false, Vec::new()),
            true => match self.stage.commit(&compared, reached).map_err(failed)? {
                Commit::Done => (true, Vec::new()),
                Commit::Partial(paths) => {
                    manifest.leave_out(&paths);
                    (true, paths)
                }
                Commit::Conflicts(paths) => (false, paths),
            },
        };
        let text = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
        let conflicts = conflicts.iter().map(text).collect();
        if let (false, Some(to)) = (committed, &options.keep_staged) {
            copy_out(view.as_fd(), to).map_err(|error| Error::KeepStaged {
                path: to.path().to_owned(),
                reason: shown(&error),
                is_disk_full: error.is_disk_full(),
            })?;
        }
        let staging = match self.stage.work() {
            Some(_) => StagingMethod::Overlay,
            None => StagingMethod::Copy,
        };
        let mut changes = Changes { committed, staging, conflicts, manifest };
        redactions.changes(&mut changes);
        Ok(StagedEnd { changes, diff })
    }
}
