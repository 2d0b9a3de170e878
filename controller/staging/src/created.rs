//! Directories that were created for an io dir, and are removed if they stay empty. They are
//! recorded, so that they are removed even if the controller was killed.
//!
//! Several sandboxes may use one io dir, but only one has created it. Each of them holds a shared
//! lock on it, so that none removes it while another uses it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{AtFlags, Dir, FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use sandbox_dirfd::{Links, open_directory, open_path};
use serde::{Deserialize, Serialize};

use crate::tree::Inode;

/// A created directory, as it is recorded for other processes.
#[derive(Debug, Serialize, Deserialize)]
struct Recorded {
    path: PathBuf,
    /// Identifies this directory, and not another one that has its path later.
    inode: Inode,
}

/// A created directory.
#[derive(Debug)]
struct CreatedDir {
    /// Its parent directory. Held open, so that no other directory is removed instead if the path
    /// changes.
    parent: OwnedFd,
    recorded: Recorded,
}

/// The directories that were created for an io dir.
#[derive(Debug)]
pub struct CreatedDirs {
    /// Outermost first.
    dirs: Vec<CreatedDir>,
    /// The file that records them.
    record: Option<PathBuf>,
}

/// The result of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// Nothing is left to remove, or the directory is not empty.
    Done,
    /// The directory is in use.
    InUse,
}

