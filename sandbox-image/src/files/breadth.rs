//! Walking a tree for a search: as deep as paths may be, and shallow directories before deep ones, so
//! that what a bound cuts off is in the deep ones. In bounded memory.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use rustix::fs::FileType;
use sandbox_protocol::message::{Cut, CutBy, EntryKind};
use sandbox_protocol::path::{GuestPath, join_written};

use super::access::Files;
use super::entries::{has_path, read_watched};
use super::error::FileError;
use super::mounts::Inputs;
use super::names::kind_of;
use super::temporary::is_temporary;
use super::top::{First, Top};
use super::watch::Watch;

/// How many directories may wait to be entered, for each entry that a list may have.
const DIRECTORIES: usize = 5;
/// The bytes of their paths together.
const PATH_BYTES: usize = 8 << 20;

/// What a walk does with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// What a walk does with an entry: by the path of its directory, its name, and whether it is one.
type VisitOf<'a> = dyn Fn(&[u8], &[u8], bool) -> Visit + 'a;
/// What takes each entry that is returned, by its path, and may end the walk.
type EachOf<'a> = dyn FnMut(Vec<u8>, EntryKind) -> Result<ControlFlow<CutBy>, FileError> + 'a;

/// The end of a walk.
pub(super) struct WalkEnd {
    /// The directory where it began.
    pub path: GuestPath,
    pub cut: Option<Cut>,
}

impl Files {
    /// Calls `each` with the paths of entries below a directory, relative to it, and their types: with
    /// those that `visit` selects by the path of their directory, their name and whether they are
    /// directories. There are at most so many, and one more is a cut by `bound`. Within a directory they
    /// are in order; `each` may end the walk, and so does the watch's time. What cannot be read below
    /// the directory is left out.
    ///
    /// # Errors
    ///
    /// [`FileError`] of the directory, or of `each`.
    pub(super) fn walk_breadth_first(
        &self,
        written: &[u8],
        (most, bound): (u64, CutBy),
        watch: &Watch,
        visit: &VisitOf<'_>,
        each: &mut EachOf<'_>,
    ) -> Result<WalkEnd, FileError> {
        let located = match self.locate_directory(written) {
            Ok(located) => located,
            Err(error) => {
                let inputs = self.inputs(written).ok_or(error)?;
                return self.walk_inputs_breadth_first(inputs, (most, bound), watch, visit, each);
            }
        };
        let mut walk = Walk {
            top: Top::new(&located, (written, watch), true)?,
            visit,
            pending: VecDeque::from([Vec::new()]),
            pending_bytes: 0,
            max_pending: self.list_entries.saturating_mul(DIRECTORIES),
            room: usize::try_from(most).unwrap_or(usize::MAX),
        };
        'walk: while let Some(directory) = walk.pending.pop_front() {
            walk.pending_bytes -= directory.len();
            let entered = watch.check().and_then(|()| walk.enter(&directory));
            let Some(entries) = watch.in_time(entered)? else {
                Cut::add(&mut walk.top.cut, CutBy::Time, &directory);
                break;
            };
            for (name, kind) in entries {
                let path = join_written(&directory, &name);
                let ended = match walk.room {
                    0 => ControlFlow::Break(bound),
                    _ => {
                        let visited = watch.check().and_then(|()| each(path.clone(), kind));
                        watch.in_time(visited)?.unwrap_or(ControlFlow::Break(CutBy::Time))
                    }
                };
                if let ControlFlow::Break(by) = ended {
                    Cut::add(&mut walk.top.cut, by, &path);
                    break 'walk;
                }
                walk.room -= 1;
            }
        }
        let cut = walk.top.cut;
        Ok(WalkEnd { path: located.path, cut })
    }

    /// The same walk of the inputs: each is a mount of its own.
    fn walk_inputs_breadth_first(
        &self,
        (path, inputs): Inputs<'_>,
        (most, bound): (u64, CutBy),
        watch: &Watch,
        visit: &VisitOf<'_>,
        each: &mut EachOf<'_>,
    ) -> Result<WalkEnd, FileError> {
        let (mut room, mut cut, mut directories) = (most, None, Vec::new());
        for (name, mount) in inputs {
            let kind = mount.kind();
            let is_directory = kind == EntryKind::Directory;
            let visit = visit(b"", name, is_directory);
            if visit.returned {
                let ended = match room {
                    0 => ControlFlow::Break(bound),
                    _ => each(name.to_vec(), kind)?,
                };
                if let ControlFlow::Break(by) = ended {
                    Cut::add(&mut cut, by, name);
                    return Ok(WalkEnd { path, cut });
                }
                room -= 1;
            }
            if visit.entered && is_directory {
                directories.push((name, mount));
            }
        }
        for (name, mount) in directories {
            let (mut returned, mut ended) = (0, false);
            let visit_below = |directory: &[u8], entry: &[u8], is_directory| {
                visit(&join_written(name, directory), entry, is_directory)
            };
            let mut each_below = |path: Vec<u8>, kind| {
                returned += 1;
                let next = each(join_written(name, &path), kind)?;
                ended = next.is_break();
                Ok(next)
            };
            let top = mount.path.as_bytes();
            let bounds = (room, bound);
            let below =
                self.walk_breadth_first(top, bounds, watch, &visit_below, &mut each_below)?;
            room -= returned;
            if let Some(Cut { by, at }) = below.cut {
                Cut::add(&mut cut, by, &join_written(name, at.as_bytes()));
                ended |= by == CutBy::Time;
            }
            if ended {
                break;
            }
        }
        Ok(WalkEnd { path, cut })
    }
}

