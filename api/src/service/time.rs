//! A point in time, as a service writes it.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;

use crate::time::{parse_rfc3339, rfc3339};

/// A point in time, in milliseconds. In JSON it is in RFC 3339, in UTC:
/// `2026-11-22T06:11:28.500Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(i64);

/// A text is no [`Time`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a time of RFC 3339, such as 2026-11-22T06:11:28Z")]
pub struct InvalidTime(String);

impl Time {
    /// The current time.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// From milliseconds since 1970.
    pub const fn from_unix_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// In milliseconds since 1970.
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

sandbox_protocol::as_text!(Time);

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
}
