//! Changes of the io dir: the flags of `run` and `exec`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use sandbox_api::changes::CommitPolicy;

use super::values::one_of;

/// What becomes of the changes of a run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Changes")]
pub struct ChangesArgs {
    /// Write what the run changed in the io dir to this file as JSON (sandboxctl.changes/1); - is
    /// stdout
    #[arg(long = "changes", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,

    /// When to keep the changes; without this and --changes they are made in place
    #[arg(long = "commit", value_name = "WHEN",
        value_parser = one_of(CommitPolicy::ALL, CommitPolicy::as_str))]
    pub commit: Option<CommitPolicy>,

    /// Print a diff of the changes on stderr, or write it to FILE, as `git apply` and `patch` take it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, require_equals = true)]
    pub diff: Option<Option<PathBuf>>,

    /// Copy the io dir as the run left it to this new directory, if its changes are not committed
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub keep_staged: Option<PathBuf>,
}

impl ChangesArgs {
    /// Whether the changes are kept apart from the io dir until the end.
    pub fn is_staged(&self) -> bool {
        let in_place = matches!(self.commit, None | Some(CommitPolicy::Always));
        self.file.is_some() || self.diff.is_some() || self.keep_staged.is_some() || !in_place
    }

    /// The file that the diff is written to, unless it is printed.
    pub fn diff_file(&self) -> Option<&Path> {
        self.diff.as_ref()?.as_deref()
    }
}
