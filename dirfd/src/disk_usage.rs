//! How much of a filesystem files use.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Stat};

use crate::btrfs::{self, Extent};
use crate::free_space::XFS_MAGIC;

/// The largest block that a filesystem allocates at once.
const LARGEST_BLOCK: u64 = 64 << 10;
/// XFS preallocates space for writes that append to a file of this size or more: up to twice the
/// file's size, until it is closed.
const LEAST_AHEAD: u64 = 64 << 10;
/// How many extents are looked at: some MiB of memory, and a second.
const MOST_EXTENTS: usize = 1 << 18;

/// How much of its filesystem a directory tree uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskUsage {
    /// Allocated bytes of files; a file with several names counts once.
    pub bytes: u64,
    /// Files, directories and all other entries.
    pub entries: u64,
}

impl DiskUsage {
    /// The maximum of both, field by field.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), entries: self.entries.max(other.entries) }
    }
}

impl std::ops::Add for DiskUsage {
    type Output = Self;

    /// The sum of both, field by field, or the largest number.
    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            entries: self.entries.saturating_add(other.entries),
        }
    }
}

/// Measures files of one filesystem.
#[derive(Debug)]
pub struct DiskMeter {
    /// The directory, and the device of its files, if it is on Btrfs.
    btrfs: Option<(OwnedFd, u64)>,
    /// The extents that were met there.
    extents: HashSet<u64>,
    is_xfs: bool,
}

impl DiskMeter {
    /// A meter of files on the filesystem of a directory.
    #[must_use]
    pub fn new(directory: impl AsFd) -> Self {
        let kind = rustix::fs::fstatfs(&directory).map_or(0, |it| it.f_type as u32);
        let open = || {
            let opened = btrfs::open(&directory).ok()?;
            let dev = rustix::fs::fstat(&opened).ok()?.st_dev;
            Some((opened, dev))
        };
        let btrfs = (kind == btrfs::MAGIC).then(open).flatten();
        Self { btrfs, extents: HashSet::new(), is_xfs: kind == XFS_MAGIC }
    }

    /// Whether the kernel names another device for a mapping of a file than for the file: each subvolume
    /// has a device of its own.
    #[must_use]
    pub const fn has_subvolumes(&self) -> bool {
        self.btrfs.is_some()
    }

    /// The disk usage of a file. On Btrfs that is what its extents take, used or not, if this process is
    /// root; an extent counts once.
    #[must_use]
    pub fn bytes_of(&mut self, stat: &Stat) -> u64 {
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let bytes = bytes_of(stat, self.is_xfs);
        let Some((directory, dev)) = self.btrfs.as_ref().filter(|_| is_file) else { return bytes };
        if stat.st_dev != *dev || self.extents.len() >= MOST_EXTENTS {
            return bytes;
        }
        let (mut kept, extents) = (Kept::default(), &mut self.extents);
        let all = btrfs::extents(directory, stat.st_ino, |extent| {
            kept.add(extent, extents);
            extents.len() < MOST_EXTENTS
        });
        if all.is_err() {
            self.btrfs = None;
        }
        kept.allocated_with(bytes)
    }
}

/// What the extents of a file keep allocated, but for those that were met before, and how much the file
/// uses of all.
#[derive(Debug, Default)]
struct Kept {
    bytes: u64,
    used: u64,
}

impl Kept {
    fn add(&mut self, extent: Extent, met: &mut HashSet<u64>) {
        self.used = self.used.saturating_add(extent.used);
        if met.insert(extent.start) {
            self.bytes = self.bytes.saturating_add(extent.bytes);
        }
    }

    /// With the rest of the file's bytes: what is not on the disk yet is in no extent.
    const fn allocated_with(&self, file: u64) -> u64 {
        file.saturating_add(self.bytes).saturating_sub(self.used)
    }
}

fn allocated(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

/// The allocated part of a file's size, or all that is allocated if that is more than its size, and what
/// XFS allocates ahead of writes, explain. Programs cannot allocate space without writing.
fn bytes_of(stat: &Stat, is_xfs: bool) -> u64 {
    // Their types depend on the platform.
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let allocated = allocated(stat);
    let block = u64::try_from(stat.st_blksize).unwrap_or(0).clamp(512, LARGEST_BLOCK);
    let ahead = if !is_xfs || size < LEAST_AHEAD {
        0
    } else {
        size.saturating_mul(2).saturating_add(LEAST_AHEAD)
    };
    if allocated < size.saturating_add(block.max(ahead)) { size.min(allocated) } else { allocated }
}

#[cfg(test)]
mod tests;
