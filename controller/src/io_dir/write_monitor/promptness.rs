//! How promptly a filesystem answers.

use std::os::fd::AsFd;
use std::time::Duration;

/// Whether a filesystem's free space is known locally, in this kernel's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locality {
    Local,
    /// It may have to ask another machine, or another process.
    Unknown,
}

impl Locality {
    /// The locality of the filesystem that `file` is on.
    pub fn of(file: impl AsFd) -> Self {
        rustix::fs::fstatfs(file).map_or(Self::Unknown, |stat| Self::of_type(stat.f_type as u32))
    }

    const fn of_type(magic: u32) -> Self {
        match magic {
            // ext2 to ext4, XFS, Btrfs, tmpfs: include/uapi/linux/magic.h
            0xef53 | 0x5846_5342 | 0x9123_683e | 0x0102_1994 => Self::Local,
            _ => Self::Unknown,
        }
    }
}

/// Whether a filesystem may be asked on a thread that others wait for.
#[derive(Debug)]
pub(crate) struct Promptness {
    locality: Locality,
    /// Whether the last answer was immediate.
    is_prompt: bool,
}

impl Promptness {
    /// Longer than any answer from memory, but too short for others to notice.
    const AT_ONCE: Duration = Duration::from_millis(1);

    /// Without any measurement so far.
    pub const fn new(locality: Locality) -> Self {
        Self { locality, is_prompt: false }
    }

    pub fn is_inline(&self) -> bool {
        self.is_prompt && self.is_local()
    }

    pub fn is_local(&self) -> bool {
        self.locality == Locality::Local
    }

    /// Records how long the last answer took.
    pub fn answered(&mut self, cost: Duration) {
        self.is_prompt = cost < Self::AT_ONCE;
    }
}

#[cfg(test)]
mod tests;
