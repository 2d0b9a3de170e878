//! What tells that a file changed.

use rustix::fs::{FileType, Stat};

/// Shows that a file changed: every write and every change of metadata changes its ctime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    /// The device of its filesystem.
    pub dev: u64,
    /// Its inode number.
    pub ino: u64,
    /// Its type and its permissions.
    pub mode: u32,
    /// Its size in bytes.
    pub size: u64,
    /// When its content was last modified, in seconds and nanoseconds.
    pub modified: (i64, u64),
    /// When it was last changed.
    pub changed: (i64, u64),
}

impl FileStamp {
    /// The stamp of the file with this metadata.
    #[must_use]
    pub fn of(stat: &Stat) -> Self {
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
            mode: stat.st_mode,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// Its type.
    #[must_use]
    pub const fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// The permission bits.
    #[must_use]
    pub const fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }
}
