//! Removes a directory with all its content, which a guest may have prepared.
//!
//! A guest's tree may be deeper than descriptors suffice for, and its directories may refuse
//! access to their owner. So subdirectories are moved up into the top before they are emptied, and
//! at most three directories are open at a time. Links are removed, and never followed.
//!
//! A process that still has a directory of the tree open can add to it for ever: the removal ends
//! when it does not get ahead.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, chmod, fstat, openat, renameat, unlinkat};
use rustix::io::{Errno, Result};

use crate::walk::{ScanCoverage, Visit, WalkBounds, open_child, walk};
use crate::{random_hex, retry};

/// How many entries of a directory are read before they are removed.
const BATCH: usize = 2048;
/// How many entries are removed before the rest is counted: most trees have fewer.
const UNCOUNTED: u64 = 100_000;
/// How many rounds may leave more than half of what was there when they began.
const MAX_LOST_ROUNDS: u32 = 3;
/// What a tree is taken to have at least of which not everything can be counted.
const DEEP: u64 = 1 << 20;
/// The bounds of a count. Each level holds a descriptor.
const COUNT: WalkBounds =
    WalkBounds { entries: 1 << 24, depth: 256, time: Duration::from_secs(10) };

/// Removes the directory `name` in `parent` with all its content. A mount below it is an error.
///
/// # Errors
///
/// If something cannot be removed; the rest may be removed. `EAGAIN` if another process adds to it.
pub fn remove_tree(parent: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
    empty(&open(parent, name.as_bytes())?, UNCOUNTED, || {})?;
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Like [`remove_tree`], for an open directory. A writer of `parent` may have replaced it: the
/// replacement is left alone, unless it is an empty directory.
///
/// # Errors
///
/// As of [`remove_tree`].
pub fn remove_opened_tree(parent: BorrowedFd<'_>, name: &OsStr, opened: &OwnedFd) -> Result<()> {
    empty(opened, UNCOUNTED, || {})?;
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(()),
        removed => removed,
    }
}

/// How many entries may still be removed.
struct Budget<'a> {
    top: &'a OwnedFd,
    /// In this round.
    left: u64,
    /// The least that a round has.
    round: u64,
    /// What was there when this round began; `None` in the first one, which begins without a count.
    counted: Option<u64>,
    lost_rounds: u32,
}

impl Budget<'_> {
    /// Takes an entry into account that is moved or removed: each is moved once at most, and then
    /// removed. When a round has done so with all that was there at its beginning, what is there now was
    /// added, or was too deep to be counted.
    fn take(&mut self) -> Result<()> {
        if self.left == 0 {
            // Never more than before: who adds does not buy time.
            let most = self.counted.unwrap_or(COUNT.entries);
            let bounds = WalkBounds { entries: most, ..COUNT };
            let now = match walk(self.top, bounds, |_, _, _| Visit::Enter) {
                (seen, ScanCoverage::Deep) => seen.max(DEEP).min(most),
                (seen, _) => seen.min(most),
            };
            if self.counted.is_some_and(|before| now > before / 2) {
                self.lost_rounds += 1;
            }
            if self.lost_rounds == MAX_LOST_ROUNDS {
                return Err(Errno::AGAIN);
            }
            let now = now.max(self.round);
            (self.counted, self.left) = (Some(now), 2 * now);
        }
        self.left -= 1;
        Ok(())
    }
}

/// Removes everything in a directory. The first `round` entries are removed without counting what is
/// there; `each` is called before each entry.
fn empty(top: &OwnedFd, round: u64, mut each: impl FnMut()) -> Result<()> {
    let mut budget = Budget { top, left: round, round, counted: None, lost_rounds: 0 };
    let mut take = || {
        each();
        budget.take()
    };
    loop {
        let names = batch(top)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            take()?;
            if !is_directory_after_unlink(top.as_fd(), &name)? {
                continue;
            }
            let directory = open(top.as_fd(), name.to_bytes())?;
            loop {
                flatten(&directory, top.as_fd(), &mut take)?;
                match unlinkat(top, &name, AtFlags::REMOVEDIR) {
                    // Something was added since.
                    Err(Errno::NOTEMPTY | Errno::EXIST) => take()?,
                    removed => break removed?,
                }
            }
        }
    }
}

