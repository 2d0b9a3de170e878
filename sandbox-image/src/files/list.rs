//! Listing directories to the requested depth, in order and in bounded memory.
//!
//! Entries are returned in the order of their paths, component by component. Pending entries are
//! kept by name; there are never more than may still be returned, because the last ones in order are
//! dropped first. So a directory of any size uses no more memory than the limits allow.

use std::collections::VecDeque;

use rustix::fs::{AtFlags, FileType, Stat, fstat, statat};
use rustix::io::Errno;
use sandbox_protocol::message::{Cut, CutBy, Entry, EntryDetails, EntryKind, List, ListReply};
use sandbox_protocol::path::join_written;

use super::access::Files;
use super::details::Owners;
use super::entries::{has_path, read_directory, read_watched};
use super::error::FileError;
use super::mounts::Inputs;
use super::names::{kind_of, modified, size_of};
use super::temporary::is_temporary;
use super::top::{First, Top};
use super::watch::Watch;
use sandbox_dirfd::{retry, split};

/// As deep as paths may be.
pub(super) const DEPTH_OF_PATHS: u64 = u64::MAX;

/// An entry, by its name.
fn listed(name: &[u8], stat: &Stat) -> Entry {
    let kind = kind_of(FileType::from_raw_mode(stat.st_mode));
    let (size, modified) = (size_of(stat), modified(stat));
    Entry { name: name.into(), kind, size, modified, details: None }
}

impl Files {
    /// Calls `each` with the entries of a directory, in order.
    ///
    /// # Errors
    ///
    /// [`FileError`] of the directory, of a subdirectory that cannot be read, or of `each`.
    pub fn list_entries(
        &self,
        request: &List,
        watch: &Watch,
        each: impl FnMut(Entry) -> Result<(), FileError>,
    ) -> Result<ListReply, FileError> {
        self.walk(request, self.list_depth, watch, each)
    }

    /// The same, at most to another depth.
    ///
    /// # Errors
    ///
    /// The same.
    pub(super) fn walk(
        &self,
        request: &List,
        bound: u64,
        watch: &Watch,
        mut each: impl FnMut(Entry) -> Result<(), FileError>,
    ) -> Result<ListReply, FileError> {
        let (written, depth, limit) = (request.path.as_bytes(), request.depth(), request.limit);
        if depth == Some(0) || limit == Some(0) {
            let reason = "`limit` and `max_depth` must be at least 1";
            return Err(FileError::invalid(reason, written));
        }
        let located = match self.locate_directory(written) {
            Ok(located) => located,
            Err(error) => {
                let inputs = self.inputs(written).ok_or(error)?;
                return self.walk_inputs(inputs, request, bound, watch, &mut each);
            }
        };
        let top = Top::new(&located, (written, watch), false)?;
        let max_depth = depth.unwrap_or(u64::MAX).min(bound);
        let limit = limit.unwrap_or(u64::MAX).min(self.list_entries as u64);
        // Whether the depth is bounded by the sandbox's limit, not by the caller's.
        let depth_is_bound = depth.is_none_or(|depth| depth > bound);
        let mut walk = Walk {
            top,
            pending: VecDeque::new(),
            room: usize::try_from(limit).unwrap_or(usize::MAX),
        };
        walk.descend(b"", 1)?;
        let owners = request.details.then(|| self.owners());
        let mut path: Vec<u8> = Vec::new();
        // Where each directory on the way ends in it; the listed directory is the first.
        let mut ends = vec![0];
        let mut entries = 0;
        while let Some((depth, mut entry)) = walk.pending.pop_back() {
            watch.check()?;
            ends.truncate(usize::try_from(depth).unwrap_or(usize::MAX));
            path.truncate(*ends.last().expect("the first one stays"));
            path = join_written(&path, entry.name.as_bytes());
            ends.push(path.len());
            walk.room -= 1;
            entries += 1;
            let kind = entry.kind;
            entry.name = (&*path).into();
            entry.details = owners.as_ref().and_then(|owners| walk.details(&path, self, owners));
            each(entry)?;
            let cut_by = walk.top.cut.as_ref().map(|cut| cut.by);
            if kind != EntryKind::Directory || walk.room == 0 && cut_by == Some(CutBy::Entries) {
                continue;
            }
            if depth < max_depth {
                walk.descend(&path, depth + 1)?;
            } else if depth_is_bound && cut_by < Some(CutBy::Depth) && walk.has_entries(&path)? {
                Cut::add(&mut walk.top.cut, CutBy::Depth, &path);
            }
        }
        Ok(ListReply { path: (&located.path).into(), entries, cut: walk.top.cut })
    }

