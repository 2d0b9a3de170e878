//! The free space of a filesystem.

use std::os::fd::AsFd;

use rustix::io::Result;

/// The free space of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeSpace {
    /// Free bytes, including those reserved for root: used to track usage.
    pub bytes: u64,
    /// Free bytes that unprivileged users may use.
    pub available: u64,
    /// Free inodes; 0 if the filesystem does not count them.
    pub inodes: u64,
    /// Free inodes that unprivileged users may use.
    pub available_inodes: u64,
    /// All inodes; 0 if the filesystem does not count them.
    pub most_inodes: u64,
    /// The size of the filesystem in bytes.
    pub size: u64,
}

impl FreeSpace {
    /// The free space of the filesystem that `file` is on. It takes microseconds on a local one.
    ///
    /// # Errors
    ///
    /// As of `fstatvfs`.
    pub fn of(file: impl AsFd) -> Result<Self> {
        let stat = rustix::fs::fstatvfs(file)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Self {
            bytes: bytes(stat.f_bfree),
            available: bytes(stat.f_bavail),
            inodes: stat.f_ffree,
            available_inodes: stat.f_favail,
            most_inodes: stat.f_files,
            size: bytes(stat.f_blocks),
        })
    }
}
