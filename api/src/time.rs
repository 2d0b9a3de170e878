//! Durations in milliseconds, and points in time in RFC 3339, in UTC.

use std::time::Duration;

use jiff::Timestamp;
pub(crate) use sandbox_protocol::time::Rfc3339;
pub use sandbox_protocol::time::{parse_rfc3339, rfc3339};

/// Whole milliseconds, saturating.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The current time in milliseconds, always with three digits.
pub fn now() -> String {
    format!("{:.3}", Timestamp::now())
}

/// A time in whole seconds since 1970.
pub(crate) mod unix_seconds {
    use std::time::{Duration, SystemTime};

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        to.serialize_u64(since.as_secs())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        let since = Duration::from_secs(u64::deserialize(from)?);
        SystemTime::UNIX_EPOCH
            .checked_add(since)
            .ok_or_else(|| serde::de::Error::custom("the time is too late"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_has_milliseconds() {
        let text = now();
        assert_eq!(text.len(), "2026-11-21T22:00:00.000Z".len(), "{text}");
        assert!(text.ends_with('Z') && text[19..].starts_with('.'), "{text}");
    }
}
