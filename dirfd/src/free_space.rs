//! The free space of a filesystem.

use std::os::fd::AsFd;

use rustix::io::Result;

use crate::DiskUsage;

/// Magic numbers of filesystems: `include/uapi/linux/magic.h`. The first is that of ext2 to ext4.
const EXT_MAGIC: u32 = 0xef53;
pub(crate) const XFS_MAGIC: u32 = 0x5846_5342;
const BTRFS_MAGIC: u32 = 0x9123_683e;
const TMPFS_MAGIC: u32 = 0x0102_1994;

/// The free space of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeSpace {
    /// Free bytes, including those reserved for root: used to track usage.
    pub bytes: u64,
    /// Free bytes that unprivileged users may use.
    pub available: u64,
    /// Free inodes, which unprivileged users may use; 0 if the filesystem does not count them.
    pub inodes: u64,
    /// All inodes; 0 if the filesystem does not count them.
    pub most_inodes: u64,
    /// The size of the filesystem in bytes.
    pub size: u64,
}

impl FreeSpace {
    /// The free space of the filesystem that `directory` is on. It takes microseconds on a local one.
    ///
    /// # Errors
    ///
    /// As of `fstatfs`.
    pub fn of(directory: impl AsFd) -> Result<Self> {
        let stat = rustix::fs::fstatfs(directory)?;
        // Their types depend on the platform.
        let block = u64::try_from(stat.f_frsize).unwrap_or(0);
        let bytes = |blocks: u64| blocks.saturating_mul(block);
        Ok(Self {
            bytes: bytes(stat.f_bfree),
            available: bytes(stat.f_bavail),
            inodes: stat.f_ffree,
            most_inodes: stat.f_files,
            size: bytes(stat.f_blocks),
        })
    }

    /// What is in use.
    #[must_use]
    pub const fn used(&self) -> DiskUsage {
        DiskUsage {
            bytes: self.size.saturating_sub(self.bytes),
            entries: self.most_inodes.saturating_sub(self.inodes),
        }
    }
}

/// Whether the free space of the filesystem that `file` is on is known locally, in this kernel's memory.
/// Otherwise it may have to ask another machine, or another process.
#[must_use]
pub fn is_local(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|stat| is_local_type(stat.f_type as u32))
}

const fn is_local_type(magic: u32) -> bool {
    matches!(magic, EXT_MAGIC | XFS_MAGIC | BTRFS_MAGIC | TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_of_network_and_user_space_file_systems_is_not_known_locally() {
        assert_eq!([0xef53, 0x0102_1994].map(is_local_type), [true; 2]);
        // NFS, FUSE, SMB 2, 9P.
        let others = [0x6969, 0x6573_5546, 0xfe53_4d42, 0x0102_1997];
        assert_eq!(others.map(is_local_type), [false; 4]);
    }
}
