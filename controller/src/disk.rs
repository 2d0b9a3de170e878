//! What a file system has left, and how much of it programs may not take.

use std::fmt;
use std::os::fd::AsFd;
use std::str::FromStr;

use rustix::io::Errno;

use crate::limits::{ByteSize, LimitParseError};

/// The largest reserve that is kept unless somebody says otherwise.
const MOST_BY_DEFAULT: u64 = 1 << 30;
/// The part of a file system that is kept where that is less: a twentieth.
const PART_BY_DEFAULT: u64 = 20;

/// How much space programs leave free on the file system of the io dir, whoever fills it.
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
