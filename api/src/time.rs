//! Durations in milliseconds, and points in time in RFC 3339, in UTC.

use std::borrow::Cow;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// Whole milliseconds, saturating.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The schema of a time in RFC 3339.
pub(crate) struct Rfc3339;

impl JsonSchema for Rfc3339 {
    fn schema_name() -> Cow<'static, str> {
        "Rfc3339".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// Formats a time since the Unix epoch, with as many digits of the second as it has. `None` if RFC
/// 3339 cannot represent it: a year outside of 0 to 9999, or a second or more of nanoseconds. A
/// hostile agent may send any value.
pub fn rfc3339(seconds: i64, nanoseconds: u32) -> Option<String> {
    if nanoseconds >= 1_000_000_000 {
        return None;
    }
    // The fraction counts forwards from its second, before 1970 too.
    let since = SignedDuration::new(seconds, nanoseconds.cast_signed());
    let text = Timestamp::from_duration(since).ok()?.to_string();
    // The library can format years before 0, with a sign; RFC 3339 cannot.
    (!text.starts_with('-')).then_some(text)
}

/// Parses what [`rfc3339`] formats.
pub fn parse_rfc3339(text: &str) -> Option<(i64, u32)> {
    let since = text.parse::<Timestamp>().ok()?.as_duration();
    let second = since.as_secs() - i64::from(since.subsec_nanos() < 0);
    u32::try_from(since.subsec_nanos().rem_euclid(1_000_000_000)).ok().map(|nanos| (second, nanos))
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
    use proptest::prelude::*;

    #[test]
    fn times_are_written_with_the_digits_that_they_have() {
        let text = |seconds, nanoseconds| rfc3339(seconds, nanoseconds).unwrap();
        assert_eq!(text(0, 0), "1970-01-01T00:00:00Z");
        assert_eq!(text(1_795_298_400, 0), "2026-11-21T22:00:00Z");
        assert_eq!(text(1_795_298_400, 500_000_000), "2026-11-21T22:00:00.5Z");
        assert_eq!(text(1_795_298_400, 1), "2026-11-21T22:00:00.000000001Z");
        assert_eq!(text(951_782_400, 0), "2000-02-29T00:00:00Z");
    }

    #[test]
    fn a_fraction_before_1970_counts_onwards() {
        assert_eq!(rfc3339(-1, 0).unwrap(), "1969-12-31T23:59:59Z");
        assert_eq!(rfc3339(-1, 250_000_000).unwrap(), "1969-12-31T23:59:59.25Z");
        assert_eq!(rfc3339(-315_619_200, 0).unwrap(), "1960-01-01T00:00:00Z");
    }

    #[test]
    fn a_time_that_cannot_be_written_is_none() {
        assert_eq!(rfc3339(-62_167_219_200, 0).unwrap(), "0000-01-01T00:00:00Z");
        assert_eq!(rfc3339(-62_167_219_201, 999_999_999), None);
        assert_eq!(rfc3339(253_402_300_800, 0), None);
        assert_eq!(rfc3339(0, 1_000_000_000), None);
        for seconds in [i64::MIN, i64::MIN + 1, i64::MAX - 1, i64::MAX] {
            for nanoseconds in [0, 1, 999_999_999, u32::MAX] {
                assert_eq!(rfc3339(seconds, nanoseconds), None);
            }
        }
    }

    #[test]
    fn now_has_milliseconds() {
        let text = now();
        assert_eq!(text.len(), "2026-11-21T22:00:00.000Z".len(), "{text}");
        assert!(text.ends_with('Z') && text[19..].starts_with('.'), "{text}");
    }

    proptest! {
        #[test]
        fn no_time_is_too_odd(seconds: i64, nanoseconds: u32) {
            rfc3339(seconds, nanoseconds);
        }

        #[test]
        fn written_times_come_back(
            seconds in -62_167_219_200i64..253_402_207_200,
            nanoseconds in 0u32..1_000_000_000,
        ) {
            let text = rfc3339(seconds, nanoseconds).unwrap();
            prop_assert_eq!(parse_rfc3339(&text), Some((seconds, nanoseconds)), "{}", text);
        }

        #[test]
        fn written_times_sort_as_times(
            one in -62_167_219_200i64..253_402_207_200,
            other in -62_167_219_200i64..253_402_207_200,
        ) {
            let texts = [rfc3339(one, 0).unwrap(), rfc3339(other, 0).unwrap()];
            prop_assert_eq!(texts[0].cmp(&texts[1]), one.cmp(&other));
        }
    }
}
