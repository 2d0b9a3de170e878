//! What a run changed in an overlay of its io dir: everything that changed is in the upper layer, and
//! the io dir itself is the lower one, as it was. What it costs follows the changes, not the io dir.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, OFlags, Stat, XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr,
    fstat, unlinkat,
};
use rustix::io::{Errno, Result};
use sandbox_api::changes::{ChangeOp, ChangeType};
use sandbox_dirfd::{FileStamp, Root, join, retry, split};

use crate::changed::Changed;
use crate::commit::covered;
use crate::compare::{Comparison, op_of};
use crate::copy::{Baseline, Copied};
use crate::error::StageError;
use crate::tree::{WalkCount, birth_time, check_depth, entries, kind_of, open, stat_at};

/// Attributes of overlays have names that begin with it. Only root can set them.
const PREFIX: &[u8] = b"trusted.overlay.";
/// Marks a directory that hides the lower one.
const OPAQUE: &CStr = c"trusted.overlay.opaque";
/// The file of the lower layer that a file was copied from.
const ORIGIN: &CStr = c"trusted.overlay.origin";
/// The length of what is before the file handle in it.
const ORIGIN_HEADER: usize = 21;
/// Where the type of the handle is in it.
const ORIGIN_TYPE: usize = 4;

/// What the kernel adds to the inode number of a file of the lower layer, if that is on another
/// filesystem than the upper one (`xino=on`): above 32 bits, or if these do not suffice the highest bit.
const OF_THE_LOWER_LAYER: [u64; 3] = [0, 1 << 33, 1 << 63];

/// The inode numbers in the lower layer that an overlay may show as this one.
fn lower_inodes(shown: u64) -> impl Iterator<Item = u64> {
    OF_THE_LOWER_LAYER.into_iter().filter_map(move |added| shown.checked_sub(added))
}

/// Whether an entry of an upper layer marks a removal in the lower one.
pub(crate) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// Whether a directory of an upper layer hides what is in the lower one.
pub(crate) fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0; 1];
    fgetxattr(directory, OPAQUE, &mut value).is_ok_and(|length| &value[..length] == b"y")
}

/// Whether a directory can have the attributes of an upper layer.
pub(crate) fn probe(upper: &OwnedFd) -> Result<()> {
    fsetxattr(upper, OPAQUE, b"n", XattrFlags::CREATE)?;
    fremovexattr(upper, OPAQUE)
}

/// Whether a file or directory of an upper layer was copied from the lower one. Unknown (`false`)
/// if the lower one has several names, or its filesystem no handles.
fn was_copied(parent: BorrowedFd<'_>, name: &CStr) -> bool {
    let file = open(parent, name, OFlags::empty());
    let length = file.and_then(|file| fgetxattr(&file, ORIGIN, &mut [0; 256]));
    length.is_ok_and(|length| length > ORIGIN_HEADER)
}

/// Whether a directory of the upper layer was copied from this one of the lower layer, and not made
/// by the run, or copied from another one that was there.
fn is_copy_of(upper: &OwnedFd, lower: &OwnedFd) -> bool {
    let mut origin = [0; 256];
    let length = fgetxattr(upper, ORIGIN, &mut origin).unwrap_or(0);
    length > ORIGIN_HEADER
        && FileHandle::of(lower).is_some_and(|handle| {
            let bytes = &handle.bytes[..handle.length as usize];
            let kind = i32::from(origin[ORIGIN_TYPE]);
            (handle.kind, bytes) == (kind, &origin[ORIGIN_HEADER..length])
        })
}

const LONGEST_HANDLE: u32 = libc::MAX_HANDLE_SZ.unsigned_abs();

/// What a filesystem knows a file by, even after another one got its inode number.
#[repr(C)]
struct FileHandle {
    length: u32,
    kind: i32,
    bytes: [u8; LONGEST_HANDLE as usize],
}

impl FileHandle {
    /// `None` if its filesystem has none.
    #[expect(unsafe_code, reason = "no safe interface has this call")]
    fn of(file: &OwnedFd) -> Option<Self> {
        let bytes = [0; LONGEST_HANDLE as usize];
        let mut handle = Self { length: LONGEST_HANDLE, kind: 0, bytes };
        let (fd, path, into) = (file.as_raw_fd(), c"".as_ptr(), (&raw mut handle).cast());
        let mut mount = 0;
        // SAFETY: the path ends with a zero, and the handle has as many bytes as its length says.
        let result =
            unsafe { libc::name_to_handle_at(fd, path, into, &raw mut mount, libc::AT_EMPTY_PATH) };
        (result == 0).then_some(handle)
    }
}

/// The opened directories of an overlay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opened<'a> {
    pub lower: BorrowedFd<'a>,
    pub upper: BorrowedFd<'a>,
    /// The overlay itself. It shows a copied file with the inode number that it had before.
    pub view: BorrowedFd<'a>,
}