    /// As [`Mounts::inputs`](super::mounts::Mounts::inputs), if that directory may be read.
    pub(super) fn inputs(&self, written: &[u8]) -> Option<Inputs<'_>> {
        let inputs = self.mounts.inputs(written)?;
        self.policy.access(&inputs.0).map(|_| inputs)
    }

    /// A walk of the inputs: each is a mount of its own.
    fn walk_inputs(
        &self,
        (path, inputs): Inputs<'_>,
        request: &List,
        bound: u64,
        watch: &Watch,
        each: &mut dyn FnMut(Entry) -> Result<(), FileError>,
    ) -> Result<ListReply, FileError> {
        let limit = request.limit.unwrap_or(u64::MAX).min(self.list_entries as u64);
        let mut end = ListReply { path: (&path).into(), entries: 0, cut: None };
        let owners = request.details.then(|| self.owners());
        for (name, mount) in inputs {
            watch.check()?;
            if end.entries == limit {
                Cut::add(&mut end.cut, CutBy::Entries, name);
                break;
            }
            let stat = fstat(mount.fd());
            let stat = stat.map_err(|errno| FileError::system(errno, mount.path.as_bytes()))?;
            let details = owners.as_ref().map(|owners| self.details(&stat, owners));
            let entry = Entry { details, ..listed(name, &stat) };
            let kind = entry.kind;
            each(entry)?;
            end.entries += 1;
            let depth = request.depth().map(|depth| depth - 1);
            if kind != EntryKind::Directory || depth == Some(0) {
                continue;
            }
            // One more than fits says that something is left out.
            let room = limit - end.entries;
            let below = List {
                recursive: true,
                max_depth: depth,
                limit: Some(room.max(1)),
                details: request.details,
                ..List::new(mount.path.as_bytes())
            };
            let inner = self.walk(&below, bound, watch, |entry| match room {
                0 => Ok(()),
                _ => {
                    each(Entry { name: join_written(name, entry.name.as_bytes()).into(), ..entry })
                }
            })?;
            if let Some(Cut { by, at }) = inner.cut {
                Cut::add(&mut end.cut, by, &join_written(name, at.as_bytes()));
            }
            match room {
                0 if inner.entries > 0 => Cut::add(&mut end.cut, CutBy::Entries, name),
                0 => {}
                _ => end.entries += inner.entries,
            }
        }
        Ok(end)
    }
}

struct Walk<'a> {
    top: Top<'a>,
    /// Pending entries with their depths, the next one last.
    pending: VecDeque<(u64, Entry)>,
    /// How many entries may still be returned, and be pending.
    room: usize,
}

impl Walk<'_> {
    /// The details of an entry below the listed directory, if it is still there.
    fn details(&self, below: &[u8], files: &Files, owners: &Owners) -> Option<EntryDetails> {
        let relative = join_written(self.top.relative, below);
        let (parent, name) = split(&relative);
        let directory = self.top.root.directory(parent).ok()?;
        let stat = retry(|| statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)).ok()?;
        Some(files.details_in((self.top.root, &directory, name), &stat, owners))
    }

    /// Whether a directory has something in it.
    fn has_entries(&mut self, below: &[u8]) -> Result<bool, FileError> {
        let Some(directory) = self.top.open(below)? else { return Ok(false) };
        let mut found = false;
        let read = read_directory(&directory, std::convert::identity, |name, _| {
            found = !is_temporary(name);
            if found { Err(Errno::INTR) } else { Ok(()) }
        });
        match read {
            Err(errno) if !found && errno != Errno::NOENT => Err(self.top.failed(errno, below)),
            _ => Ok(found),
        }
    }

    /// Adds the entries of a subdirectory, which come next.
    fn descend(&mut self, below: &[u8], depth: u64) -> Result<(), FileError> {
        let Some(directory) = self.top.open(below)? else { return Ok(()) };
        let above = self.top.before_name(below);
        // The first entries in order, as many as there is room for, and one more, which is not returned.
        let mut first = First::new(self.room.saturating_add(1));
        let cut = &mut self.top.cut;
        let read = read_watched(&directory, self.top.watch, |name, _| {
            if is_temporary(name) {
                return;
            }
            if has_path(above, name) {
                first.add(name);
            } else {
                Cut::add(cut, CutBy::Name, below);
            }
        })?;
        self.top.read(read, below)?;
        for name in first.in_order().into_iter().rev() {
            if let Some(stat) = self.top.stat(&directory, below, &name)? {
                self.pending.push_back((depth, listed(&name, &stat)));
            }
        }
        // What comes after the last entry that may be returned is of no use.
        while self.pending.len() > self.room
            && let Some((depth, last)) = self.pending.pop_front()
        {
            // It is in a directory on the way here.
            let names = below.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
            let above = names.take(usize::try_from(depth).unwrap_or(usize::MAX) - 1);
            let at = above.fold(Vec::new(), |path, name| join_written(&path, name));
            let at = join_written(&at, last.name.as_bytes());
            Cut::add(&mut self.top.cut, CutBy::Entries, &at);
        }
        Ok(())
    }
}
