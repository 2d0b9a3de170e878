//! Which file something is, whatever its path.

use rustix::fs::Stat;

/// Which file or directory something is, on this kernel, for as long as it is held open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The device of its file system.
    pub dev: u64,
    /// Its inode there.
    pub ino: u64,
}

impl Identity {
    /// That of what was looked at.
    #[must_use]
    pub const fn of(stat: &Stat) -> Self {
        Self { dev: stat.st_dev, ino: stat.st_ino }
    }
}
