//! Free space of a filesystem, and the disk reserve.

use std::fmt;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::time::Duration;

use rustix::io::Errno;
use sandbox_api::{ByteSize, LimitParseError};

/// The maximum of the default reserve.
const MOST_BY_DEFAULT: u64 = 1 << 30;
/// The default reserve of a smaller filesystem: a twentieth.
const PART_BY_DEFAULT: u64 = 20;

/// How much space sandboxes leave free on the filesystem of the io dir, whoever else fills it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DiskReserve {
    /// 1 GiB or 5 % of the filesystem, whichever is smaller, so that a small disk remains usable.
    #[default]
    Auto,
    /// This many bytes.
    Bytes(ByteSize),
}

impl DiskReserve {
    /// The name of [`Auto`](Self::Auto).
    pub const AUTO: &'static str = "auto";

    /// The number of inodes to leave free on this filesystem: the same part as of its bytes, but no
    /// more than a twentieth.
    pub(crate) fn inodes_of(self, space: &FreeSpace) -> u64 {
        let bytes = self.of(space.size).min(space.size / PART_BY_DEFAULT);
        let part = u128::from(space.most_inodes) * u128::from(bytes);
        u64::try_from(part / u128::from(space.size.max(1))).unwrap_or(u64::MAX)
    }

    /// The number of bytes to leave free on a filesystem of this size.
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

/// A text is not a valid [`DiskReserve`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is neither auto nor a size with a unit, such as 512MiB or 1GiB")]
pub struct DiskReserveError {
    /// The text as given.
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

/// The free space of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FreeSpace {
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
    /// The bytes and inodes that may still be used; without end, where they are not counted.
    pub fn above(&self, reserve: DiskReserve) -> (u64, u64) {
        let inodes = match self.most_inodes {
            0 => u64::MAX,
            _ => self.available_inodes.saturating_sub(reserve.inodes_of(self)),
        };
        (self.available.saturating_sub(reserve.of(self.size)), inodes)
    }

    /// The free space of the filesystem that `file` is on. It takes microseconds on a local one.
    pub fn of(file: impl AsFd) -> Result<Self, Errno> {
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
        self.is_prompt && self.locality == Locality::Local
    }

    /// Records how long the last answer took.
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
        // An explicit reserve is used as given.
        assert_eq!(DiskReserve::Bytes(ByteSize::b(3 * GIB)).of(GIB), 3 * GIB);
    }

    #[test]
    fn inodes_are_reserved_like_bytes_and_at_most_a_twentieth() {
        const GIB: u64 = 1 << 30;
        let reserved = |reserve: DiskReserve, size, most_inodes| {
            reserve.inodes_of(&FreeSpace { size, most_inodes, ..FreeSpace::default() })
        };
        assert_eq!(reserved(DiskReserve::Auto, 6 * GIB, 393_216), 19_660);
        assert_eq!(reserved(DiskReserve::Auto, 1000 * GIB, 1_000_000), 1000);
        assert_eq!(reserved(DiskReserve::Bytes(ByteSize::b(0)), GIB, 1_000_000), 0);
        assert_eq!(reserved(DiskReserve::Bytes(ByteSize::b(9 * GIB)), GIB, 1_000_000), 49_999);
        // A filesystem that counts none, or says nothing.
        assert_eq!(reserved(DiskReserve::Auto, GIB, 0), 0);
        assert_eq!(reserved(DiskReserve::Auto, 0, 0), 0);
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
