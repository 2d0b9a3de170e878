//! Removing a name, or a tree: by descriptor, from directory to directory, never through a link or
//! into another file system.
//!
//! A tree may be deeper than any path is long and than descriptors last, so only one directory is
//! open: from there the way down is a name, and the way up is `..`, taken only if it leads to the
//! very directory that the walk came from. Entries are removed in batches, and a directory is read
//! again from its beginning until nothing is in it.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, fstat, openat, statat, unlinkat};
use rustix::io::Errno;
use sandbox_protocol::message::Change;
use sandbox_protocol::path::{GuestPath, MAX_PATH_BYTES};

use super::entries::{Entry, entry, refuse_special};
use super::resolve::{Root, retry};
use super::temporary::is_temporary;
use super::{FileError, Files, Watch, beneath, not_allowed, protected};

/// Entries that are read of a directory at a time.
const BATCH: usize = 2048;
/// Names of directories that are held of all levels together; beyond it one of each, for there may
/// be any number of levels.
const HELD: usize = 16 << 10;

/// What may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// A file, a link, an empty directory.
    Entry,
    /// A directory with all that is in it, too.
    Tree,
}

/// What was removed.
#[derive(Debug, Clone)]
pub struct Removed {
    /// What was named.
    pub path: GuestPath,
    /// How many entries went; 0 where nothing was there.
    pub entries: u64,
}

/// What it means that nothing is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// An error.
    Refuse,
    /// As good as removed.
    Accept,
}

impl Files {
    /// Removes a file, a symbolic link itself, or a directory.
    ///
    /// # Errors
    ///
    /// [`FileError`]. Of a tree, a part may be gone.
    pub fn remove_entry(
        &self,
        written: &[u8],
        extent: Extent,
        absent: Absent,
        watch: &Watch,
    ) -> Result<Removed, FileError> {
        let place = self.locate_to_write(written)?;
        let removed = self.remove_place(&place, written, extent, watch);
        let entries = match removed {
            // Below what is no directory there is nothing; a file that was written as a directory
            // is there.
            Err(error)
                if absent == Absent::Accept
                    && (error.errno == Some(Errno::NOENT.raw_os_error())
                        || error.errno == Some(Errno::NOTDIR.raw_os_error())
                            && !place.wants_directory) =>
            {
                0
            }
            removed => removed?,
        };
        Ok(Removed { path: place.path, entries })
    }

    fn remove_place(
        &self,
        place: &super::mounts::Place<'_>,
        written: &[u8],
        extent: Extent,
        watch: &Watch,
    ) -> Result<u64, FileError> {
        let fail = |errno| FileError::system(errno, written);
        let entry = entry(place, written)?.ok_or_else(|| FileError::mount_root(written))?;
        let kind = FileType::from_raw_mode(entry.stat().map_err(fail)?.st_mode);
        if kind != FileType::Directory {
            refuse_special(kind, written)?;
            if place.wants_directory {
                return Err(fail(Errno::NOTDIR));
            }
            let pending = self.announced.announce(&place.path, true, Change::Remove);
            let removed = retry(|| unlinkat(&entry.directory, entry.name, AtFlags::empty()));
            match removed {
                Ok(()) => pending.done(),
                Err(_) => pending.failed(),
            }
            return removed.map(|()| 1).map_err(fail);
        }
        if self.policy.is_pinned(&place.path) {
            return Err(protected(written));
        }
        if self.policy.is_narrower_below(&place.path) {
            return Err(not_allowed(written));
        }
        let below = match extent {
            Extent::Entry => 0,
            Extent::Tree => {
                let root = entry.root;
                Tree { files: self, root, path: &place.path, written, watch, removed: 0, held: 0 }
                    .empty(&entry)?
            }
        };
        let removed = retry(|| unlinkat(&entry.directory, entry.name, AtFlags::REMOVEDIR));
        removed.map(|()| below + 1).map_err(fail)
    }
}

