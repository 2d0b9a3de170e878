//! Removing a file or a tree: by descriptor, from directory to directory, never through a link or
//! into another file system.
//!
//! A tree may be deeper than the longest path and than descriptors suffice for, so only two
//! directories are open: the top, and the one that is being emptied. The walk goes down by name and
//! up by `..`, and `..` must be the directory that the walk came from. Entries are removed in
//! batches, and a directory is read again from its beginning until it is empty.
//!
//! For every call Landlock checks all directories from the named one up to the mount, so calls deep
//! in a tree are slow: a tree of depth n would cost n². Therefore a directory [`MOVED_DEPTH`]
//! levels below the top is first moved into the top, and emptied there:
//!
//! ```text
//!   top/a/b/…/x/y/z        x stands at the depth where directories are moved
//!   top/.sandboxctl-….rm/z   is y: what is below it is near the top again
//!   top/a/b/…/x              emptied when y is gone, reached by its path from the top
//! ```
//!
//! Nothing is moved if there are protected names: a removal that finds one stops, and what it had
//! moved would be elsewhere, together with the protected name. A tree that was searched first is
//! not deep, and costs little more without moves.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{AtFlags, FileType, OFlags, renameat, unlinkat};
use rustix::io::Errno;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::{Change, Remove, RemoveReply};
use sandbox_protocol::path::{GuestPath, MAX_PATH_BYTES};

use super::access::Files;
use super::calls::count_call;
use super::entries::{Entry, above, entry, expect_same, identity, read_directory, refuse_special};
use super::error::{FileError, beneath, not_allowed, protected};
use super::follow::LastLink;
use super::mounts::LocatedPath;
use super::temporary::{is_temporary, random_name};
use super::watch::Watch;
use sandbox_dirfd::{Identity, Root, again, retry};

/// Number of entries read from a directory at a time.
const BATCH: usize = 2048;
/// Number of directory names kept for all levels together. Above it one per level is kept, because
/// there may be any number of levels.
const HELD: usize = 16 << 10;
/// The greatest depth of a directory below the top before its subdirectories are moved up.
const MOVED_DEPTH: usize = 32;
/// The suffix of a directory's name in the top while it is emptied there.
const MOVED_SUFFIX: &str = ".rm";

impl Files {
    /// Removes a file, a symbolic link itself, or a directory.
    ///
    /// # Errors
    ///
    /// [`FileError`]. Part of a tree may have been removed.
    pub fn remove_entry(&self, request: &Remove, watch: &Watch) -> Result<RemoveReply, FileError> {
        let located = self.locate_to_write(request.path.as_bytes(), LastLink::Keep)?;
        let entries = match self.remove_located(&located, request, watch) {
            // It was removed after its lookup.
            Err(error) if request.force && error.errno == Some(Errno::NOENT) => 0,
            removed => removed?,
        };
        Ok(RemoveReply { path: (&located.path).into(), removed: entries > 0, entries })
    }

    fn remove_located(
        &self,
        located: &LocatedPath<'_>,
        request: &Remove,
        watch: &Watch,
    ) -> Result<u64, FileError> {
        let written = request.path.as_bytes();
        let fail = |errno| FileError::system(errno, written);
        let found = entry(located, written).and_then(|entry| {
            let entry = entry.ok_or_else(|| FileError {
                reason: "the io dir itself cannot be removed, only what is in it".to_owned(),
                ..FileError::mount_root(written)
            })?;
            let kind = FileType::from_raw_mode(entry.stat().map_err(fail)?.st_mode);
            Ok((entry, kind))
        });
        let (entry, kind) = match found {
            Err(error) if request.force && error.is_absence() => return Ok(0),
            found => found?,
        };
        located.expect_directory(kind, written)?;
        if kind != FileType::Directory {
            refuse_special(kind, written)?;
            let pending = self.announced.announce(&located.path, true, Change::Remove);
            let removed = retry(|| unlinkat(&entry.directory, entry.name, AtFlags::empty()));
            pending.end(removed.is_ok());
            return removed.map(|()| 1).map_err(fail);
        }
        if self.policy.is_pinned(&located.path) {
            return Err(protected(written));
        }
        if self.policy.is_narrower_below(&located.path) {
            return Err(not_allowed(written));
        }
        let below = if request.recursive {
            // A protected name is found before anything is removed. In a tree too large to be searched
            // first, the removal itself finds it.
            if self.policy.has_protected()
                && let Err(error) =
                    self.files_below(&entry, &located.path, "remove", written, watch)
                && error.kind != ErrorKind::TooLarge
            {
                return Err(error);
            }
            let root = entry.root;
            Tree { files: self, root, path: &located.path, written, watch, removed: 0, held: 0 }
                .empty(&entry)?
        } else {
            0
        };
        let removed = retry(|| unlinkat(&entry.directory, entry.name, AtFlags::REMOVEDIR));
        removed.map(|()| below + 1).map_err(fail)
    }
}