/// Compares the layers. What changed in the lower one after `since` was changed by something else.
pub(crate) fn compare(
    Opened { lower, upper, view }: Opened<'_>,
    root: FileStamp,
    since: (i64, u64),
) -> std::result::Result<Comparison, StageError> {
    let at = StageError::at(b".");
    let lower_dir = open(lower, c".", OFlags::DIRECTORY).map_err(&at)?;
    let upper_dir = open(upper, c".", OFlags::DIRECTORY).map_err(&at)?;
    let mut layers = Comparing { since, ..Comparing::default() };
    layers.directory(&upper_dir, Some(&lower_dir), b"", false, false)?;
    layers.name_origins(view).map_err(&at)?;
    let Comparing { before, changed, directories, conflicts, .. } = layers;
    let baseline = Arc::new(Baseline { root: root.into(), entries: before });
    let root = FileStamp::of(&fstat(&upper_dir).map_err(&at)?);
    let compared = Comparison { baseline, conflicts, changed, directories, root };
    Ok(compared.read(lower, upper))
}

#[derive(Default)]
struct Comparing {
    since: (i64, u64),
    seen: WalkCount,
    /// The directory that is compared hides that of the lower layer.
    is_hidden: bool,
    /// The directory of the lower layer, or one above it, is not the one that the run saw.
    is_foreign: bool,
    before: BTreeMap<Box<[u8]>, Copied>,
    changed: BTreeMap<Box<[u8]>, Changed>,
    directories: BTreeMap<Box<[u8]>, FileStamp>,
    conflicts: BTreeSet<Box<[u8]>>,
    /// New paths of files that were in the lower layer before.
    origins: Vec<Box<[u8]>>,
}

impl Comparing {
    /// `lower` is the directory of the lower layer at the same path, if there is one. `hides` says
    /// that the run saw nothing of it, `is_foreign` that it saw another one.
    fn directory(
        &mut self,
        upper: &OwnedFd,
        lower: Option<&OwnedFd>,
        path: &[u8],
        hides: bool,
        is_foreign: bool,
    ) -> std::result::Result<(), StageError> {
        let above = entries(upper.as_fd()).map_err(StageError::at(path))?;
        // What is below an opaque directory hides the lower layer too, without a mark of its own.
        let above_it = (self.is_hidden, self.is_foreign);
        self.is_hidden |= hides;
        self.is_foreign |= is_foreign;
        let opaque = lower.filter(|_| self.is_hidden);
        for (name, stat) in &above {
            let path = join(path, name.to_bytes());
            self.seen.add(&path)?;
            let below = lower.map(|lower| retry(|| stat_at(lower.as_fd(), name))).transpose();
            let below = below.map_err(StageError::at(&path))?.flatten();
            if is_whiteout(stat) {
                if let (Some(lower), Some(below)) = (lower, &below) {
                    self.removed(lower, name, below, &path)?;
                }
                continue;
            }
            self.entry(upper, lower, (name, stat), below.as_ref(), &path)?;
        }
        if let Some(lower) = opaque {
            let is_above = |name: &CString| above.binary_search_by(|(it, _)| it.cmp(name)).is_ok();
            for (name, below) in entries(lower.as_fd()).map_err(StageError::at(path))? {
                if !is_above(&name) {
                    self.removed(lower, &name, &below, &join(path, name.to_bytes()))?;
                }
            }
        }
        (self.is_hidden, self.is_foreign) = above_it;
        Ok(())
    }

    /// An entry of the upper layer.
    fn entry(
        &mut self,
        upper: &OwnedFd,
        lower: Option<&OwnedFd>,
        (name, stat): (&CStr, &Stat),
        below: Option<&Stat>,
        path: &[u8],
    ) -> std::result::Result<(), StageError> {
        let at = StageError::at(path);
        let (now, before) = (FileStamp::of(stat), below.map(FileStamp::of));
        let change = op_of(before, now);
        if let Some(op) = change {
            self.changed.insert(path.into(), Changed::new(op, Some(now), before.map(Copied::from)));
        }
        if let Some(before) = before {
            self.before.insert(path.into(), before.into());
            self.note(path, before);
        } else if has_attributes(now) && was_copied(upper.as_fd(), name) {
            if now.is_directory() {
                // The run cannot have given it another name: something else did, or removed it.
                self.conflicts.insert(path.into());
            } else {
                self.origins.push(path.into());
            }
        }
        let was_directory = before.is_some_and(|before| before.is_directory());
        if now.is_directory() {
            let upper = open(upper.as_fd(), name, OFlags::DIRECTORY).map_err(&at)?;
            check_depth(path)?;
            let inner = lower.filter(|_| was_directory);
            let inner = inner.map(|lower| open(lower.as_fd(), name, OFlags::DIRECTORY));
            let inner = inner.transpose().map_err(&at)?;
            if was_directory {
                self.directories.insert(path.into(), now);
            }
            let (mut hides, mut is_foreign) = (is_opaque(&upper), false);
            if let (Some(inner), Some(before)) = (&inner, before)
                && before.changed > self.since
            {
                if hides && self.is_younger(inner) {
                    // Nothing was removed with it: both have made it.
                    (hides, is_foreign) = (false, true);
                } else if hides {
                    // What was removed with the old directory may not be what was in it then.
                    self.conflicts.insert(path.into());
                    let replaced = Changed::new(ChangeOp::Mode, Some(now), Some(before.into()));
                    self.changed.entry(path.into()).or_insert(replaced);
                } else {
                    is_foreign = !is_copy_of(&upper, inner);
                }
            }
            self.directory(&upper, inner.as_ref(), path, hides, is_foreign)?;
        } else if let (true, Some(lower)) = (was_directory, lower) {
            let lower = open(lower.as_fd(), name, OFlags::DIRECTORY).map_err(&at)?;
            self.removed_below(&lower, path)?;
        }
        Ok(())
    }

