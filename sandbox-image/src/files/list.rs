//! Listing directories, as deep as asked, in order and in bounded memory.
//!
//! Entries come in the order of their paths, component by component. What is still to come is held
//! by name; there is never more of it than may still be given, because what comes last in order is
//! let go first. So a directory of any size costs no more than the limit.

use std::collections::{BinaryHeap, VecDeque};

use rustix::fs::{AtFlags, FileType, OFlags, statat};
use rustix::io::Errno;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::{EntryKind, Timestamp};
use sandbox_protocol::path::GuestPath;

use super::entries::{join, read_directory};
use super::mounts::MountTarget;
use super::names::{kind_of, modified, size_of};
use super::temporary::is_temporary;
use super::{FileError, Files, Watch, beneath};
use sandbox_dirfd::{Root, retry};

/// What a list is to have at most; the sandbox's limits bound both.
#[derive(Debug, Clone, Copy)]
pub struct ListOptions {
    /// How deep to look; 1 is the directory alone.
    pub depth: Option<u64>,
    /// How many entries.
    pub limit: Option<u64>,
}

/// An entry of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its path below the listed directory.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Its size.
    pub size: u64,
    /// When its content changed last.
    pub modified: Option<Timestamp>,
}

/// How a list ended.
#[derive(Debug, Clone)]
pub struct ListEnd {
    /// The directory.
    pub path: GuestPath,
    /// How many entries there were.
    pub entries: u64,
    /// There are more.
    pub truncated: bool,
}

/// An entry that is still to be given.
#[derive(Debug)]
struct Pending {
    depth: u64,
    name: Vec<u8>,
    kind: EntryKind,
    size: u64,
    modified: Option<Timestamp>,
}

impl Files {
    /// Calls `each` with the entries of a directory, in order.
    ///
    /// # Errors
    ///
    /// [`FileError`] of the directory, of one below it that cannot be read, or of `each`.
    pub fn list_entries(
        &self,
        written: &[u8],
        options: ListOptions,
        watch: &Watch,
        mut each: impl FnMut(Listed) -> Result<(), FileError>,
    ) -> Result<ListEnd, FileError> {
        let located = self.locate_to_read(written)?;
        let MountTarget::Beneath(root, relative) = &located.target else {
            return Err(FileError::system(Errno::NOTDIR, written));
        };
        if options.depth == Some(0) || options.limit == Some(0) {
            let reason = "a list of nothing";
            return Err(FileError::rule(ErrorKind::InvalidRequest, reason, written));
        }
        let max_depth = options.depth.unwrap_or(u64::MAX).min(self.list_depth);
        let limit = options.limit.unwrap_or(u64::MAX).min(self.list_entries as u64);
        // Whether it is the sandbox's bound, not the caller's, that ends the walk downwards.
        let depth_is_bound = options.depth.is_none_or(|depth| depth > self.list_depth);
        let mut walk = Walk {
            root,
            top: relative,
            written,
            watch,
            pending: VecDeque::new(),
            room: usize::try_from(limit).unwrap_or(usize::MAX),
            truncated: false,
        };
        walk.descend(b"", 1)?;
        let mut path: Vec<u8> = Vec::new();
        // Where in it each directory on the way ends; that of the listed one first.
        let mut ends = vec![0];
        let mut entries = 0;
        while let Some(next) = walk.pending.pop_back() {
            watch.check()?;
            let Pending { depth, name, kind, size, modified } = next;
            ends.truncate(usize::try_from(depth).unwrap_or(usize::MAX));
            path.truncate(*ends.last().expect("the first one stays"));
            path = join(&path, &name);
            ends.push(path.len());
            walk.room -= 1;
            entries += 1;
            each(Listed { path: path.clone(), kind, size, modified })?;
            if kind == EntryKind::Directory {
                if depth < max_depth {
                    walk.descend(&path, depth + 1)?;
                } else if depth_is_bound {
                    walk.truncated = true;
                }
            }
        }
        Ok(ListEnd { path: located.path, entries, truncated: walk.truncated })
    }
}

struct Walk<'a> {
    root: &'a Root<'a>,
    /// The listed directory's path beneath the mount.
    top: &'a [u8],
    written: &'a [u8],
    watch: &'a Watch,
    /// What is still to come, the next one last.
    pending: VecDeque<Pending>,
    /// How many entries may still be given.
    room: usize,
    truncated: bool,
}

impl Walk<'_> {
    /// Adds the entries of a directory below the listed one, which come next.
    fn descend(&mut self, below: &[u8], depth: u64) -> Result<(), FileError> {
        let is_top = below.is_empty();
        let relative = join(self.top, below);
        let directory = match self.root.open(&relative, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => directory,
            // It was a directory a moment ago, and is none any more: it has no entries.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if !is_top => return Ok(()),
            // Another file system, which no operation looks into.
            Err(Errno::XDEV) if !is_top => {
                self.truncated = true;
                return Ok(());
            }
            Err(errno) => return Err(beneath(errno, &join(self.written, below))),
        };
        // The first ones in order, as many as there is room for.
        let mut first: BinaryHeap<Vec<u8>> = BinaryHeap::new();
        let mut stopped = None;
        let read = read_directory(&directory, |name, _| {
            if let Err(error) = self.watch.check() {
                stopped = Some(error);
                return Err(Errno::INTR);
            }
            if is_temporary(name) {
                return Ok(());
            }
            if first.len() < self.room {
                first.push(name.to_vec());
            } else {
                self.truncated = true;
                if let Some(mut last) = first.peek_mut()
                    && name < last.as_slice()
                {
                    *last = name.to_vec();
                }
            }
            Ok(())
        });
        if let Some(error) = stopped {
            return Err(error);
        }
        match read {
            // The directory was removed while it was read.
            Err(Errno::NOENT) if !is_top => {}
            read => read.map_err(|errno| beneath(errno, &join(self.written, below)))?,
        }
        for name in first.into_sorted_vec().into_iter().rev() {
            match retry(|| statat(&directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)) {
                Ok(stat) => self.pending.push_back(Pending {
                    depth,
                    kind: kind_of(FileType::from_raw_mode(stat.st_mode)),
                    size: size_of(&stat),
                    modified: modified(&stat),
                    name,
                }),
                // It has gone since.
                Err(Errno::NOENT) => {}
                Err(errno) => {
                    return Err(FileError::system(errno, &join(&join(self.written, below), &name)));
                }
            }
        }
        while self.pending.len() > self.room {
            self.pending.pop_front();
            self.truncated = true;
        }
        Ok(())
    }
}
