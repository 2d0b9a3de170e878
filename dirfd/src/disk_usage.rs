//! How much of a filesystem files use.

use std::os::fd::AsFd;

use rustix::fs::Stat;

use crate::free_space::XFS_MAGIC;

/// The largest block that a filesystem allocates at once.
const LARGEST_BLOCK: u64 = 64 << 10;
/// XFS preallocates space for writes that append to a file of this size or more: up to twice the
/// file's size, until it is closed.
const LEAST_AHEAD: u64 = 64 << 10;

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
#[derive(Debug, Clone, Copy)]
pub struct DiskMeter {
    is_xfs: bool,
}

impl DiskMeter {
    /// A meter of files on the filesystem of a directory.
    #[must_use]
    pub fn new(directory: impl AsFd) -> Self {
        let kind = rustix::fs::fstatfs(directory).map_or(0, |it| it.f_type as u32);
        Self { is_xfs: kind == XFS_MAGIC }
    }

    /// The disk usage of a file: the allocated part of its size, or all that is allocated if that is more
    /// than its size, and what XFS allocates ahead of writes, explain. Programs cannot allocate space
    /// without writing.
    #[must_use]
    pub fn bytes_of(self, stat: &Stat) -> u64 {
        // Their types depend on the platform.
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let allocated = allocated(stat);
        let block = u64::try_from(stat.st_blksize).unwrap_or(0).clamp(512, LARGEST_BLOCK);
        let ahead = match self.is_xfs && size >= LEAST_AHEAD {
            true => size.saturating_mul(2).saturating_add(LEAST_AHEAD),
            false => 0,
        };
        let is_explained = allocated < size.saturating_add(block.max(ahead));
        if is_explained { size.min(allocated) } else { allocated }
    }
}

/// What is allocated for a file.
pub(crate) fn allocated(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

#[cfg(test)]
mod tests;
