//! The identity of a file, independent of its path.

use rustix::fs::Stat;

/// Identifies a file or directory on this kernel, for as long as it is held open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The device of its filesystem.
    pub dev: u64,
    /// Its inode number.
    pub ino: u64,
}

impl Identity {
    /// The identity of the file with this metadata.
    #[must_use]
    pub const fn of(stat: &Stat) -> Self {
        Self { dev: stat.st_dev, ino: stat.st_ino }
    }
}
