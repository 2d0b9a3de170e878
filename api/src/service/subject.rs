//! The owner of what a service keeps.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use sha2::{Digest as _, Sha256};

/// The most bytes of a [`Subject`].
const MAX_SUBJECT_BYTES: usize = 255;

/// Who asks: the owner of executions and sandboxes. One subject sees nothing of another's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
#[schemars(with = "String", extend("minLength" = 1, "maxLength" = MAX_SUBJECT_BYTES))]
pub struct Subject(String);

/// A text is no [`Subject`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a subject has 1 to {MAX_SUBJECT_BYTES} bytes, and no control characters")]
pub struct InvalidSubject;

impl Subject {
    /// A subject of this name.
    ///
    /// # Errors
    ///
    /// [`InvalidSubject`] if it is empty, longer than 255 bytes, or has control characters.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidSubject> {
        let name = name.into();
        let is_valid = (1..=MAX_SUBJECT_BYTES).contains(&name.len());
        if !is_valid || name.chars().any(char::is_control) {
            return Err(InvalidSubject);
        }
        Ok(Self(name))
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of a directory that is this subject's alone: a subject may be any text.
    pub fn directory_name(&self) -> String {
        sandbox_dirfd::hex(&Sha256::digest(&self.0))
    }
}

/// What each subject of a service has.
#[derive(Debug, Clone, Default)]
pub struct BySubject<T> {
    /// What these have.
    pub own: HashMap<Subject, T>,
    /// What all others have.
    pub others: T,
}

impl<T> BySubject<T> {
    /// What a subject has.
    pub fn of(&self, subject: &Subject) -> &T {
        self.own.get(subject).unwrap_or(&self.others)
    }

    /// Whether this holds for what some subject has.
    pub fn any(&self, holds: impl Fn(&T) -> bool) -> bool {
        self.own.values().chain([&self.others]).any(holds)
    }
}

impl FromStr for Subject {
    type Err = InvalidSubject;

    fn from_str(name: &str) -> Result<Self, InvalidSubject> {
        Self::new(name)
    }
}

sandbox_protocol::as_text!(Subject);

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

/// Whether who has `own` of what `all` have together leaves as much free, of a `most` that is shared. Who
/// takes nothing but what this allows leaves room for any number of others, however many do the same.
pub const fn has_room(own: u64, all: u64, most: u64) -> bool {
    own <= most.saturating_sub(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_of_any_text_has_a_directory_of_its_own() {
        let name = |subject: &str| Subject::new(subject).unwrap().directory_name();
        for subject in ["a", "../../etc", "A", "a/b", "ü", &"x".repeat(255)] {
            let name = name(subject);
            assert_eq!(name.len(), 64, "{subject}");
            assert!(name.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
        }
        assert_ne!(name("a"), name("A"));
    }

    #[test]
    fn subject_is_short_and_printable() {
        for name in ["", "a\nb", "a\0", &"a".repeat(256)] {
            assert_eq!(Subject::new(name), Err(InvalidSubject), "{name:?}");
        }
        assert_eq!(Subject::new("team/é").unwrap().as_str(), "team/é");
        assert!(serde_json::from_str::<Subject>("\"\"").is_err());
    }
}