/// Flags to open a directory.
const OPEN_DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl CreatedDirs {
    /// Creates a directory and its missing parents, each by the descriptor of its parent, and
    /// records them in `records`. `links` applies to the links in the existing part of the path.
    /// The new directories get the owner `owner`, if this process may change owners.
    pub fn make(
        path: &Path,
        records: &Path,
        links: Links,
        owner: Option<(u32, u32)>,
    ) -> io::Result<Self> {
        Self::make_with(path, records, links, |dir| {
            if let Some(owner) = owner {
                give(dir, owner);
            }
        })
    }

    /// As [`make`](Self::make): `prepare` is called for each directory, when it is recorded.
    fn make_with(
        path: &Path,
        records: &Path,
        links: Links,
        prepare: impl Fn(&OwnedFd),
    ) -> io::Result<Self> {
        let is_missing = |dir: &&Path| {
            let found = fs::symlink_metadata(dir);
            matches!(found, Err(error) if error.kind() == io::ErrorKind::NotFound)
        };
        let mut missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        missing.reverse();
        let mut created = Self { dirs: Vec::new(), record: None };
        let filled = created.fill(&missing, records, links, prepare);
        filled.inspect_err(|_| created.remove_if_empty())?;
        Ok(created)
    }

    fn fill(
        &mut self,
        missing: &[&Path],
        records: &Path,
        links: Links,
        prepare: impl Fn(&OwnedFd),
    ) -> io::Result<()> {
        let Some(above) = missing.first().and_then(|first| first.parent()) else { return Ok(()) };
        let mut parent = open_path(above, OPEN_DIR, links)?;
        for (path, name) in missing.iter().filter_map(|path| Some((path, path.file_name()?))) {
            // If another run was faster, removing it is that run's responsibility.
            let is_new = match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(error.into()),
            };
            let flags = OPEN_DIR | OFlags::NOFOLLOW;
            let next = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
            let above = std::mem::replace(&mut parent, next);
            if is_new {
                let (path, inode) = (path.to_path_buf(), Inode::at(&above, name)?);
                let recorded = Recorded { path, inode };
                self.dirs.push(CreatedDir { parent: above, recorded });
                // At once: this process may be killed.
                self.write(records)?;
                prepare(&parent);
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
        // Written to a temporary file, so that no record is ever incomplete.
        let part = record.with_extension("part");
        let recorded: Vec<_> = self.dirs.iter().map(|dir| &dir.recorded).collect();
        fs::write(&part, serde_json::to_vec(&recorded)?)?;
        fs::rename(part, record)
    }

    /// Removes the empty ones that are not in use.
    pub fn remove_if_empty(&self) {
        if remove(&self.dirs) == Removal::Done
            && let Some(record) = &self.record
        {
            _ = fs::remove_file(record);
        }
    }
}

/// Gives a new directory to its owner, if this process may. A writer of the parent could have
/// swapped it for another directory, whose content must not change owners.
fn give(dir: &OwnedFd, (uid, gid): (u32, u32)) {
    let is_itself = |name: &[u8]| matches!(name, b"." | b"..");
    // Its descriptor only names it.
    let opened = open_directory(dir, ".");
    let is_empty = opened.and_then(Dir::new).is_ok_and(|mut entries| {
        entries.all(|entry| entry.is_ok_and(|entry| is_itself(entry.file_name().to_bytes())))
    });
    if is_empty {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        _ = rustix::fs::chownat(dir, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH);
    }
}

/// Removes directories that a dead controller created, by its records, and records that are no
/// longer needed.
pub fn reap(records: &Path) {
    for entry in fs::read_dir(records).into_iter().flatten().flatten() {
        let record = entry.path();
        let text = fs::read(&record).unwrap_or_default();
        let recorded: Vec<Recorded> = serde_json::from_slice(&text).unwrap_or_default();
        let dirs: Vec<CreatedDir> = recorded.into_iter().filter_map(Recorded::open).collect();
        if remove(&dirs) == Removal::Done {
            _ = fs::remove_file(record);
        }
    }
    _ = fs::remove_dir(records);
}

impl Recorded {
    /// `None` if it is gone, or if it is unclear what is at its path now.
    fn open(self) -> Option<CreatedDir> {
        self.inode.born?;
        let parent = rustix::fs::open(self.path.parent()?, OPEN_DIR, Mode::empty()).ok()?;
        Some(CreatedDir { parent, recorded: self })
    }
}

/// The innermost first.
fn remove(dirs: &[CreatedDir]) -> Removal {
    match dirs.iter().rev().find(|dir| dir.remove() == Removal::InUse) {
        Some(_) => Removal::InUse,
        None => Removal::Done,
    }
}

impl CreatedDir {
    /// Removes the directory if it is still at its path, empty, and not in use. If another one was
    /// put there after the check, it is only removed if it is an empty directory.
    fn remove(&self) -> Removal {
        let Self { parent, recorded: Recorded { path, inode } } = self;
        let Some(name) = path.file_name() else { return Removal::Done };
        if Inode::at(parent, name) != Ok(*inode) {
            return Removal::Done;
        }
        let opened = open_directory(parent, name);
        let lock = FlockOperation::NonBlockingLockExclusive;
        if let Ok(fd) = &opened
            && rustix::fs::flock(fd, lock) == Err(Errno::WOULDBLOCK)
        {
            return Removal::InUse;
        }
        _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
        if let Ok(fd) = &opened {
            release(fd);
        }
        Removal::Done
    }
}

/// Marks a directory as in use, for as long as the returned descriptor is open; `None` if it cannot
/// be marked.
///
/// # Errors
///
/// If the directory was removed.
pub fn hold(dir: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    let Ok(fd) = open_directory(dir, ".") else {
        // Unreadable for this user, so its creator could not check whether it is empty either.
        return Ok(None);
    };
    // A remover holds the exclusive lock only for a moment; a longer lock is not sandboxctl's.
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

/// Releases a lock of [`hold`]. Closing the descriptor alone would not, while a process that
/// another thread is just starting has a copy of it.
pub fn release(held: &OwnedFd) {
    _ = rustix::fs::flock(held, FlockOperation::Unlock);
}

/// How often to retry a lock that others hold only briefly.
const TRIES: usize = 100;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().unwrap() }
        }
        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }
        fn make(&self, name: &str) -> CreatedDirs {
            let (path, records) = (self.path(name), self.path("records"));
            CreatedDirs::make(&path, &records, Links::Follow, None).unwrap()
        }
        /// Holds it, like a sandbox that uses it.
        fn held(&self, name: &str) -> OwnedFd {
            let fd = fs::File::open(self.path(name)).unwrap();
            hold(fd.as_fd()).unwrap().unwrap()
        }
    }

    #[test]
    fn empty_directories_of_a_dead_controller_are_removed() {
        let place = Fixture::new();
        fs::create_dir(place.path("there")).unwrap();
        place.make("there/a/b");
        reap(&place.path("records"));
        assert!(place.path("there").exists() && !place.path("there/a").exists());
        assert!(!place.path("records").exists());

        place.make("a/b");
        fs::write(place.path("a/f"), "").unwrap();
        reap(&place.path("records"));
        assert!(place.path("a/f").exists() && !place.path("a/b").exists());
        assert!(!place.path("records").exists(), "it has become the place of another");
    }

    #[test]
    fn directory_is_recorded_before_anything_else_is_done_with_it() {
        let place = Fixture::new();
        let (path, records) = (place.path("a"), place.path("records"));
        // What the next controller does, if this one is killed here.
        let killed = |_: &OwnedFd| reap(&records);
        CreatedDirs::make_with(&path, &records, Links::Follow, killed).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn new_directories_and_nothing_else_get_the_requested_owner() {
        use std::os::unix::fs::MetadataExt as _;
        let place = Fixture::new();
        fs::create_dir(place.path("there")).unwrap();
        let owner = |name: &str| {
            let made = fs::metadata(place.path(name)).unwrap();
            (made.uid(), made.gid())
        };
        let (path, mine) = (place.path("there/a/b"), owner("there"));
        let made =
            CreatedDirs::make(&path, &place.path("records"), Links::Follow, Some((4321, 4322)));
        assert_eq!(["there/a", "there/a/b"].map(owner), [(4321, 4322); 2]);
        assert_eq!(owner("there"), mine);
        made.unwrap().remove_if_empty();
        // One that has content was put in its place.
        fs::create_dir_all(place.path("other/a")).unwrap();
        let other = OwnedFd::from(fs::File::open(place.path("other")).unwrap());
        give(&other, (4321, 4322));
        assert_eq!(owner("other"), mine);
    }

    #[test]
    fn a_folder_that_is_another_by_now_stays() {
        let place = Fixture::new();
        let created = place.make("a");
        let birth = || fs::metadata(place.path("a")).unwrap().created().unwrap();
        let first = birth();
        // It may well have the same inode number, and until the kernel's clock ticks the same birth time.
        while birth() == first {
            fs::remove_dir(place.path("a")).unwrap();
            fs::create_dir(place.path("a")).unwrap();
        }
        created.remove_if_empty();
        assert!(place.path("a").exists());
        place.make("b");
        fs::rename(place.path("b"), place.path("c")).unwrap();
        std::os::unix::fs::symlink("c", place.path("b")).unwrap();
        reap(&place.path("records"));
        assert!(place.path("b").exists() && place.path("c").exists());
    }

    #[test]
    fn a_folder_that_another_sandbox_uses_stays_for_as_long() {
        let place = Fixture::new();
        let created = place.make("a");
        let other = place.held("a");
        created.remove_if_empty();
        reap(&place.path("records"));
        assert!(place.path("a").exists());
        drop(other);
        reap(&place.path("records"));
        assert!(!place.path("a").exists());
    }

    #[test]
    fn one_that_was_removed_meanwhile_cannot_be_held() {
        let place = Fixture::new();
        let created = place.make("a");
        let fd = fs::File::open(place.path("a")).unwrap();
        created.remove_if_empty();
        assert_eq!(hold(fd.as_fd()).unwrap_err(), Errno::NOENT);
    }

    #[test]
    fn an_invalid_record_removes_nothing() {
        let place = Fixture::new();
        place.make("a");
        let records: Vec<_> = fs::read_dir(place.path("records")).unwrap().flatten().collect();
        fs::write(records[0].path(), "[{").unwrap();
        reap(&place.path("records"));
        assert!(place.path("a").exists() && !place.path("records").exists());
    }

    #[test]
    fn nothing_is_created_through_a_link_that_is_not_to_be_followed() {
        let place = Fixture::new();
        fs::create_dir(place.path("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", place.path("a")).unwrap();
        let (path, records) = (place.path("a/b"), place.path("records"));
        let make = |links| CreatedDirs::make(&path, &records, links, None);
        let refused = make(Links::Refuse).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::LOOP));
        assert!(!place.path("elsewhere/b").exists());
        make(Links::Follow).unwrap();
        assert!(place.path("elsewhere/b").exists());
    }
}
