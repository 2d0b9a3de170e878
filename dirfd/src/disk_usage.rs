//! How much of a filesystem files use.

use rustix::fs::Stat;

/// The largest block that a filesystem allocates at once.
const LARGEST_BLOCK: u64 = 64 << 10;

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

/// The disk usage of a file: the allocated part of its size, or more if more is allocated than its
/// last block explains.
#[must_use]
pub fn bytes_of(stat: &Stat) -> u64 {
    // Their types depend on the platform.
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let block = u64::try_from(stat.st_blksize).unwrap_or(0).clamp(512, LARGEST_BLOCK);
    if allocated < size.saturating_add(block) { size.min(allocated) } else { allocated }
}
