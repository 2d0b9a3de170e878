//! Trees by descriptors: their entries, and how a change is detected.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, StatxFlags, chmod, statat, statx};
use rustix::io::{Errno, Result};
use rustix::path::Arg;
use rustix::time::{ClockId, Timespec, clock_gettime};
use sandbox_api::changes::ChangeType;
use sandbox_dirfd::{FileStamp, join, open_child, retry};
use serde::{Deserialize, Serialize};

use crate::error::StageError;

/// The maximum depth of directories. Each level holds a descriptor, or two.
pub(crate) const MAX_DEPTH: usize = 128;
/// The maximum number of entries.
pub(crate) const MAX_ENTRIES: usize = 2_000_000;

/// The maximum number of bytes of all paths.
const MAX_PATH_BYTES: usize = 64 << 20;

/// How much a walk has come to.
#[derive(Debug, Default)]
pub(crate) struct WalkCount {
    entries: usize,
    path_bytes: usize,
}

impl WalkCount {
    pub fn add(&mut self, path: &[u8]) -> std::result::Result<(), StageError> {
        self.entries += 1;
        self.path_bytes += path.len();
        if self.entries > MAX_ENTRIES || self.path_bytes > MAX_PATH_BYTES {
            return Err(StageError::TooMany);
        }
        Ok(())
    }
}

/// Refuses a directory that has more above it than can be followed.
pub(crate) fn check_depth(path: &[u8]) -> std::result::Result<(), StageError> {
    match path.split(|&byte| byte == b'/').count() > MAX_DEPTH {
        true => Err(StageError::TooDeep { path: path.to_owned() }),
        false => Ok(()),
    }
}

/// The type of a file.
pub(crate) fn kind_of(stamp: FileStamp) -> ChangeType {
    match stamp.file_type() {
        FileType::RegularFile => ChangeType::File,
        FileType::Directory => ChangeType::Directory,
        FileType::Symlink => ChangeType::Symlink,
        _ => ChangeType::Other,
    }
}

/// A time as it is in a [`FileStamp`].
pub(crate) fn stamp_time(time: Timespec) -> (i64, u64) {
    (time.tv_sec, u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Waits until the clock of the filesystems, which goes in ticks, is later than `time`.
pub(crate) fn wait_for_tick(time: (i64, u64)) {
    loop {
        let now = stamp_time(clock_gettime(ClockId::RealtimeCoarse));
        // A time in the future says nothing: the clock was set back.
        if now > time || time.0 - now.0 > 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// When an inode was created according to its filesystem: inode numbers are reused.
pub(crate) type BirthTime = Option<(i64, u32)>;

pub(crate) fn birth_time(parent: BorrowedFd<'_>, name: &CStr) -> BirthTime {
    Inode::at(parent, name).ok()?.born
}

/// An inode; `born` distinguishes it from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inode {
    pub device: u64,
    pub number: u64,
    pub born: BirthTime,
}

impl Inode {
    /// Of an open file.
    pub fn of(file: impl AsFd) -> Result<Self> {
        Self::at(file, c"")
    }

    /// Of an entry of a directory.
    pub fn at(directory: impl AsFd, name: impl Arg) -> Result<Self> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        let found = statx(directory, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        let has_born = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        Ok(Self {
            device: (u64::from(found.stx_dev_major) << 32) | u64::from(found.stx_dev_minor),
            number: found.stx_ino,
            born: has_born.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec)),
        })
    }
}

/// Opens a file or directory to read it, without following a link or waiting for a FIFO, and where
/// that is allowed without changing when it was last read. A mount is `EXDEV`.
pub(crate) fn open(parent: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd> {
    match retry(|| open_child(parent, name.to_bytes(), flags | OFlags::NOATIME)) {
        Err(Errno::PERM) => retry(|| open_child(parent, name.to_bytes(), flags)),
        opened => opened,
    }
}

/// Sets the mode of what a descriptor names, also of one that does nothing else.
pub(crate) fn set_mode(of: BorrowedFd<'_>, mode: u32) -> Result<()> {
    chmod(format!("/proc/self/fd/{}", of.as_raw_fd()), Mode::from_raw_mode(mode))
}

/// The metadata of an entry of a directory, if it is there.
pub(crate) fn stat_at(directory: BorrowedFd<'_>, name: impl Arg) -> Result<Option<Stat>> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The entries of a directory, sorted by name, with their metadata. One that disappears meanwhile is
/// left out.
pub(crate) fn entries(directory: BorrowedFd<'_>) -> Result<Vec<(CString, Stat)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        found.extend(stat_at(directory, name)?.map(|stat| (name.to_owned(), stat)));
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}

/// An entry that a walk has come to.
pub(crate) struct Visit<'a> {
    pub parent: BorrowedFd<'a>,
    pub name: &'a CStr,
    pub path: &'a [u8],
    pub stat: &'a Stat,
}

/// Calls `see` for every entry below `root`, parents first.
pub(crate) fn walk(
    root: BorrowedFd<'_>,
    see: &mut impl FnMut(Visit<'_>) -> std::result::Result<(), StageError>,
) -> std::result::Result<(), StageError> {
    let root_fd = open(root, c".", OFlags::DIRECTORY).map_err(StageError::at(b"."))?;
    walk_in(root_fd.as_fd(), b"", see)
}

fn walk_in(
    directory: BorrowedFd<'_>,
    path: &[u8],
    see: &mut impl FnMut(Visit<'_>) -> std::result::Result<(), StageError>,
) -> std::result::Result<(), StageError> {
    for (name, stat) in entries(directory).map_err(StageError::at(path))? {
        let path = join(path, name.to_bytes());
        see(Visit { parent: directory, name: &name, path: &path, stat: &stat })?;
        if FileStamp::of(&stat).is_directory() {
            check_depth(&path)?;
            let below = match open(directory, &name, OFlags::DIRECTORY) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                opened => opened.map_err(StageError::at(&path))?,
            };
            walk_in(below.as_fd(), &path, see)?;
        }
    }
    Ok(())
}
