//! A private directory of a server, for the io dir of its sandboxes and the data of its service.
//!
//! It is locked. The kernel releases the lock however the server ends, and the next server removes
//! what is not locked.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use sandbox_dirfd::{create_locked_dir, create_private_dir, lock_directory, remove_tree};

/// A private directory. Dropping it removes it with its content.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf,
    parent: OwnedFd,
    name: String,
    _lock: OwnedFd,
}

impl PrivateDir {
    /// Creates one in `parent`, a directory for such directories alone, and removes those there that
    /// are not in use any more.
    ///
    /// # Errors
    ///
    /// If it cannot be created.
    pub fn create(parent: &Path) -> io::Result<Self> {
        create_private_dir(parent)?;
        // Its path has no links: another user's sandbox could redirect them.
        let path = parent.canonicalize()?;
        let parent = OwnedFd::from(fs::File::open(&path)?);
        reap(&path, &parent);
        let (name, lock) = create_locked_dir(&parent, "")?;
        Ok(Self { path: path.join(&name), parent, name, _lock: lock })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of an io dir in it, which does not exist yet.
    #[must_use]
    pub fn io_dir(&self) -> PathBuf {
        self.path.join("files")
    }

    /// The path of a service's data directory in it, which does not exist yet.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.path.join("service")
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        if let Err(errno) = remove_tree(self.parent.as_fd(), OsStr::new(&self.name)) {
            tracing::warn!(path = %self.path.display(), %errno, "cannot remove a private directory");
        }
    }
}

/// Removes the directories that are not in use.
fn reap(parent: &Path, opened: &OwnedFd) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        // Held until it is removed.
        if let Ok(_lock) = lock_directory(opened, &name)
            && let Err(errno) = remove_tree(opened.as_fd(), &name)
        {
            tracing::debug!(?name, %errno, "cannot remove an unused directory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_dir_ends_with_its_server_or_with_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let parent = folder.path().join("mcp");
        let [one, other] =
            [PrivateDir::create(&parent).unwrap(), PrivateDir::create(&parent).unwrap()];
        fs::write(one.io_dir(), "x").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().exists());
        // As a killed server leaves one.
        let left = parent.join("0123456789abcdef/files");
        fs::create_dir_all(&left).unwrap();
        let next = PrivateDir::create(&parent).unwrap();
        assert!(!left.exists() && other.path().exists() && next.path().exists());
    }

    #[test]
    fn servers_that_start_together_leave_each_others_directories_alone() {
        let folder = tempfile::tempdir().unwrap();
        let parent = folder.path().join("mcp");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let private = PrivateDir::create(&parent).unwrap();
                        assert!(private.path().exists());
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 0);
    }
}
