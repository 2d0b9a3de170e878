//! Folders that were made for an io dir, which go again where they stay empty: also where the
//! controller that made them was killed, so what was made is recorded.
//!
//! Several sandboxes may use one io dir, and only one of them has made it. Each holds a shared
//! lock on it for as long as it uses it, so that nobody removes it under another.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// A folder that was made, as others can find it again.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Recorded {
    path: PathBuf,
    identity: Identity,
}

/// It and no other that has its path since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    device: (u32, u32),
    inode: u64,
    /// When it was made, in seconds and nanoseconds, by its filesystem: inodes are used again.
    born: Option<(i64, u32)>,
}

/// A folder that was made.
#[derive(Debug)]
struct Folder {
    /// The one that it was made in. Held, so that whatever the names above come to mean, no other
    /// is removed in its place.
    parent: OwnedFd,
    name: OsString,
    identity: Identity,
}

/// Folders that were made.
#[derive(Debug)]
pub(crate) struct CreatedDirs {
    /// Outermost first.
    folders: Vec<Folder>,
    /// The same.
    recorded: Vec<Recorded>,
    /// Where they are recorded.
    record: Option<PathBuf>,
}

/// What came of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// There is nothing to remove any more, or something is in it.
    Done,
    /// Somebody uses it.
    InUse,
}

/// To reach a folder. What is there may be reached through links: that is the caller's own word.
const REACH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl CreatedDirs {
    /// Makes a folder and those above it, where they are missing, each by the descriptor of the
    /// one before, and records in `records` which.
    pub fn make(path: &Path, records: &Path) -> io::Result<Self> {
        let is_missing = |folder: &&Path| {
            let found = fs::symlink_metadata(folder);
            matches!(found, Err(error) if error.kind() == io::ErrorKind::NotFound)
        };
        let mut missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        missing.reverse();
        let mut made = Self { folders: Vec::new(), recorded: Vec::new(), record: None };
        match made.fill(&missing, records) {
            Ok(()) => Ok(made),
            Err(error) => {
                made.remove_if_empty();
                Err(error)
            }
        }
    }

    fn fill(&mut self, missing: &[&Path], records: &Path) -> io::Result<()> {
        let Some(above) = missing.first().and_then(|first| first.parent()) else { return Ok(()) };
        let mut parent = rustix::fs::open(above, REACH, Mode::empty())?;
        for (path, name) in missing.iter().filter_map(|path| Some((path, path.file_name()?))) {
            // Where another run was quicker it is that one's to remove.
            let is_new = match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(error.into()),
            };
            let flags = REACH | OFlags::NOFOLLOW;
            let next = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
            let parent = std::mem::replace(&mut parent, next);
            if is_new {
                let identity = Identity::look(parent.as_fd(), name)?;
                let path = path.to_path_buf();
                self.recorded.push(Recorded { path, identity: identity.clone() });
                self.folders.push(Folder { parent, name: name.to_owned(), identity });
                self.write(records)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, records: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(records)?;
        let record = self
            .record
            .get_or_insert_with(|| records.join(sandbox_dirfd::random_hex::<8>()))
            .clone();
        // Written beside it, so that no record is ever half of one.
        let part = record.with_extension("part");
        fs::write(&part, serde_json::to_vec(&self.recorded)?)?;
        fs::rename(part, record)
    }

    /// Removes those that are empty and that nobody uses.
    pub fn remove_if_empty(&self) {
        if remove(&self.folders) == Removal::Done
            && let Some(record) = &self.record
        {
            _ = fs::remove_file(record);
        }
    }
}

/// Removes what a dead controller made, by its records, and those that are of no use any more.
pub(crate) fn reap(records: &Path) {
    for entry in fs::read_dir(records).into_iter().flatten().flatten() {
        let record = entry.path();
        let text = fs::read(&record).unwrap_or_default();
        let recorded: Vec<Recorded> = serde_json::from_slice(&text).unwrap_or_default();
        let folders: Vec<Folder> = recorded.into_iter().filter_map(Recorded::reach).collect();
        if remove(&folders) == Removal::Done {
            _ = fs::remove_file(record);
        }
    }
    _ = fs::remove_dir(records);
}

impl Recorded {
    /// `None` where it is gone, or where there is no telling what is at its path by now.
    fn reach(self) -> Option<Folder> {
        self.identity.born?;
        let parent = rustix::fs::open(self.path.parent()?, REACH, Mode::empty()).ok()?;
        let name = self.path.file_name()?.to_owned();
        Some(Folder { parent, name, identity: self.identity })
    }
}

/// The innermost first.
fn remove(folders: &[Folder]) -> Removal {
    match folders.iter().rev().find(|folder| folder.remove() == Removal::InUse) {
        Some(_) => Removal::InUse,
        None => Removal::Done,
    }
}

impl Identity {
    fn look(parent: BorrowedFd<'_>, name: &OsStr) -> Result<Self, Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let stat = rustix::fs::statx(parent, name, flags, StatxFlags::INO | StatxFlags::BTIME)?;
        let has_born = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        Ok(Self {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            born: has_born.then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)),
        })
    }
}