/// A tree that is being removed.
struct Tree<'a> {
    files: &'a Files,
    root: &'a Root<'a>,
    /// Where the tree is.
    path: &'a GuestPath,
    written: &'a [u8],
    watch: &'a Watch,
    removed: u64,
    /// Names of directories that are held.
    held: usize,
}

/// A directory on the way to where the walk is.
struct Level {
    dev: u64,
    ino: u64,
    /// Its name in the one above.
    name: Vec<u8>,
    /// Directories in it that are to be emptied before it is read again.
    inner: Vec<Vec<u8>>,
    /// It was read to its end, and all that was found goes: it need not be read again.
    is_done: bool,
}

impl Level {
    fn new(fd: &OwnedFd, name: &[u8]) -> rustix::io::Result<Self> {
        let stat = fstat(fd)?;
        let (dev, ino) = (stat.st_dev, stat.st_ino);
        Ok(Self { dev, ino, name: name.to_vec(), inner: Vec::new(), is_done: false })
    }

    fn is(&self, fd: &OwnedFd) -> rustix::io::Result<bool> {
        let stat = fstat(fd)?;
        Ok((stat.st_dev, stat.st_ino) == (self.dev, self.ino))
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

impl Tree<'_> {
    /// Removes all that is in the tree's top, and says how much it was.
    fn empty(mut self, top: &Entry<'_>) -> Result<u64, FileError> {
        use std::os::fd::AsFd as _;
        let opened = self.root.child(top.directory.as_fd(), top.name, DIRECTORY);
        let mut here = opened.map_err(|errno| beneath(errno, self.written))?;
        let mut levels =
            vec![Level::new(&here, top.name).map_err(|errno| self.fail(&[], b"", errno))?];
        loop {
            self.watch.check()?;
            let level = levels.last_mut().expect("the walk ends at the top");
            if let Some(name) = level.inner.pop() {
                self.held -= 1;
                match self.root.child(here.as_fd(), &name, DIRECTORY) {
                    Ok(inner) => {
                        let level = Level::new(&inner, &name);
                        levels.push(level.map_err(|errno| self.fail(&levels, b"", errno))?);
                        here = inner;
                    }
                    // Gone, or no directory any more: the next reading says what it is now.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => level.is_done = false,
                    Err(errno) => return Err(self.fail(&levels, &name, errno)),
                }
                continue;
            }
            if !level.is_done {
                let directories = HELD.saturating_sub(self.held).max(1);
                let batch = read_batch(&here, directories);
                let batch = batch.map_err(|errno| self.fail(&levels, b"", errno))?;
                let is_empty = batch.entries.is_empty();
                // The top is read until nothing is in it: nobody reads it again after that.
                if let Some(below_top) = levels.get_mut(1..).and_then(<[Level]>::last_mut) {
                    below_top.is_done = batch.is_all;
                }
                for (name, kind) in batch.entries {
                    self.watch.check()?;
                    self.take(&here, &mut levels, name, kind)?;
                }
                if !is_empty {
                    continue;
                }
            }
            let Some(emptied) = levels.pop().filter(|_| !levels.is_empty()) else {
                return Ok(self.removed);
            };
            here = self.up(&here, &levels)?;
            match retry(|| unlinkat(&here, emptied.name.as_slice(), AtFlags::REMOVEDIR)) {
                Ok(()) => self.removed += 1,
                // Somebody has put something there, or taken it away: see when it is read again.
                Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {
                    levels.last_mut().expect("the walk ends at the top").is_done = false;
                }
                Err(errno) => return Err(self.fail(&levels, &emptied.name, errno)),
            }
        }
    }

    /// Removes an entry, or remembers a directory.
    fn take(
        &mut self,
        here: &OwnedFd,
        levels: &mut [Level],
        name: Vec<u8>,
        kind: FileType,
    ) -> Result<(), FileError> {
        let path = self.guest_path(levels, &name);
        if path.as_ref().is_some_and(|path| self.files.policy.is_protected(path)) {
            return Err(protected(&self.written_path(levels, &name)));
        }
        let level = levels.last_mut().expect("the walk ends at the top");
        if kind == FileType::Directory {
            level.inner.push(name);
            self.held += 1;
            return Ok(());
        }
        // A path that is too long to be named cannot be told either, and our own is not.
        let announced = &self.files.announced;
        let path = path.filter(|_| !is_temporary(&name));
        let pending = path.as_ref().map(|path| announced.announce(path, true, Change::Remove));
        match retry(|| unlinkat(here, name.as_slice(), AtFlags::empty())) {
            Ok(()) => {
                self.removed += 1;
                if let Some(pending) = pending {
                    pending.done();
                }
                Ok(())
            }
            Err(errno) => {
                if let Some(pending) = pending {
                    pending.failed();
                }
                match errno {
                    // Gone, or another thing by now: see when it is read again.
                    Errno::NOENT | Errno::ISDIR => {
                        level.is_done = false;
                        Ok(())
                    }
                    errno => Err(self.fail(levels, &name, errno)),
                }
            }
        }
    }

    /// The directory that the walk came from.
    fn up(&self, here: &OwnedFd, levels: &[Level]) -> Result<OwnedFd, FileError> {
        let flags = DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fail = |errno| self.fail(levels, b"", errno);
        let above = retry(|| openat(here, "..", flags, Mode::empty())).map_err(fail)?;
        let level = levels.last().expect("the walk ends at the top");
        if level.is(&above).map_err(fail)? {
            Ok(above)
        } else {
            // The directory was moved while the walk was in it.
            Err(fail(Errno::AGAIN))
        }
    }

    /// `top` and the path below it.
    fn below(top: &[u8], levels: &[Level], name: &[u8]) -> Vec<u8> {
        let mut path = top.to_vec();
        let names = levels.iter().skip(1).map(|level| level.name.as_slice());
        for name in names.chain([name]).filter(|name| !name.is_empty()) {
            if !path.ends_with(b"/") {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        path
    }

    /// `None` where it is too long to be one.
    fn guest_path(&self, levels: &[Level], name: &[u8]) -> Option<GuestPath> {
        // Every level takes two bytes at least.
        if levels.len() > MAX_PATH_BYTES / 2 {
            return None;
        }
        GuestPath::new(Self::below(self.path.as_bytes(), levels, name)).ok()
    }

    fn written_path(&self, levels: &[Level], name: &[u8]) -> Vec<u8> {
        Self::below(self.written, levels, name)
    }

    fn fail(&self, levels: &[Level], name: &[u8], errno: Errno) -> FileError {
        beneath(errno, &self.written_path(levels, name))
    }
}

/// Some entries of a directory.
struct Batch {
    entries: Vec<(Vec<u8>, FileType)>,
    /// There are no more.
    is_all: bool,
}

/// Reads a directory from its beginning, until there are enough entries or so many directories.
fn read_batch(directory: &OwnedFd, directories: usize) -> rustix::io::Result<Batch> {
    retry(|| rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(0)))?;
    let mut batch = Batch { entries: Vec::new(), is_all: false };
    let mut left = directories;
    let mut buffer = [std::mem::MaybeUninit::uninit(); 8 << 10];
    let mut entries = RawDir::new(directory, &mut buffer);
    while batch.entries.len() < BATCH && left > 0 {
        let entry = match entries.next() {
            None => {
                batch.is_all = true;
                break;
            }
            Some(Err(Errno::INTR)) => continue,
            Some(entry) => entry?,
        };
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match retry(|| statat(directory, name, AtFlags::SYMLINK_NOFOLLOW))
            {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            },
            known => known,
        };
        left -= usize::from(kind == FileType::Directory);
        batch.entries.push((name.to_vec(), kind));
    }
    Ok(batch)
}
