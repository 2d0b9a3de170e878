//! The commit: what changed in the copy is moved into the io dir.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::ops::Bound;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT, fstat, renameat,
    renameat_with, utimensat,
};
use rustix::io::{Errno, Result};
use sandbox_api::Base64;
use sandbox_api::changes::ChangeOp;
use sandbox_dirfd::{FileStamp, Root, join, open_child, random_hex, retry, split};

use crate::changed::Changed;
use crate::compare::Comparison;
use crate::copy::Baseline;
use crate::error::StageError;
use crate::journal::{DirectoryState, Journal, Move, OldEntry, RemovedChild};
use crate::tree::{self, set_mode, walk};

/// What became of a commit.
#[derive(Debug, PartialEq, Eq)]
pub enum Commit {
    /// The io dir has all changes.
    Done,
    /// The io dir has none: these paths were changed by something else meanwhile.
    Conflicts(Vec<Vec<u8>>),
    /// The io dir has all changes but those of these paths, which something else changed while the
    /// others were moved.
    Partial(Vec<Vec<u8>>),
}

/// What a commit did not move: in the io dir it is as it was found.
#[derive(Debug, Default)]
pub(crate) struct SkippedPaths {
    /// The paths that something else changed since the journal was written.
    pub conflicts: Vec<Vec<u8>>,
    /// The paths that cannot be moved for as long as something is mounted there.
    pub blocked: Vec<Vec<u8>>,
}

/// The changed paths that something else changed since the run began.
pub(crate) fn conflicts(comparison: &Comparison, io_dir: &Root<'_>) -> Vec<Vec<u8>> {
    let is_covered = covered(comparison);
    let baseline = &comparison.baseline;
    let mut found = Vec::new();
    for (path, change) in &comparison.changed {
        let now = io_dir.stat(path).map(|stat| FileStamp::of(&stat));
        let is_as_it_was = match (change.before, now) {
            // What is below a directory that is new moves with it.
            (None, _) if is_covered(path) => true,
            (None, now) => now == Err(Errno::NOENT),
            (Some(before), Ok(now)) if before.original.is_directory() => {
                now.ino == before.original.ino
                    && now.mode == before.original.mode
                    && (change.stays_directory() || has_nothing_new(io_dir, path, baseline))
            }
            (Some(before), Ok(now)) => now == before.original,
            (Some(_), Err(_)) => false,
        };
        if !is_as_it_was || comparison.conflicts.contains(path) {
            found.push(path.to_vec());
        }
    }
    found
}

/// Whether a directory that goes has nothing that was not copied.
fn has_nothing_new(io_dir: &Root<'_>, path: &[u8], baseline: &Baseline) -> bool {
    let Ok(directory) = io_dir.directory(path) else { return false };
    let mut is_known = true;
    let walked = walk(directory.as_fd(), &mut |visit| {
        let path = join(path, visit.path);
        is_known &= baseline.entries.contains_key(&*path);
        Ok(())
    });
    walked.is_ok() && is_known
}

/// Whether a path moves with a parent directory that is new, removed, or of a different type.
pub(crate) fn covered(comparison: &Comparison) -> impl Fn(&[u8]) -> bool {
    |path| {
        let mut above = split(path).0;
        while !above.is_empty() {
            let moves = |change: &Changed| change.op != ChangeOp::Mode;
            if comparison.changed.get(above).is_some_and(moves) {
                return true;
            }
            above = split(above).0;
        }
        false
    }
}

