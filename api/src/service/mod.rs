//! What the callers of a service ask and get: executions that are queued, run and kept, their
//! events and files, and sandboxes that are kept.

mod event;
mod execution;
mod report;
mod request;
mod sandbox;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use event::{EventBody, EventsSchema, ExecutionEvent, OutputStream, UnreadableEvent};
pub use execution::{
    AcceptedExecution, Execution, ExecutionDocuments, ExecutionKind, ExecutionList,
    ExecutionStatus, ExecutionSummary,
};
pub use report::{FileEntry, FileKind, FileList, Health, HealthCheck, ShutdownReport, UsageTotals};
pub use request::{
    CommandRequest, Content, ExecutionRequest, IoMode, IoRequest, NetworkRequest, RequestSecrets,
};
pub use sandbox::{
    ExtendRequest, KeptSpec, SandboxList, SandboxRequest, SandboxStatus, SandboxView,
};

use crate::time::{parse_rfc3339, rfc3339};

/// The most bytes of a [`Subject`].
const MAX_SUBJECT_BYTES: usize = 255;

/// Who asks: the owner of executions and sandboxes. One subject sees nothing of another's.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("minLength" = 1, "maxLength" = MAX_SUBJECT_BYTES))]
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
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of a directory that is this subject's alone: a subject may be any text.
    #[must_use]
    pub fn directory_name(&self) -> String {
        sandbox_dirfd::hex(&Sha256::digest(&self.0))
    }
}

impl TryFrom<String> for Subject {
    type Error = InvalidSubject;

    fn try_from(name: String) -> Result<Self, InvalidSubject> {
        Self::new(name)
    }
}

impl From<Subject> for String {
    fn from(subject: Subject) -> Self {
        subject.0
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

/// Whether who has `own` of what `all` have together leaves as much free, of a `most` that is shared. Who
/// takes nothing but what this allows leaves room for any number of others, however many do the same.
#[must_use]
pub const fn has_room(own: u64, all: u64, most: u64) -> bool {
    own <= most.saturating_sub(all)
}

/// A point in time, in milliseconds. In JSON it is in RFC 3339, in UTC:
/// `2026-11-22T06:11:28.500Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Time(i64);

/// A text is no [`Time`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a time of RFC 3339, such as 2026-11-22T06:11:28Z")]
pub struct InvalidTime(String);

impl Time {
    /// The current time.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// From milliseconds since 1970.
    #[must_use]
    pub const fn from_unix_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// In milliseconds since 1970.
    #[must_use]
    pub const fn unix_millis(self) -> i64 {
        self.0
    }

    /// So much later.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)))
    }

    /// So much earlier.
    #[must_use]
    pub fn before(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)))
    }

    /// The time from `earlier` until this; none if that is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

/// Always with three digits of the second, so that texts sort as times.
impl fmt::Display for Time {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = rfc3339(self.0.div_euclid(1000), 0);
        // Beyond the years that RFC 3339 has: its last second.
        let text = text.as_deref().unwrap_or("9999-12-31T23:59:59Z");
        write!(formatter, "{}.{:03}Z", text.trim_end_matches('Z'), self.0.rem_euclid(1000))
    }
}

impl FromStr for Time {
    type Err = InvalidTime;

    fn from_str(text: &str) -> Result<Self, InvalidTime> {
        let (seconds, nanoseconds) =
            parse_rfc3339(text).ok_or_else(|| InvalidTime(text.chars().take(64).collect()))?;
        Ok(Self(seconds.saturating_mul(1000).saturating_add(i64::from(nanoseconds / 1_000_000))))
    }
}

impl TryFrom<String> for Time {
    type Error = InvalidTime;

    fn try_from(text: String) -> Result<Self, InvalidTime> {
        text.parse()
    }
}

impl From<Time> for String {
    fn from(time: Time) -> Self {
        time.to_string()
    }
}

impl JsonSchema for Time {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_with_milliseconds() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_795_298_400_007, "2026-11-21T22:00:00.007Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ] {
            let time = Time::from_unix_millis(millis);
            assert_eq!(time.to_string(), text);
            assert_eq!(text.parse(), Ok(time));
        }
        assert_eq!("1970-01-01T01:00:00+01:00".parse(), Ok(Time::from_unix_millis(0)));
        assert!("yesterday".parse::<Time>().is_err());
        assert!(serde_json::from_str::<Time>("1").is_err());
    }

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