/// Empties a directory: its subdirectories are moved into `top`.
fn flatten(
    directory: &OwnedFd,
    top: BorrowedFd<'_>,
    take: &mut impl FnMut() -> Result<()>,
) -> Result<()> {
    loop {
        let names = batch(directory)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            take()?;
            if is_directory_after_unlink(directory.as_fd(), &name)? {
                // A directory that moves is written to: its `..` changes.
                drop(open(directory.as_fd(), name.to_bytes())?);
                renameat(directory, &name, top, random_hex::<16>())?;
            }
        }
    }
}

/// Removes a name that is not a directory's; returns whether it is one.
fn is_directory_after_unlink(parent: BorrowedFd<'_>, name: &CString) -> Result<bool> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(false),
        Err(Errno::ISDIR) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Opens a directory, and gives its owner access to it if it has none.
fn open(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Not the root of a mount: its mode is another's.
    let found = retry(|| open_child(parent, name, flags | OFlags::PATH))?;
    if Mode::from_raw_mode(fstat(&found)?.st_mode) & Mode::RWXU != Mode::RWXU {
        // By its descriptor: a path could be another file's by now.
        chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), Mode::RWXU)?;
    }
    retry(|| openat(&found, ".", flags | OFlags::RDONLY, Mode::empty()))
}

/// The names of some entries; empty for an empty directory.
fn batch(directory: &OwnedFd) -> Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if ![&b"."[..], b".."].contains(&entry.file_name().to_bytes()) {
            names.push(entry.file_name().to_owned());
        }
        if names.len() == BATCH {
            break;
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use rustix::fs::mkdirat;

    fn removed(dir: &tempfile::TempDir) -> Result<()> {
        remove_tree(File::open(dir.path()).unwrap().as_fd(), OsStr::new("tree"))
    }

    #[test]
    fn tree_deeper_than_descriptors_is_removed() {
        const DEPTH: usize = 3000;
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        let mut at = OwnedFd::from(File::open(dir.path().join("tree")).unwrap());
        for _ in 0..DEPTH {
            mkdirat(&at, "d", Mode::RWXU).unwrap();
            mkdirat(&at, "e", Mode::RWXU).unwrap();
            at = open(at.as_fd(), b"d").unwrap();
        }
        drop(at);
        removed(&dir).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(removed(&dir), Err(Errno::NOENT));
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (outside, tree) = (dir.path().join("outside"), dir.path().join("tree"));
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("f"), "kept").unwrap();
        fs::create_dir_all(tree.join("a/b")).unwrap();
        symlink(&outside, tree.join("link")).unwrap();
        symlink(&outside, tree.join("a/b/link")).unwrap();
        removed(&dir).unwrap();
        assert!(!tree.exists());
        assert_eq!(fs::read_to_string(outside.join("f")).unwrap(), "kept");
        symlink(&outside, &tree).unwrap();
        removed(&dir).unwrap_err();
        assert!(outside.join("f").exists());
    }

    #[test]
    fn directories_without_permissions_and_many_entries_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("closed/inner")).unwrap();
        for number in 0..2 * BATCH + 1 {
            fs::write(tree.join("closed/inner").join(number.to_string()), "").unwrap();
        }
        for closed in ["closed/inner", "closed"] {
            fs::set_permissions(tree.join(closed), fs::Permissions::from_mode(0o000)).unwrap();
        }
        removed(&dir).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn removal_ends_while_another_process_adds_to_the_tree() {
        let tree = tempfile::tempdir().unwrap();
        let top = OwnedFd::from(File::open(tree.path()).unwrap());
        fs::create_dir(tree.path().join("held")).unwrap();
        // As a process with this working directory sees it, wherever it is moved.
        let held = File::open(tree.path().join("held")).unwrap();
        let mut number = 0;
        let add = || {
            for _ in 0..2 {
                number += 1;
                if number <= 20 {
                    mkdirat(&held, number.to_string(), Mode::RWXU).unwrap();
                }
            }
        };
        // It lags at first, and catches up.
        empty(&top, 10, add).unwrap();
        assert_eq!(fs::read_dir(tree.path()).unwrap().count(), 0);

        fs::create_dir(tree.path().join("held")).unwrap();
        let held = File::open(tree.path().join("held")).unwrap();
        let mut calls = 0;
        let add = || {
            calls += 1;
            assert!(calls < 10_000, "it does not end");
            for other in 0..2 {
                mkdirat(&held, format!("{calls}-{other}"), Mode::RWXU).unwrap();
            }
        };
        assert_eq!(empty(&top, 10, add), Err(Errno::AGAIN));
    }
}