impl Folder {
    /// Removes it if it is still where it was made, empty, and nobody uses it. What has come there
    /// since the look is removed only if it is an empty directory.
    fn remove(&self) -> Removal {
        if Identity::look(self.parent.as_fd(), &self.name).as_ref() != Ok(&self.identity) {
            return Removal::Done;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.parent, &self.name, flags, Mode::empty());
        let lock = FlockOperation::NonBlockingLockExclusive;
        if let Ok(fd) = &opened
            && rustix::fs::flock(fd, lock) == Err(Errno::WOULDBLOCK)
        {
            return Removal::InUse;
        }
        _ = rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
        if let Ok(fd) = &opened {
            let_go(fd);
        }
        Removal::Done
    }
}

/// Says that a folder is in use, for as long as what comes back lives; `None` where that cannot be
/// said of it.
///
/// # Errors
///
/// Where somebody has removed it.
pub(crate) fn hold(folder: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::openat(folder, ".", flags, Mode::empty()) else {
        // One that we may not list: whoever made it could not look whether it is empty either.
        return Ok(None);
    };
    // Whoever removes it holds its lock for a moment only; a longer one is none of ours.
    let mut is_held = false;
    for _ in 0..TRIES {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => std::thread::yield_now(),
            locked => {
                is_held = locked.is_ok();
                break;
            }
        }
    }
    if rustix::fs::fstat(&fd)?.st_nlink == 0 {
        return Err(Errno::NOENT);
    }
    Ok(is_held.then_some(fd))
}

/// Ends what [`hold`] says. Closing the descriptor alone would not, while a process that another
/// thread is just starting has a copy of it.
pub(crate) fn let_go(held: &OwnedFd) {
    _ = rustix::fs::flock(held, FlockOperation::Unlock);
}

/// How often a lock is asked for that others hold for moments.
const TRIES: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    struct Place {
        dir: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().unwrap() }
        }
        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }
        fn make(&self, name: &str) -> CreatedDirs {
            CreatedDirs::make(&self.path(name), &self.path("records")).unwrap()
        }
        /// Holds it, as a sandbox that uses it does.
        fn held(&self, name: &str) -> OwnedFd {
            let fd = fs::File::open(self.path(name)).unwrap();
            hold(fd.as_fd()).unwrap().unwrap()
        }
    }

    #[test]
    fn empty_directories_of_a_dead_controller_are_removed() {
        let place = Place::new();
        fs::create_dir(place.path("there")).unwrap();
        place.make("there/a/b");
        reap(&place.path("records"));
        assert!(place.path("there").exists() && !place.path("there/a").exists());
        assert!(!place.path("records").exists());

        place.make("a/b");
        fs::write(place.path("a/f"), "").unwrap();
        reap(&place.path("records"));
        assert!(place.path("a/f").exists() && !place.path("a/b").exists());
        assert!(!place.path("records").exists(), "it has become somebody's");
    }

    #[test]
    fn a_folder_that_is_another_by_now_stays() {
        let place = Place::new();
        let made = place.make("a");
        fs::remove_dir(place.path("a")).unwrap();
        // Its inode may well be the same.
        fs::create_dir(place.path("a")).unwrap();
        made.remove_if_empty();
        assert!(place.path("a").exists());
        place.make("b");
        fs::rename(place.path("b"), place.path("c")).unwrap();
        std::os::unix::fs::symlink("c", place.path("b")).unwrap();
        reap(&place.path("records"));
        assert!(place.path("b").exists() && place.path("c").exists());
    }

    #[test]
    fn a_folder_that_another_sandbox_uses_stays_for_as_long() {
        let place = Place::new();
        let made = place.make("a");
        let other = place.held("a");
        made.remove_if_empty();
        reap(&place.path("records"));
        assert!(place.path("a").exists());
        drop(other);
        reap(&place.path("records"));
        assert!(!place.path("a").exists());
    }

    #[test]
    fn one_that_was_removed_meanwhile_cannot_be_held() {
        let place = Place::new();
        let made = place.make("a");
        let fd = fs::File::open(place.path("a")).unwrap();
        made.remove_if_empty();
        assert_eq!(hold(fd.as_fd()).unwrap_err(), Errno::NOENT);
    }

    #[test]
    fn a_record_that_is_none_removes_nothing() {
        let place = Place::new();
        place.make("a");
        let records: Vec<_> = fs::read_dir(place.path("records")).unwrap().flatten().collect();
        fs::write(records[0].path(), "[{").unwrap();
        reap(&place.path("records"));
        assert!(place.path("a").exists() && !place.path("records").exists());
    }
}
