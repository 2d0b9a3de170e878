//! Where a stage is, by descriptors, and what is done with what is in it.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, Mode, StatxFlags, fstat, futimens, mkdirat, statx, syncfs};
use rustix::io::Errno;
use sandbox_dirfd::{Root, open_directory, remove_opened_tree};

use crate::commit::{self, SkippedPaths};
use crate::copy::times;
use crate::error::StageError;
use crate::journal::Journal;

/// What the name of a stage begins with.
pub(crate) const PREFIX: &str = ".sandboxctl-stage-";
/// The copy in a stage, or the upper layer.
pub(crate) const FILES: &str = "files";
/// What a commit removed from the io dir.
pub(crate) const TRASH: &str = "trash";

/// Where a stage is.
#[derive(Debug)]
pub(crate) struct Location {
    pub parent: OwnedFd,
    pub name: OsString,
    pub path: PathBuf,
    /// The stage itself.
    pub dir: OwnedFd,
    /// Whether it is in the io dir.
    pub is_inside: bool,
}

impl Location {
    pub fn open(&self, name: &str) -> Result<OwnedFd, Errno> {
        open_directory(&self.dir, name)
    }

    /// Makes the directory of what is moved into the io dir, and that of what is removed from it.
    /// Returns the first.
    pub fn make_directories(&self) -> Result<OwnedFd, Errno> {
        mkdirat(&self.dir, TRASH, Mode::RWXU)?;
        let files = make_directory(&self.dir, FILES)?;
        // A writer of the parent could have put their own directory here.
        match fstat(&files)?.st_uid == fstat(&self.dir)?.st_uid {
            true => Ok(files),
            false => Err(Errno::PERM),
        }
    }

    /// Moves what the journal says. Returns what is not moved.
    pub fn apply(
        &self,
        journal: &Journal,
        io_dir: &Root<'_>,
        reached: &mut dyn FnMut(&'static str),
    ) -> Result<SkippedPaths, StageError> {
        let failed = |errno: Errno| StageError::stage(&self.path)(errno.into());
        let (copy, trash) = (self.open(FILES).map_err(failed)?, self.open(TRASH).map_err(failed)?);
        let copy_root = Root::new(copy.as_fd()).map_err(failed)?;
        commit::apply(journal, io_dir, &copy_root, trash.as_fd(), reached).map_err(failed)
    }

    /// Sets the directories that the journal names, after the moves. Adds what cannot be set.
    pub fn set_directories(
        &self,
        journal: &Journal,
        io_dir: &Root<'_>,
        left: &mut SkippedPaths,
    ) -> Result<(), StageError> {
        let set = commit::set_directories(journal, io_dir, left);
        set.map_err(|errno| StageError::stage(&self.path)(errno.into()))
    }

    /// Makes the moves durable, and ends the commit: what has not moved by now is dropped.
    pub fn end(&self) -> Result<(), StageError> {
        let failed = |errno: Errno| StageError::stage(&self.path)(errno.into());
        syncfs(&self.dir).map_err(failed)?;
        // The stage can be removed now.
        Journal::remove(self.dir.as_fd()).map_err(failed)
    }

    /// Removes the stage; whether nothing is left of it.
    pub fn remove(&self) -> bool {
        let remove = || remove_opened_tree(self.parent.as_fd(), &self.name, &self.dir);
        match keeping_times(&self.parent, self.is_inside, remove) {
            Ok(()) | Err(Errno::NOENT) => true,
            // The next sweep tries again.
            Err(errno) => {
                tracing::warn!(path = %self.path.display(), %errno, "cannot remove a stage");
                false
            }
        }
    }
}

pub(crate) fn make_directory(parent: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    mkdirat(&parent, name, Mode::RWXU)?;
    open_directory(parent, name)
}

/// Changes the entries of a directory. If it is the io dir itself, its times stay as they are: only what
/// the run changed is to be seen.
pub(crate) fn keeping_times<T>(
    directory: &OwnedFd,
    is_io_dir: bool,
    change: impl FnOnce() -> T,
) -> T {
    let before = is_io_dir.then(|| fstat(directory).ok()).flatten();
    let changed = change();
    if let Some(stat) = before {
        // Others than the owner cannot set them.
        _ = futimens(directory, &times(&stat));
    }
    changed
}

/// The mount that a directory is in: nothing can be moved from one to another.
pub(crate) fn mount_of(directory: impl AsFd) -> Result<(u64, u64), Errno> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let found = statx(directory, c"", AtFlags::EMPTY_PATH, mask)?;
    let device = (u64::from(found.stx_dev_major) << 32) | u64::from(found.stx_dev_minor);
    Ok((device, found.stx_mnt_id))
}
