//! A fresh io dir on disk: a directory of one sandbox, removed with all its content when the
//! sandbox ends.
//!
//! It is in a locked directory in the scratch directory, which only this user can enter. The kernel
//! releases the lock however its controller ends, and the next sweep removes what is not locked.
//! The sandbox sees neither of the two, so it cannot make them inaccessible.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Gid, Mode, RenameFlags, Uid, fchmod, fchown, mkdirat, renameat_with};
use rustix::io::Errno;
use rustix::path::Arg;
use sandbox_dirfd::{
    create_locked_dir, create_private_dir, lock_directory, open_directory, remove_tree,
};

use crate::records::Records;

/// The name of the io dir in its locked directory.
const FILES: &str = "files";

/// A directory in use. Dropping it removes it.
#[derive(Debug)]
pub struct FreshDir {
    scratch: PathBuf,
    parent: OwnedFd,
    name: String,
    /// The locked directory.
    lock: OwnedFd,
}

impl FreshDir {
    /// Creates one in `scratch`, which is created if missing. It gets the owner `owner`, if this
    /// process may change owners.
    ///
    /// # Errors
    ///
    /// If it cannot be created, or others may write to `scratch`.
    pub fn create(scratch: &Path, owner: Option<(u32, u32)>) -> io::Result<Self> {
        create_private_dir(scratch)?;
        let parent = OwnedFd::from(fs::File::open(scratch)?);
        let (name, lock) = create_locked_dir(&parent, "")?;
        let fresh = Self { scratch: scratch.to_owned(), parent, name, lock };
        make_io_dir(&fresh.lock, FILES, owner)?;
        Ok(fresh)
    }

    /// Moves the io dir to `to`, where it is kept. What exists there is not replaced.
    ///
    /// # Errors
    ///
    /// If it cannot be moved.
    pub fn keep(&self, to: &Path) -> io::Result<()> {
        Ok(renameat_with(&self.lock, FILES, CWD, to, RenameFlags::NOREPLACE)?)
    }

    /// The path of the io dir.
    pub fn path(&self) -> PathBuf {
        self.scratch.join(&self.name).join(FILES)
    }
}

impl Drop for FreshDir {
    fn drop(&mut self) {
        if let Err(errno) = remove_tree(self.parent.as_fd(), OsStr::new(&self.name)) {
            // The next sweep tries again.
            tracing::warn!(path = %self.path().display(), %errno, "cannot remove a fresh io dir");
        }
    }
}

/// Creates a directory for `owner`, if this process may change owners, who may write to it.
///
/// # Errors
///
/// If it cannot be created, or exists.
pub fn make_io_dir(
    parent: impl AsFd,
    name: impl Arg + Copy,
    owner: Option<(u32, u32)>,
) -> io::Result<()> {
    mkdirat(&parent, name, Mode::RWXU)?;
    let files = open_directory(parent, name)?;
    if let Some((uid, gid)) = owner {
        _ = fchown(&files, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    }
    Ok(fchmod(&files, Mode::from_raw_mode(0o755))?)
}

/// Removes the directories in `scratch` that are not in use. Where there are no locks, those that
/// are older than `forgotten`.
pub fn reap(scratch: &Path, forgotten: Duration) {
    let Ok(parent) = fs::File::open(scratch) else { return };
    let parent = OwnedFd::from(parent);
    for entry in fs::read_dir(scratch).into_iter().flatten().flatten() {
        let name = entry.file_name();
        // Not an io dir, and it has no lock.
        if name == Records::NAME {
            continue;
        }
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        // Held until it is removed: its name may be one that is just being created.
        let held = lock_directory(&parent, &name);
        let is_unused = match &held {
            Ok(_) => true,
            Err(Errno::WOULDBLOCK | Errno::NOENT | Errno::NOTDIR) => false,
            Err(_) => age().is_some_and(|age| age > forgotten),
        };
        if is_unused && let Err(errno) = remove_tree(parent.as_fd(), &name) {
            tracing::debug!(?name, %errno, "cannot remove an unused io dir");
        }
    }
}

#[cfg(test)]
mod tests;