/// The moves of a commit, of what changed or of the `copies` of that.
pub(crate) fn plan(comparison: &Comparison, copies: Option<&Baseline>, journal: &mut Journal) {
    let inode_of = |path: &[u8], now: FileStamp| {
        copies.and_then(|copies| copies.entries.get(path)).map_or(now.ino, |it| it.copy.ino)
    };
    let is_covered = covered(comparison);
    let baseline = &comparison.baseline;
    let mut disturbed: HashSet<&[u8]> = HashSet::new();
    for (path, change) in &comparison.changed {
        if is_covered(path) || change.stays_directory() {
            continue;
        }
        disturbed.insert(split(path).0);
        let encoded = Base64(path.to_vec());
        let mark = change.before.map(|before| OldEntry::of(before.original));
        journal.moves.push(match (change.now, mark) {
            (None, Some(before)) => {
                Move::Remove { path: encoded, before, below: below(baseline, path) }
            }
            (None, None) => continue,
            (Some(now), None) => Move::Create { path: encoded, inode: inode_of(path, now) },
            (Some(now), Some(before)) => {
                let (below, inode) = (below(baseline, path), inode_of(path, now));
                Move::Replace { path: encoded, inode, before, below }
            }
        });
    }
    // Removals first: a name may be free for something else then.
    journal.moves.sort_by_key(|it| !matches!(it, Move::Remove { .. }));
    let root: Box<[u8]> = Box::default();
    let all = comparison.directories.iter().chain([(&root, &comparison.root)]);
    for (path, stamp) in all {
        let before = match path.is_empty() {
            true => Some(&baseline.root),
            false => baseline.entries.get(path),
        };
        let has_mode = before.is_some_and(|it| it.copy.permissions() == stamp.permissions());
        let is_disturbed = disturbed.contains(&**path);
        if is_disturbed || !has_mode {
            journal.directories.push(DirectoryState {
                path: Base64(path.to_vec()),
                inode: before.filter(|_| !path.is_empty()).map(|it| it.original.ino),
                mode: (!has_mode).then(|| stamp.permissions()),
                modified: is_disturbed.then_some(stamp.modified),
            });
        }
    }
    // What is inside a directory first: it may be the directory's mode that lets it be reached.
    journal.directories.reverse();
}

/// What was below a directory.
fn below(baseline: &Baseline, directory: &[u8]) -> Vec<RemovedChild> {
    let prefix = [directory, b"/"].concat();
    let after_prefix = (Bound::Excluded(&*prefix), Bound::Unbounded);
    let entries = baseline.entries.range::<[u8], _>(after_prefix);
    let entries = entries.map_while(|(path, it)| Some((path.strip_prefix(&*prefix)?, it.original)));
    let below = |(path, stamp): (&[u8], FileStamp)| RemovedChild {
        path: Base64(path.to_vec()),
        entry: OldEntry::below(stamp),
    };
    entries.map(below).collect()
}

/// Moves what a journal says, from the beginning: what is done already is left as it is. Returns what
/// is not moved.
pub(crate) fn apply(
    journal: &Journal,
    io_dir: &Root<'_>,
    copy: &Root<'_>,
    trash: BorrowedFd<'_>,
    reached: &mut dyn FnMut(&'static str),
) -> Result<SkippedPaths> {
    let mut left = SkippedPaths::default();
    for it in &journal.moves {
        reached("moving");
        let path = it.path();
        let made = match it {
            Move::Remove { before, below, .. } => remove(io_dir, path, (*before, below), trash),
            Move::Create { inode, .. } => put(io_dir, copy, path, (*inode, None), trash),
            Move::Replace { inode, before, below, .. } => {
                put(io_dir, copy, path, (*inode, Some((*before, below))), trash)
            }
        };
        let is_blocked = match &made {
            Ok(Moved::Done) => false,
            Err(Errno::XDEV) => true,
            Ok(Moved::Kept) | Err(Errno::BUSY) => is_mounted(io_dir, path),
            Err(_) => false,
        };
        match made {
            _ if is_blocked => left.blocked.push(path.to_vec()),
            // The directory that it is in is gone, or another one.
            Ok(Moved::Kept) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                left.conflicts.push(path.to_vec());
                let path = String::from_utf8_lossy(path);
                tracing::warn!(%path, "something else changed it meanwhile: it is not committed");
            }
            made => _ = made?,
        }
    }
    Ok(left)
}

/// Sets the modes and times of directories, after the moves. Adds what cannot be set.
pub(crate) fn set_directories(
    journal: &Journal,
    io_dir: &Root<'_>,
    left: &mut SkippedPaths,
) -> Result<()> {
    for state in &journal.directories {
        let kept = match set_state(io_dir, state) {
            // It was removed or replaced since, by something else.
            Ok(Moved::Kept) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                &mut left.conflicts
            }
            Err(Errno::XDEV) => &mut left.blocked,
            set => {
                set?;
                continue;
            }
        };
        kept.extend(state.mode.is_some().then(|| state.path.0.clone()));
    }
    Ok(())
}