struct Walk<'a> {
    top: Top<'a>,
    visit: &'a VisitOf<'a>,
    /// Directories that are still to be entered, the next one first.
    pending: VecDeque<Vec<u8>>,
    pending_bytes: usize,
    max_pending: usize,
    /// How many entries may still be returned.
    room: usize,
}

impl Walk<'_> {
    /// The names in a directory that are to be returned, in order: as many as there is room for, and
    /// one more. Its directories are entered later.
    fn enter(&mut self, below: &[u8]) -> Result<Vec<(Vec<u8>, EntryKind)>, FileError> {
        let Some(directory) = self.top.open(below)? else { return Ok(Vec::new()) };
        let above = self.top.before_name(below);
        let mut returned = First::new(self.room.saturating_add(1));
        let mut entered = First::new(self.max_pending.saturating_sub(self.pending.len()) + 1);
        let (visit, cut) = (self.visit, &mut self.top.cut);
        let read = read_watched(&directory, self.top.watch, |name, kind| {
            let is_directory = kind == FileType::Directory;
            let visit = match is_temporary(name) {
                true => Visit::SKIP,
                false => visit(below, name, is_directory),
            };
            let is_entered = visit.entered && is_directory;
            if (visit.returned || is_entered) && !has_path(above, name) {
                return Cut::add(cut, CutBy::Name, below);
            }
            if visit.returned {
                returned.add(name);
            }
            if is_entered {
                entered.add(name);
            }
        })?;
        self.top.read(read, below)?;
        for name in entered.in_order() {
            let path = join_written(below, &name);
            if self.pending.len() == self.max_pending
                || self.pending_bytes + path.len() > PATH_BYTES
            {
                Cut::add(&mut self.top.cut, CutBy::Directories, &path);
                break;
            }
            self.pending_bytes += path.len();
            self.pending.push_back(path);
        }
        let mut found = Vec::new();
        for name in returned.in_order() {
            if let Some(stat) = self.top.stat(&directory, below, &name)? {
                found.push((name, kind_of(FileType::from_raw_mode(stat.st_mode))));
            }
        }
        Ok(found)
    }
}
