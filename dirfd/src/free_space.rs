//! The free space of a filesystem.

use std::os::fd::AsFd;

use rustix::io::Result;

use crate::btrfs;

/// Magic numbers of filesystems: `include/uapi/linux/magic.h`. The first is that of ext2 to ext4.
const EXT_MAGIC: u32 = 0xef53;
pub(crate) const XFS_MAGIC: u32 = 0x5846_5342;
const TMPFS_MAGIC: u32 = 0x0102_1994;

/// The maximum number of queries, if each returns a different state.
const MOST_ROUNDS: usize = 3;

/// The free space of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeSpace {
    /// Free bytes, including those reserved for root: used to track usage.
    pub bytes: u64,
    /// Free bytes that unprivileged users may use, or may once the filesystem has committed.
    pub available: u64,
    /// Free inodes; 0 if the filesystem does not count them.
    pub inodes: u64,
    /// Free inodes that unprivileged users may use.
    pub available_inodes: u64,
    /// All inodes; 0 if the filesystem does not count them.
    pub most_inodes: u64,
    /// The size of the filesystem in bytes.
    pub size: u64,
    /// Bytes on the disk that may be free once the filesystem commits a transaction, and are not counted
    /// in `bytes`. Btrfs alone has such.
    pub uncommitted: u64,
    /// Bytes that are to be written, where the filesystem itself does not count them: on Btrfs.
    pub to_write: u64,
}

impl FreeSpace {
    /// The free space of the filesystem that `directory` is on. It takes microseconds on a local one.
    ///
    /// # Errors
    ///
    /// As of `fstatfs`.
    pub fn of(directory: impl AsFd) -> Result<Self> {
        let (mut space, kind) = Self::reported(&directory)?;
        if kind != btrfs::MAGIC {
            return Ok(space);
        }
        // A commit between two answers would be counted twice.
        let mut taken = btrfs::uncommitted(&directory);
        for _ in 0..MOST_ROUNDS {
            let (now, _) = Self::reported(&directory)?;
            if now.bytes == space.bytes {
                return Ok(space.without(taken));
            }
            space = now;
            taken = btrfs::uncommitted(&directory);
        }
        Ok(space.without(btrfs::Uncommitted { written: 0, ..taken }))
    }

    /// The values that the filesystem reports, and its magic number.
    fn reported(directory: impl AsFd) -> Result<(Self, u32)> {
        let stat = rustix::fs::fstatfs(directory)?;
        // Their types depend on the platform.
        let block = u64::try_from(stat.f_frsize).unwrap_or(0);
        let bytes = |blocks: u64| blocks.saturating_mul(block);
        let space = Self {
            bytes: bytes(stat.f_bfree),
            available: bytes(stat.f_bavail),
            inodes: stat.f_ffree,
            available_inodes: stat.f_ffree,
            most_inodes: stat.f_files,
            size: bytes(stat.f_blocks),
            uncommitted: 0,
            to_write: 0,
        };
        Ok((space, stat.f_type as u32))
    }

    /// The same without what is taken since the last commit.
    const fn without(self, taken: btrfs::Uncommitted) -> Self {
        let btrfs::Uncommitted { written, to_write } = taken;
        Self {
            bytes: self.bytes.saturating_sub(written.saturating_add(to_write)),
            available: self.available.saturating_sub(to_write),
            uncommitted: written,
            to_write,
            ..self
        }
    }
}

/// Whether a filesystem's free space is known locally, in this kernel's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locality {
    /// It is.
    Local,
    /// It may have to ask another machine, or another process.
    Unknown,
}

impl Locality {
    /// The locality of the filesystem that `file` is on.
    #[must_use]
    pub fn of(file: impl AsFd) -> Self {
        rustix::fs::fstatfs(file).map_or(Self::Unknown, |stat| Self::of_type(stat.f_type as u32))
    }

    const fn of_type(magic: u32) -> Self {
        match magic {
            EXT_MAGIC | XFS_MAGIC | btrfs::MAGIC | TMPFS_MAGIC => Self::Local,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_of_network_and_user_space_file_systems_is_not_known_locally() {
        assert_eq!([0xef53, 0x0102_1994].map(Locality::of_type), [Locality::Local; 2]);
        // NFS, FUSE, SMB 2, 9P.
        let others = [0x6969, 0x6573_5546, 0xfe53_4d42, 0x0102_1997];
        assert_eq!(others.map(Locality::of_type), [Locality::Unknown; 4]);
    }

    #[test]
    fn what_is_not_committed_is_taken_and_may_be_free_again() {
        let before = FreeSpace { bytes: 50, available: 40, size: 90, ..FreeSpace::default() };
        let space = before.without(btrfs::Uncommitted { written: 7, to_write: 30 });
        assert_eq!((space.bytes, space.available), (13, 10));
        assert_eq!((space.uncommitted, space.to_write), (7, 30));
        let none = before.without(btrfs::Uncommitted { written: 7, to_write: u64::MAX });
        assert_eq!((none.bytes, none.available), (0, 0));
    }
}
