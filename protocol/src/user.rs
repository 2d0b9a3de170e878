//! The user and group that a sandbox runs as.

use std::fmt;
use std::str::FromStr;

/// The value that 32-bit system calls interpret as "leave unchanged", `(uid_t) -1`.
const UNCHANGED: u32 = u32::MAX;
/// The same for 16-bit calls, which kernels still have. No system assigns it to a user, so refusing
/// it costs nothing, and is safe if a program in between uses such a call.
const UNCHANGED_16: u32 = u16::MAX as u32;

/// A uid and a gid. Neither is a value that a kernel interprets as "leave unchanged", so switching
/// to this user either works or fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(with = "String", extend("pattern" = "^[0-9]{1,10}:[0-9]{1,10}$")))]
pub struct User {
    uid: u32,
    gid: u32,
}

/// Why two numbers are not a [`User`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UserError {
    /// Not two numbers separated by a colon.
    #[error("expected two numbers, UID:GID")]
    Format,
    /// A number that leaves the ids of a process unchanged.
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

    /// The uid.
    pub const fn uid(self) -> u32 {
        self.uid
    }

    /// The gid.
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
        let id = |text: &str| {
            let is_number = text.len() <= 10 && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|_| is_number);
            number.ok_or(UserError::Format)
        };
        Self::new(id(uid)?, id(gid)?)
    }
}

crate::as_text!(User);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_two_numbers() {
        let user: User = "1000:100".parse().unwrap();
        assert_eq!((user.uid(), user.gid()), (1000, 100));
        assert_eq!(user.to_string(), "1000:100");
        for text in [
            "", "1000", "root:root", "-1:0", "0:-1", "1:2:3", "4294967296:0", "0: 1", "+0:0",
            "0:+5", "00000000000:0",
        ] {
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
