//! Names that one process of this user has at a time: each is a locked file, whose lock the kernel
//! releases however the process ends.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Longest name.
const MAX_NAME_BYTES: usize = 128;

/// A name that this process has.
pub(crate) struct NameLock {
    path: PathBuf,
    _locked: File,
}

impl NameLock {
    /// Whether a name can be locked: it has no control characters, and is not too long.
    pub fn is_valid(name: &str) -> bool {
        (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
    }

    /// Takes a valid name, by a file of the directory; none if another process has it.
    pub fn take(directory: &Path, name: &str) -> io::Result<Option<Self>> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        // No name has a control character.
        let path = directory.join(format!("{}.lock", name.replace('/', "\u{1}")));
        loop {
            let mut options = File::options();
            let file = options.create(true).append(true).mode(0o600).open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // The process that had it may have removed it in between: then it is no longer there.
            let opened = file.metadata()?;
            match fs::symlink_metadata(&path) {
                Ok(there) if (there.dev(), there.ino()) == (opened.dev(), opened.ino()) => {
                    return Ok(Some(Self { path, _locked: file }));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        // While it is locked: a process that opens it now finds that it is gone.
        _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_once_until_it_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let names = folder.path().join("names");
        let long = "x".repeat(MAX_NAME_BYTES);
        for name in ["a", "..", "a/b", "/", "ü \"", &long] {
            assert!(NameLock::is_valid(name));
            let taken = NameLock::take(&names, name).unwrap().unwrap();
            assert!(NameLock::take(&names, name).unwrap().is_none(), "{name}");
            assert_eq!(fs::read_dir(&names).unwrap().count(), 1);
            drop(taken);
            assert_eq!(fs::read_dir(&names).unwrap().count(), 0);
        }
        for name in ["", "a\u{1}b", "a\n", &format!("{long}x")] {
            assert!(!NameLock::is_valid(name), "{name:?}");
        }
    }

    #[test]
    fn a_name_passes_from_one_holder_to_the_next_and_two_never_have_it() {
        let folder = tempfile::tempdir().unwrap();
        let holders = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut taken = 0;
                    while taken < 50 {
                        let Some(held) = NameLock::take(folder.path(), "a").unwrap() else {
                            std::thread::yield_now();
                            continue;
                        };
                        use std::sync::atomic::Ordering::SeqCst;
                        assert_eq!(holders.fetch_add(1, SeqCst), 0);
                        assert_eq!(holders.fetch_sub(1, SeqCst), 1);
                        taken += 1;
                        drop(held);
                    }
                });
            }
        });
    }
}
