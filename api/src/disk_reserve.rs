//! The disk reserve: how much of a filesystem nothing may use.

use std::fmt;
use std::str::FromStr;

use sandbox_dirfd::FreeSpace;

use crate::limits::{ByteSize, LimitParseError};

/// The maximum of the default reserve.
const MOST_BY_DEFAULT: u64 = 1 << 30;
/// The default reserve of a smaller filesystem: a twentieth.
const PART_BY_DEFAULT: u64 = 20;

/// How much space stays free on a filesystem that sandboxes write to, or images are unpacked on,
/// even if other programs fill it.
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

    /// The number of bytes to leave free on a filesystem of this size.
    pub fn of(self, size: u64) -> u64 {
        match self {
            Self::Auto => MOST_BY_DEFAULT.min(size / PART_BY_DEFAULT),
            Self::Bytes(bytes) => bytes.as_u64(),
        }
    }

    /// The number of inodes to leave free on this filesystem: the same part as of its bytes, but no
    /// more than a twentieth.
    fn inodes_of(self, space: &FreeSpace) -> u64 {
        let bytes = self.of(space.size).min(space.size / PART_BY_DEFAULT);
        let part = u128::from(space.most_inodes) * u128::from(bytes);
        u64::try_from(part / u128::from(space.size.max(1))).unwrap_or(u64::MAX)
    }

    /// The bytes and inodes that may still be used; without end, where they are not counted.
    pub fn leaves(self, space: &FreeSpace) -> (u64, u64) {
        let inodes = match space.most_inodes {
            0 => u64::MAX,
            _ => space.inodes.saturating_sub(self.inodes_of(space)),
        };
        (space.available.saturating_sub(self.of(space.size)), inodes)
    }

    /// What is short if less space is free than the reserve, or fewer inodes.
    pub fn shortage(self, space: &FreeSpace) -> Option<DiskShortage> {
        let (bytes, inodes) = (self.of(space.size), self.inodes_of(space));
        if space.available < bytes {
            Some(DiskShortage::Bytes(bytes))
        } else if space.inodes < inodes {
            Some(DiskShortage::Inodes(inodes))
        } else {
            None
        }
    }
}

/// What a filesystem has less of than its [`DiskReserve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskShortage {
    /// Fewer free bytes than these.
    Bytes(u64),
    /// Fewer free inodes than these.
    Inodes(u64),
}

/// As in "the disk has less than 1.0 GiB left".
impl fmt::Display for DiskShortage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => {
                write!(formatter, "less than {:.1}", bytesize::ByteSize::b(*bytes).display().iec())
            }
            Self::Inodes(inodes) => write!(formatter, "room for fewer than {inodes} files"),
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