/// A tree that is being removed.
struct Tree<'a> {
    files: &'a Files,
    root: &'a Root<'a>,
    /// The location of the tree.
    path: &'a GuestPath,
    written: &'a [u8],
    watch: &'a Watch,
    removed: u64,
    /// Number of directory names that are kept.
    held: usize,
}

/// A directory on the path to the current one.
struct Level {
    id: Identity,
    /// Its name in its parent.
    name: Vec<u8>,
    /// Its name in the top, if it was moved there.
    moved: Option<String>,
    /// Number of directories between it and the top, at its current location.
    depth: usize,
    /// Subdirectories to be emptied before it is read again.
    inner: Vec<Vec<u8>>,
    /// It was read to its end, and everything found is being removed: no need to read it again.
    is_done: bool,
}

impl Level {
    fn new(
        fd: &OwnedFd,
        name: &[u8],
        moved: Option<String>,
        depth: usize,
    ) -> rustix::io::Result<Self> {
        let (id, name) = (identity(fd)?, name.to_vec());
        Ok(Self { id, name, moved, depth, inner: Vec::new(), is_done: false })
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The current position of the walk.
struct Position {
    /// The top, as the base of names.
    top: OwnedFd,
    /// The directory of the last level.
    here: OwnedFd,
    /// The levels from the top, which is always the first, to it.
    levels: Vec<Level>,
}

impl Position {
    fn last(&mut self) -> &mut Level {
        self.levels.last_mut().expect("the walk ends at the top")
    }

    /// The directory of the last level.
    fn id(&self) -> Identity {
        self.levels.last().expect("the walk ends at the top").id
    }

    /// The depth of names in `here`.
    fn depth(&self) -> usize {
        self.levels.last().map_or(0, |level| level.depth + 1)
    }
}

impl Tree<'_> {
    /// Removes the content of the tree's top, and returns the number of entries.
    fn empty(mut self, top: &Entry<'_>) -> Result<u64, FileError> {
        let opened = self.root.child(top.directory.as_fd(), top.name, DIRECTORY);
        let here = opened.map_err(|errno| beneath(errno, self.written))?;
        let fail = |errno| self.fail(&[], b"", errno);
        let level = Level::new(&here, top.name, None, 0).map_err(fail)?;
        let top = again(here.as_fd()).map_err(fail)?;
        let mut at = Position { top, here, levels: vec![level] };
        loop {
            self.watch.check()?;
            if let Some(name) = at.last().inner.pop() {
                self.held -= 1;
                self.descend(&mut at, name)?;
                continue;
            }
            if !at.last().is_done {
                let directories = HELD.saturating_sub(self.held).max(1);
                count_call(at.depth());
                let (batch, is_all) = read_batch(&at.here, directories)
                    .map_err(|errno| self.fail(&at.levels, b"", errno))?;
                let is_empty = batch.is_empty();
                // The top is read until it is empty: nothing reads it again after that.
                if at.levels.len() > 1 {
                    at.last().is_done = is_all;
                }
                for (name, kind) in batch {
                    self.watch.check()?;
                    self.take(&mut at, name, kind)?;
                }
                if !is_empty {
                    continue;
                }
            }
            let Some(emptied) = at.levels.pop().filter(|_| !at.levels.is_empty()) else {
                return Ok(self.removed);
            };
            self.ascend(&mut at, emptied)?;
        }
    }

    /// Enters a subdirectory of the current directory.
    fn descend(&self, at: &mut Position, name: Vec<u8>) -> Result<(), FileError> {
        let moved = if at.last().depth >= MOVED_DEPTH { self.move_up(at, &name) } else { None };
        count_call(if moved.is_some() { 1 } else { at.depth() });
        let opened = match &moved {
            Some(moved) => self.root.child(at.top.as_fd(), moved.as_bytes(), DIRECTORY),
            None => self.root.child(at.here.as_fd(), &name, DIRECTORY),
        };
        match opened {
            Ok(inner) => {
                let depth = if moved.is_some() { 1 } else { at.depth() };
                let level = Level::new(&inner, &name, moved, depth);
                let level = level.map_err(|errno| self.fail(&at.levels, &name, errno))?;
                at.levels.push(level);
                at.here = inner;
                Ok(())
            }
            // Removed, or no longer a directory: the next read shows what it is now.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                at.last().is_done = false;
                Ok(())
            }
            Err(errno) => Err(self.fail(&at.levels, &name, errno)),
        }
    }