/// What [`apply`] and [`set_directories`] could not do now because something is mounted there.
pub(crate) fn blocked(journal: &Journal, io_dir: &Root<'_>, copy: &Root<'_>) -> Vec<Vec<u8>> {
    let moves = journal.moves.iter().filter(|it| match it {
        Move::Remove { .. } => true,
        // Otherwise it is done.
        Move::Create { path, inode } | Move::Replace { path, inode, .. } => {
            copy.stat(&path.0).is_ok_and(|stat| stat.st_ino == *inode)
        }
    });
    let moves = moves.map(Move::path).filter(|path| is_mounted(io_dir, path));
    let states = journal.directories.iter().filter(|it| it.mode.is_some());
    let states = states.map(|it| &*it.path.0);
    let is_covered =
        |path: &&[u8]| !path.is_empty() && io_dir.stat(path).err() == Some(Errno::XDEV);
    moves.chain(states.filter(is_covered)).map(<[u8]>::to_vec).collect()
}

/// Whether something is mounted at a path of the io dir, or above or below it.
fn is_mounted(io_dir: &Root<'_>, path: &[u8]) -> bool {
    if let Err(errno) = io_dir.stat(path) {
        return errno == Errno::XDEV;
    }
    let Ok(directory) = io_dir.directory(path) else { return false };
    let mut is_found = false;
    let walked = walk(directory.as_fd(), &mut |visit| {
        is_found |= is_mount(visit.parent, visit.name.to_bytes());
        Ok(())
    });
    is_found || matches!(walked, Err(StageError::MountPoint { .. }))
}

/// Whether something is mounted at an entry of a directory.
fn is_mount(parent: BorrowedFd<'_>, name: &[u8]) -> bool {
    retry(|| open_child(parent, name, OFlags::PATH)).err() == Some(Errno::XDEV)
}

/// What became of a path.
enum Moved {
    Done,
    /// Something else changed it: it is as that left it.
    Kept,
}

fn remove(
    io_dir: &Root<'_>,
    path: &[u8],
    (before, below): (OldEntry, &[RemovedChild]),
    trash: BorrowedFd<'_>,
) -> Result<Moved> {
    let (parent, name) = split(path);
    let parent = io_dir.directory(parent)?;
    match mark_at(parent.as_fd(), name)? {
        None => Ok(Moved::Done),
        Some(found) if found != before => Ok(Moved::Kept),
        Some(_) => discard(parent.as_fd(), name, below, trash),
    }
}

/// Moves something to what is removed with the stage, unless more is in it than was, now or once it
/// is there.
fn discard(
    parent: BorrowedFd<'_>,
    name: &[u8],
    below: &[RemovedChild],
    trash: BorrowedFd<'_>,
) -> Result<Moved> {
    if !has_only(parent, name, below) {
        return Ok(Moved::Kept);
    }
    let to = random_hex::<16>();
    movable(parent, name, || renameat(parent, name, trash, &to))?;
    if has_only(trash, to.as_bytes(), below) {
        return Ok(Moved::Done);
    }
    let back = || renameat_with(trash, &to, parent, name, RenameFlags::NOREPLACE);
    match movable(parent, to.as_bytes(), back) {
        // Something else has the name by now, or the filesystem knows no flags.
        Err(Errno::EXIST | Errno::INVAL) => {
            let kept_aside = [name, b".kept-", random_hex::<4>().as_bytes()].concat();
            movable(parent, to.as_bytes(), || renameat(trash, &to, parent, &*kept_aside))?;
        }
        back => back?,
    }
    Ok(Moved::Kept)
}

/// Whether a directory has nothing in it but what was: nothing new, nothing changed, no mount.
fn has_only(parent: BorrowedFd<'_>, name: &[u8], below: &[RemovedChild]) -> bool {
    let Ok(name) = CString::new(name) else { return false };
    let directory = match tree::open(parent, &name, OFlags::DIRECTORY) {
        // Not a directory.
        Err(Errno::NOTDIR | Errno::LOOP) => return true,
        Err(_) => return false,
        Ok(directory) => directory,
    };
    let known: HashMap<&[u8], OldEntry> = below.iter().map(|it| (&*it.path.0, it.entry)).collect();
    let mut is_known = true;
    let walked = walk(directory.as_fd(), &mut |visit| {
        let entry = OldEntry::below(FileStamp::of(visit.stat));
        is_known &=
            known.get(visit.path) == Some(&entry) && !is_mount(visit.parent, visit.name.to_bytes());
        Ok(())
    });
    // A mounted directory is an error.
    walked.is_ok() && is_known
}

