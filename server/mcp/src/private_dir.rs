//! A private io dir, and the data directory of a private service, that live as long as their server.
//!
//! They are in a locked directory. The kernel releases the lock however the server ends, and the next
//! server removes what is not locked.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use sandbox_dirfd::{create_private_dir, lock_directory, random_hex, remove_tree};

/// The name of the io dir in its locked directory.
const FILES: &str = "files";

/// A private io dir. Dropping it removes it with its content.
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
        let parent = &parent.canonicalize()?;
        let opened = OwnedFd::from(fs::File::open(parent)?);
        reap(parent, &opened);
        let (name, lock) = loop {
            let name = random_hex::<8>();
            fs::DirBuilder::new().mode(0o700).create(parent.join(&name))?;
            match lock_directory(&opened, &name).map_err(io::Error::from) {
                // Another server saw it before it was locked, and removes it.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::WouldBlock
                    ) => {}
                locked => break (name, locked?),
            }
        };
        let above = parent.join(&name);
        let path = above.join(FILES);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        // Any user of a sandbox may write to it; the directories above admit only this user.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        Ok(Self { path, parent: opened, name, _lock: lock })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a data directory beside it, which does not exist yet.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.path.with_file_name("service")
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        if let Err(errno) = remove_tree(self.parent.as_fd(), OsStr::new(&self.name)) {
            tracing::warn!(path = %self.path.display(), %errno, "cannot remove a private io dir");
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
            tracing::debug!(?name, %errno, "cannot remove an unused io dir");
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
        fs::write(one.path().join("f"), "x").unwrap();
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
