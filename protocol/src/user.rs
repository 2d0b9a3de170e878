//! The user and group that a sandbox runs as.

use std::fmt;
use std::str::FromStr;

/// What 32-bit system calls read as "leave it as it is", `(uid_t) -1`.
const UNCHANGED: u32 = u32::MAX;
/// The same for 16-bit ones, which kernels still have. No system gives it to anybody: refusing it
/// costs nothing, whatever program somewhere between still makes such a call.
const UNCHANGED_16: u32 = u16::MAX as u32;

/// A user and a group, by number. Neither is one that a kernel takes for "leave it as it is", so
/// whoever is told to become this user either does or fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct User {
    uid: u32,
    gid: u32,
}

/// Why two numbers are not a [`User`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UserError {
    /// Not two numbers with a colon between them.
    #[error("expected two numbers, UID:GID")]
    Format,
    /// A number that leaves a process as it is.
    #[error("{0} is not a user or group: kernels read it as \"unchanged\"")]
    Unchanged(u32),
}

impl User {
    /// The user `uid` with the group `gid`.
    ///
    /// # Errors
    ///
    /// [`UserError::Unchanged`] for 65535 and 4294967295, which are -1 in 16 and in 32 bits.
    pub const fn new(uid: u32, gid: u32) -> Result<Self, UserError> {
        match (uid, gid) {
            (id @ (UNCHANGED | UNCHANGED_16), _) | (_, id @ (UNCHANGED | UNCHANGED_16)) => {
                Err(UserError::Unchanged(id))
            }
            _ => Ok(Self { uid, gid }),
        }
    }

    /// The user.
    #[must_use]
    pub const fn uid(self) -> u32 {
        self.uid
    }

    /// The group.
    #[must_use]
    pub const fn gid(self) -> u32 {
        self.gid
    }
}

impl fmt::Display for User {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.uid, self.gid)
    }
}

impl FromStr for User {
    type Err = UserError;

    fn from_str(text: &str) -> Result<Self, UserError> {
        let (uid, gid) = text.split_once(':').ok_or(UserError::Format)?;
        let id = |text: &str| text.parse().map_err(|_| UserError::Format);
        Self::new(id(uid)?, id(gid)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_two_numbers() {
        let user: User = "1000:100".parse().unwrap();
        assert_eq!((user.uid(), user.gid()), (1000, 100));
        assert_eq!(user.to_string(), "1000:100");
        for text in ["", "1000", "root:root", "-1:0", "0:-1", "1:2:3", "4294967296:0", "0: 1"] {
            assert_eq!(text.parse::<User>(), Err(UserError::Format), "{text}");
        }
    }

    #[test]
    fn an_id_that_kernels_read_as_unchanged_is_refused() {
        for id in [u32::MAX, 65_535] {
            let refused = Err(UserError::Unchanged(id));
            assert_eq!(User::new(id, 0), refused);
            assert_eq!(User::new(0, id), refused);
            assert_eq!(format!("{id}:0").parse::<User>(), refused);
            assert_eq!(format!("0:{id}").parse::<User>(), refused);
        }
        for id in [0, 65_533, 65_534, 65_536, u32::MAX - 1] {
            User::new(id, id).unwrap();
        }
    }
}