/// Puts what has this inode in the copy into the io dir, in the place of what was there `before`.
fn put(
    io_dir: &Root<'_>,
    copy: &Root<'_>,
    path: &[u8],
    (inode, before): (u64, Option<(OldEntry, &[RemovedChild])>),
    trash: BorrowedFd<'_>,
) -> Result<Moved> {
    let (parent, name) = split(path);
    let source = match copy.directory(parent) {
        // It moved with its directory.
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Moved::Done),
        source => source?,
    };
    if mark_at(source.as_fd(), name)?.is_none_or(|found| found.inode != inode) {
        // It was moved already; later changes of it do not matter.
        return Ok(Moved::Done);
    }
    let target = io_dir.directory(parent)?;
    let (source, target) = (source.as_fd(), target.as_fd());
    let is_as_it_was = |at, below| has_only(at, name, below);
    if mark_at(target, name)? != before.map(|(before, _)| before)
        || before.is_some_and(|(_, below)| !is_as_it_was(target, below))
    {
        return Ok(Moved::Kept);
    }
    let flags = match before {
        None => RenameFlags::NOREPLACE,
        Some(_) => RenameFlags::EXCHANGE,
    };
    let exchange = || {
        movable(target, name, || {
            movable(source, name, || renameat_with(source, name, target, name, flags))
        })
    };
    match exchange() {
        // The filesystem knows no flags.
        Err(Errno::INVAL) => {
            if let Some((_, below)) = before
                && let Moved::Kept = discard(target, name, below, trash)?
            {
                return Ok(Moved::Kept);
            }
            movable(target, name, || {
                movable(source, name, || renameat(source, name, target, name))
            })?;
        }
        Err(Errno::EXIST) => return Ok(Moved::Kept),
        moved => {
            moved?;
            if before.is_some_and(|(_, below)| !is_as_it_was(source, below)) {
                exchange()?;
                return Ok(Moved::Kept);
            }
        }
    }
    Ok(Moved::Done)
}

fn mark_at(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<OldEntry>> {
    Ok(tree::stat_at(parent, name)?.map(|stat| OldEntry::of(FileStamp::of(&stat))))
}

/// Moves something that may be in a directory, or be one, whose owner took away the right to write:
/// for its owner, who is not root, the right comes back for a moment.
fn movable(parent: BorrowedFd<'_>, name: &[u8], rename: impl Fn() -> Result<()>) -> Result<()> {
    match retry(&rename) {
        Err(Errno::ACCESS | Errno::PERM) => {
            let parent_mode = unlock(parent)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let moved = rustix::fs::openat(parent, name, flags, Mode::empty()).ok();
            let moved_mode = moved.as_ref().map(|it| unlock(it.as_fd())).transpose()?;
            let renamed = retry(&rename);
            if let (Some(moved), Some(mode)) = (moved, moved_mode) {
                set_mode(moved.as_fd(), mode)?;
            }
            set_mode(parent, parent_mode)?;
            renamed
        }
        renamed => renamed,
    }
}

/// Gives the owner of a directory all rights to it, and returns the mode that it had.
fn unlock(directory: BorrowedFd<'_>) -> Result<u32> {
    let mode = fstat(directory)?.st_mode & 0o7777;
    set_mode(directory, mode | 0o700)?;
    Ok(mode)
}

fn set_state(io_dir: &Root<'_>, state: &DirectoryState) -> Result<Moved> {
    let directory: OwnedFd = io_dir.open(&state.path.0, OFlags::PATH | OFlags::DIRECTORY)?;
    if state.inode.is_some_and(|inode| fstat(&directory).map(|it| it.st_ino) != Ok(inode)) {
        return Ok(Moved::Kept);
    }
    if let Some(mode) = state.mode {
        set_mode(directory.as_fd(), mode)?;
    }
    if let Some((seconds, nanoseconds)) = state.modified {
        let nanoseconds = i64::try_from(nanoseconds).unwrap_or(0);
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
        };
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        utimensat(rustix::fs::CWD, path, &times, AtFlags::empty())?;
    }
    Ok(Moved::Done)
}
