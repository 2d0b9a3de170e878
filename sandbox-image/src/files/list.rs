//! Listing directories to the requested depth, in order and in bounded memory.
//!
//! Entries are returned in the order of their paths, component by component. Pending entries are
//! kept by name; there are never more to return than may still be returned, because the last ones in
//! order are dropped first. Directories that are only entered have places of their own, so that none
//! of them takes the place of an entry. So a directory of any size uses no more memory than the limits
//! allow.

use std::collections::{BinaryHeap, VecDeque};
use std::ops::ControlFlow;

use rustix::fs::{AtFlags, FileType, OFlags, statat};
use rustix::io::Errno;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::message::{EntryKind, Timestamp};
use sandbox_protocol::path::{GuestPath, join_written};

use super::access::Files;
use super::entries::{has_path, read_directory};
use super::error::{FileError, beneath};
use super::mounts::MountTarget;
use super::names::{kind_of, modified, size_of};
use super::temporary::is_temporary;
use super::watch::Watch;
use sandbox_dirfd::{Root, retry};

/// How many directories may wait to be entered, for each entry that a list may have.
const DIRECTORIES: usize = 5;

/// The bounds of a list; the sandbox's limits also apply.
#[derive(Debug, Clone, Copy)]
pub struct ListOptions {
    /// The depth; 1 is the directory itself.
    pub depth: Option<u64>,
    /// The most entries.
    pub limit: Option<u64>,
}

/// An entry of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEntry {
    /// Its path relative to the listed directory.
    pub path: Vec<u8>,
    /// Its type.
    pub kind: EntryKind,
    /// Its size.
    pub size: u64,
    /// When its content was last modified.
    pub modified: Option<Timestamp>,
}

/// The result of a list.
#[derive(Debug, Clone)]
pub struct ListEnd {
    /// The directory.
    pub path: GuestPath,
    /// Number of entries.
    pub entries: u64,
    pub omitted: Omitted,
}

/// What a list or a search does not return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Omitted {
    /// There may be more entries.
    pub truncated: bool,
    /// Entries were left out whose names or paths are too long for any operation.
    pub left_out: bool,
}

impl Omitted {
    /// Whether there is anything.
    pub const fn any(self) -> bool {
        self.truncated || self.left_out
    }
}

/// What a walk does with an entry. Their order is of no use: a directory has each name once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Visit {
    /// Whether it is returned.
    pub returned: bool,
    /// Whether it is entered, if it is a directory.
    pub entered: bool,
}

impl Visit {
    /// Neither.
    pub const SKIP: Self = Self { returned: false, entered: false };
}

/// What becomes of a walk that meets a directory which it may not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// It fails.
    Fails,
    /// It leaves that directory out, unless it began there.
    LeftOut,
}

/// An entry that is still to be visited.
#[derive(Debug)]
struct Pending {
    depth: u64,
    visit: Visit,
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
    /// [`FileError`] of the directory, of a subdirectory that cannot be read, or of `each`.
    pub fn list_entries(
        &self,
        written: &[u8],
        options: ListOptions,
        watch: &Watch,
        mut each: impl FnMut(ListedEntry) -> Result<(), FileError>,
    ) -> Result<ListEnd, FileError> {
        self.walk(
            written,
            (options, Unreadable::Fails),
            watch,
            |_, _, _| Visit { returned: true, entered: true },
            |entry| each(entry).map(ControlFlow::Continue),
        )
    }

    /// The same for the entries that `visit` selects by the path of their directory, their name and
    /// whether they are directories; `each` may end the walk, which is then complete.
    ///
    /// # Errors
    ///
    /// The same.
    pub(super) fn walk(
        &self,
        written: &[u8],
        (options, unreadable): (ListOptions, Unreadable),
        watch: &Watch,
        visit: impl Fn(&[u8], &[u8], bool) -> Visit,
        mut each: impl FnMut(ListedEntry) -> Result<ControlFlow<()>, FileError>,
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
        // Whether the depth is bounded by the sandbox's limit, not by the caller's.
        let depth_is_bound = options.depth.is_none_or(|depth| depth > self.list_depth);
        let mut walk = Walk {
            root,
            path: &located.path,
            top: relative,
            written,
            watch,
            visit: &visit,
            unreadable,
            pending: VecDeque::new(),
            room: usize::try_from(limit).unwrap_or(usize::MAX),
            to_return: 0,
            to_enter: 0,
            max_to_enter: self.list_entries.saturating_mul(DIRECTORIES),
            omitted: Omitted::default(),
        };
        walk.descend(b"", 1)?;
        let mut path: Vec<u8> = Vec::new();
        // Where each directory on the way ends in it; the listed directory is the first.
        let mut ends = vec![0];
        let mut entries = 0;
        while let Some(next) = walk.pending.pop_back() {
            watch.check()?;
            *walk.count_of(next.visit) -= 1;
            // Nothing more may be returned, and it is known that there may be more.
            if walk.room == 0 && walk.omitted.truncated {
                break;
            }
            let Pending { depth, visit, name, kind, size, modified } = next;
            ends.truncate(usize::try_from(depth).unwrap_or(usize::MAX));
            path.truncate(*ends.last().expect("the first one stays"));
            path = join_written(&path, &name);
            ends.push(path.len());
            if visit.returned {
                walk.room -= 1;
                entries += 1;
                let end = each(ListedEntry { path: path.clone(), kind, size, modified })?;
                if end.is_break() {
                    break;
                }
            }
            if kind == EntryKind::Directory && visit.entered {
                if depth < max_depth {
                    walk.descend(&path, depth + 1)?;
                } else if depth_is_bound {
                    walk.omitted.truncated = true;
                }
            }
        }
        let omitted = walk.omitted;
        Ok(ListEnd { path: located.path, entries, omitted })
    }
}