    /// Moves a directory into the top, and returns its name there. `None` if it cannot be moved:
    /// its owner or mode forbids it, or it may contain a protected name.
    fn move_up(&self, at: &Position, name: &[u8]) -> Option<String> {
        if self.files.policy.has_protected() {
            return None;
        }
        let moved = random_name(MOVED_SUFFIX);
        count_call(at.depth());
        retry(|| renameat(&at.here, name, &at.top, moved.as_str())).is_ok().then_some(moved)
    }

    /// Removes the emptied directory when the walk goes back to its parent.
    fn ascend(&mut self, at: &mut Position, emptied: Level) -> Result<(), FileError> {
        at.here = match &emptied.moved {
            None => self.up(at)?,
            Some(_) => self.down_again(at)?,
        };
        count_call(emptied.depth);
        let (directory, name) = match &emptied.moved {
            None => (&at.here, emptied.name.as_slice()),
            Some(moved) => (&at.top, moved.as_bytes()),
        };
        match retry(|| unlinkat(directory, name, AtFlags::REMOVEDIR)) {
            Ok(()) => self.removed += 1,
            // Entries were added or removed from outside: handled when this directory or the top is
            // read again.
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {
                at.last().is_done = false;
            }
            Err(errno) => return Err(self.fail(&at.levels, &emptied.name, errno)),
        }
        Ok(())
    }

    /// Removes an entry, or records a directory.
    fn take(&mut self, at: &mut Position, name: Vec<u8>, kind: FileType) -> Result<(), FileError> {
        if self.files.policy.is_protected_end(self.upward(&at.levels, &name)) {
            return Err(protected(&self.written_path(&at.levels, &name)));
        }
        if kind == FileType::Directory {
            at.last().inner.push(name);
            self.held += 1;
            return Ok(());
        }
        // A path that is too long cannot be reported to the controller, and the names made here
        // are not reported.
        let path = self.guest_path(&at.levels, &name).filter(|_| !is_temporary(&name));
        let announced = &self.files.announced;
        let pending = path.as_ref().map(|path| announced.announce(path, true, Change::Remove));
        count_call(at.depth());
        let removed = retry(|| unlinkat(&at.here, name.as_slice(), AtFlags::empty()));
        if let Some(pending) = pending {
            pending.end(removed.is_ok());
        }
        match removed {
            Ok(()) => self.removed += 1,
            // Removed or replaced: handled when the directory is read again.
            Err(Errno::NOENT | Errno::ISDIR) => at.last().is_done = false,
            Err(errno) => return Err(self.fail(&at.levels, &name, errno)),
        }
        Ok(())
    }

    /// Opens the directory that the walk came from.
    fn up(&self, at: &Position) -> Result<OwnedFd, FileError> {
        count_call(at.depth());
        above(&at.here, at.id()).map_err(|errno| self.fail(&at.levels, b"", errno))
    }

    /// The same if the walk came from a directory that is not the parent: by its path from the top.
    fn down_again(&self, at: &Position) -> Result<OwnedFd, FileError> {
        let fail = |errno| match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => self.fail(&at.levels, b"", Errno::AGAIN),
            errno => self.fail(&at.levels, b"", errno),
        };
        let first = at.levels.iter().rposition(|level| level.moved.is_some()).unwrap_or(0);
        let mut here = self.root.child(at.top.as_fd(), b".", DIRECTORY).map_err(fail)?;
        for (index, level) in at.levels.iter().enumerate().skip(first.max(1)) {
            let name = match &level.moved {
                Some(moved) if index == first => moved.as_bytes(),
                _ => level.name.as_slice(),
            };
            count_call(level.depth);
            here = self.root.child(here.as_fd(), name, DIRECTORY).map_err(fail)?;
        }
        expect_same(here, at.id()).map_err(fail)
    }

    /// The components of a path, in reverse order.
    fn upward<'a>(&'a self, levels: &'a [Level], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let below = levels.iter().skip(1).rev().map(|level| level.name.as_slice());
        std::iter::once(name).chain(below).chain(self.path.components().rev())
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

    /// `None` if it is too long for a path.
    fn guest_path(&self, levels: &[Level], name: &[u8]) -> Option<GuestPath> {
        // Every level takes at least two bytes.
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
type Batch = Vec<(Vec<u8>, FileType)>;

/// Reads a directory from its beginning, until there are enough entries or directories. Returns them, and whether
/// there are no more.
fn read_batch(directory: &OwnedFd, directories: usize) -> rustix::io::Result<(Batch, bool)> {
    retry(|| rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(0)))?;
    let (mut entries, mut left) = (Batch::new(), directories);
    let read = read_directory(directory, Some, |name, kind| {
        left -= usize::from(kind == FileType::Directory);
        entries.push((name.to_vec(), kind));
        if entries.len() == BATCH || left == 0 { Err(None) } else { Ok(()) }
    });
    match read {
        Err(Some(errno)) => Err(errno),
        enough => Ok((entries, enough.is_ok())),
    }
}