    /// Whether a directory was made after the stage.
    fn is_younger(&self, directory: &OwnedFd) -> bool {
        let born = birth_time(directory.as_fd(), c".");
        born.is_some_and(|(seconds, nanos)| (seconds, u64::from(nanos)) > self.since)
    }

    /// An entry of the lower layer that was removed, with what is in it.
    fn removed(
        &mut self,
        parent: &OwnedFd,
        name: &CStr,
        stat: &Stat,
        path: &[u8],
    ) -> std::result::Result<(), StageError> {
        self.seen.add(path)?;
        let before = FileStamp::of(stat);
        let change = Changed::new(ChangeOp::Removed, None, Some(before.into()));
        self.changed.insert(path.into(), change);
        self.before.insert(path.into(), before.into());
        self.note(path, before);
        if before.is_directory() {
            let at = StageError::at(path);
            let directory = open(parent.as_fd(), name, OFlags::DIRECTORY).map_err(&at)?;
            self.removed_below(&directory, path)?;
        }
        Ok(())
    }

    fn removed_below(
        &mut self,
        directory: &OwnedFd,
        path: &[u8],
    ) -> std::result::Result<(), StageError> {
        check_depth(path)?;
        for (name, stat) in entries(directory.as_fd()).map_err(StageError::at(path))? {
            self.removed(directory, &name, &stat, &join(path, name.to_bytes()))?;
        }
        Ok(())
    }

    /// Notes a conflict if the lower entry was changed while the run was going on.
    fn note(&mut self, path: &[u8], before: FileStamp) {
        if self.is_foreign || before.changed > self.since {
            self.conflicts.insert(path.into());
        }
    }

    /// Names the old paths of new ones: a copied file is shown with the inode of the lower one. If none
    /// of these has it, something else removed it, or gave it another name.
    fn name_origins(&mut self, view: BorrowedFd<'_>) -> Result<()> {
        if self.origins.is_empty() {
            return Ok(());
        }
        let view = Root::new(view)?;
        let known = self.before.iter().map(|(path, before)| (before.original.ino, path));
        let known: HashMap<u64, &Box<[u8]>> = known.collect();
        for path in &self.origins {
            let Ok(shown) = view.stat(path) else { continue };
            let from = lower_inodes(shown.st_ino).find_map(|inode| known.get(&inode));
            let Some(from) = from else {
                self.conflicts.insert(path.clone());
                continue;
            };
            // Another name of a file that is still there is no new one.
            let is_gone = self.changed.get(*from).is_some_and(|change| change.now.is_none());
            if let (true, Some(change)) = (is_gone, self.changed.get_mut(path)) {
                change.from = Some((*from).clone());
            }
        }
        Ok(())
    }
}

/// Whether it can have attributes of an overlay, and be opened without an effect.
fn has_attributes(stamp: FileStamp) -> bool {
    matches!(kind_of(stamp), ChangeType::File | ChangeType::Directory)
}

/// Removes the attributes of overlays from what is moved into the io dir.
pub(crate) fn clean(comparison: &Comparison, upper: &Root<'_>) -> Result<()> {
    let is_covered = covered(comparison);
    for (path, change) in &comparison.changed {
        let Some(now) = change.now else { continue };
        let is_moved = is_covered(path) || !change.stays_directory();
        if !is_moved || !has_attributes(now) {
            continue;
        }
        let (parent, name) = split(path);
        let parent = upper.directory(parent)?;
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let file = open(parent.as_fd(), &name, OFlags::empty())?;
        strip(&file)?;
        if now.is_directory() {
            for (name, stat) in entries(file.as_fd())? {
                if is_whiteout(&stat) {
                    unlinkat(&file, &*name, AtFlags::empty())?;
                }
            }
        }
    }
    Ok(())
}

fn strip(file: &OwnedFd) -> Result<()> {
    let mut names = vec![0; 64 << 10];
    let length = match flistxattr(file, &mut names) {
        Err(Errno::OPNOTSUPP) => 0,
        length => length?,
    };
    for name in names[..length].split(|&byte| byte == 0).filter(|name| name.starts_with(PREFIX)) {
        fremovexattr(file, name)?;
    }
    Ok(())
}