struct Walk<'a, V> {
    root: &'a Root<'a>,
    /// The listed directory.
    path: &'a GuestPath,
    /// Its path beneath the mount.
    top: &'a [u8],
    written: &'a [u8],
    watch: &'a Watch,
    visit: &'a V,
    unreadable: Unreadable,
    /// Pending entries, the next one last.
    pending: VecDeque<Pending>,
    /// How many entries may still be returned, and be pending to be.
    room: usize,
    /// How many of the pending entries are to be returned.
    to_return: usize,
    /// How many of them are only to be entered, and may be.
    to_enter: usize,
    max_to_enter: usize,
    omitted: Omitted,
}

impl<V: Fn(&[u8], &[u8], bool) -> Visit> Walk<'_, V> {
    /// How many entries are pending that are visited like this one.
    const fn count_of(&mut self, visit: Visit) -> &mut usize {
        if visit.returned { &mut self.to_return } else { &mut self.to_enter }
    }

    /// Adds the entries of a subdirectory, which come next.
    fn descend(&mut self, below: &[u8], depth: u64) -> Result<(), FileError> {
        let is_top = below.is_empty();
        let relative = join_written(self.top, below);
        let above = self.path.as_bytes().len() + 1 + below.len() + usize::from(!is_top);
        let directory = match self.root.open(&relative, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => directory,
            // It was a directory a moment ago and no longer is: it has no entries.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if !is_top => return Ok(()),
            // Another file system, which no operation enters.
            Err(Errno::XDEV) if !is_top => {
                self.omitted.truncated = true;
                return Ok(());
            }
            Err(Errno::ACCESS) if !is_top && self.unreadable == Unreadable::LeftOut => {
                return Ok(());
            }
            Err(errno) => return Err(beneath(errno, &join_written(self.written, below))),
        };
        // The first entries in order, as many as there is room for, and of the other directories.
        let mut first: BinaryHeap<(Vec<u8>, Visit)> = BinaryHeap::new();
        let mut directories: BinaryHeap<(Vec<u8>, Visit)> = BinaryHeap::new();
        let mut stopped = None;
        let read = read_directory(&directory, |name, kind| {
            if let Err(error) = self.watch.check() {
                stopped = Some(error);
                return Err(Errno::INTR);
            }
            let is_directory = kind == FileType::Directory;
            let visit = match is_temporary(name) {
                true => Visit::SKIP,
                false => (self.visit)(below, name, is_directory),
            };
            if !(visit.returned || visit.entered && is_directory) {
                return Ok(());
            }
            if !has_path(above, name) {
                self.omitted.left_out = true;
                return Ok(());
            }
            let (first, room) = match visit.returned {
                true => (&mut first, self.room),
                false => (&mut directories, self.max_to_enter - self.to_enter),
            };
            if first.len() < room {
                first.push((name.to_vec(), visit));
            } else {
                self.omitted.truncated = true;
                if let Some(mut last) = first.peek_mut()
                    && name < last.0.as_slice()
                {
                    *last = (name.to_vec(), visit);
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
            read => read.map_err(|errno| beneath(errno, &join_written(self.written, below)))?,
        }
        let mut entries = first.into_vec();
        entries.append(&mut directories.into_vec());
        entries.sort_unstable();
        for (name, visit) in entries.into_iter().rev() {
            match retry(|| statat(&directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)) {
                Ok(stat) => {
                    *self.count_of(visit) += 1;
                    self.pending.push_back(Pending {
                        depth,
                        visit,
                        kind: kind_of(FileType::from_raw_mode(stat.st_mode)),
                        size: size_of(&stat),
                        modified: modified(&stat),
                        name,
                    });
                }
                // It was removed meanwhile.
                Err(Errno::NOENT) => {}
                Err(Errno::ACCESS) if !is_top && self.unreadable == Unreadable::LeftOut => {}
                Err(errno) => {
                    return Err(FileError::system(
                        errno,
                        &join_written(&join_written(self.written, below), &name),
                    ));
                }
            }
        }
        // What comes after the last entry that may be returned is of no use.
        while self.to_return > self.room
            && let Some(last) = self.pending.pop_front()
        {
            *self.count_of(last.visit) -= 1;
            self.omitted.truncated = true;
        }
        Ok(())
    }
}
