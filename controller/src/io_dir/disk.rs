//! What a file system has left, and how much of it programs may not take.

use std::fmt;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::time::Duration;

use rustix::io::Errno;
use sandbox_api::{ByteSize, LimitParseError};

/// The largest reserve that is kept unless somebody says otherwise.
const MOST_BY_DEFAULT: u64 = 1 << 30;
/// The part of a file system that is kept where that is less: a twentieth.
const PART_BY_DEFAULT: u64 = 20;

/// How much space sandboxes leave free on the file system of the io dir, whoever fills it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DiskReserve {
    /// 1 GiB or 5 % of the file system, whichever is smaller: a small disk can still be worked on.
    #[default]
    Auto,
    /// That many bytes.
    Bytes(ByteSize),
}

impl DiskReserve {
    /// The word for [`Auto`](Self::Auto).
    pub const AUTO: &'static str = "auto";

    /// The bytes that stay free on a file system of that size.
    #[must_use]
    pub fn of(self, size: u64) -> u64 {
        match self {
            Self::Auto => MOST_BY_DEFAULT.min(size / PART_BY_DEFAULT),
            Self::Bytes(bytes) => bytes.as_u64(),
        }
    }
}

impl fmt::Display for DiskReserve {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => formatter.pad(Self::AUTO),
            Self::Bytes(bytes) => bytes.fmt(formatter),
        }
    }
}

/// A text that is no [`DiskReserve`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is neither auto nor a size with a unit, such as 512MiB or 1GiB")]
pub struct DiskReserveError {
    /// As it was given.
    text: String,
}

impl FromStr for DiskReserve {
    type Err = DiskReserveError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == Self::AUTO {
            return Ok(Self::Auto);
        }
        text.parse()
            .map(Self::Bytes)
            .map_err(|_: LimitParseError| DiskReserveError { text: text.to_owned() })
    }
}

/// What a file system has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FreeSpace {
    /// Bytes that nobody has taken, those reserved for root among them: by these its use is followed.
    pub bytes: u64,
    /// Bytes that users without privileges may take.
    pub available: u64,
    /// Files and directories that can still be made; none where it does not count them.
    pub inodes: u64,
    /// Bytes of the whole file system.
    pub size: u64,
}

impl FreeSpace {
    /// Of the file system that `file` is on. It costs microseconds on a local one.
    pub fn of(file: impl AsFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstatvfs(file)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Self {
            bytes: bytes(stat.f_bfree),
            available: bytes(stat.f_bavail),
            inodes: stat.f_ffree,
            size: bytes(stat.f_blocks),
        })
    }
}

/// Whether what a file system has left is known on this machine, in its kernel's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locality {
    Local,
    /// It may have to ask another machine, or another program.
    Unknown,
}

impl Locality {
    /// Of the file system that `file` is on.
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

/// Whether a file system may be asked on a thread that others wait for.
#[derive(Debug)]
pub(crate) struct Promptness {
    locality: Locality,
    /// Whether the last answer came at once.
    is_prompt: bool,
}

impl Promptness {
    /// Longer than any answer from memory, shorter than what others would feel.
    const AT_ONCE: Duration = Duration::from_millis(1);

    /// Nothing is known of its answers yet.
    pub const fn new(locality: Locality) -> Self {
        Self { locality, is_prompt: false }
    }

    pub fn is_inline(&self) -> bool {
        self.is_prompt && self.locality == Locality::Local
    }

    /// Takes how long the last answer took.
    pub fn answered(&mut self, cost: Duration) {
        self.is_prompt = cost < Self::AT_ONCE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_reserve_is_the_smaller_of_a_gibibyte_and_a_twentieth() {
        const GIB: u64 = 1 << 30;
        for (size, expected) in
            [(1000 * GIB, GIB), (20 * GIB, GIB), (10 * GIB, GIB / 2), (100 << 20, 5 << 20), (0, 0)]
        {
            assert_eq!(DiskReserve::Auto.of(size), expected, "{size}");
        }
        // One that somebody chose is as large as they said.
        assert_eq!(DiskReserve::Bytes(ByteSize::b(3 * GIB)).of(GIB), 3 * GIB);
    }

    #[test]
    fn only_a_local_file_system_that_answers_at_once_is_asked_inline() {
        // ext4, tmpfs; NFS, FUSE, SMB 2, 9P.
        assert_eq!([0xef53, 0x0102_1994].map(Locality::of_type), [Locality::Local; 2]);
        let others = [0x6969, 0x6573_5546, 0xfe53_4d42, 0x0102_1997];
        assert_eq!(others.map(Locality::of_type), [Locality::Unknown; 4]);
        let is_inline = |locality, micros| {
            let mut promptness = Promptness::new(locality);
            assert!(!promptness.is_inline());
            promptness.answered(Duration::from_micros(micros));
            promptness.is_inline()
        };
        assert!(is_inline(Locality::Local, 999) && !is_inline(Locality::Local, 1000));
        assert!(!is_inline(Locality::Unknown, 1));
    }

    #[test]
    fn a_reserve_is_read_as_it_is_printed() {
        for text in ["auto", "0B", "512MiB", "1GiB"] {
            assert_eq!(text.parse::<DiskReserve>().unwrap().to_string(), text);
        }
        for text in ["", "Auto", "5%", "10", "-1B"] {
            let error = text.parse::<DiskReserve>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("'{text}' is neither auto nor a size")), "{error}");
        }
    }
}
