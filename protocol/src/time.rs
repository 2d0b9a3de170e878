//! Points in time in RFC 3339, in UTC: as public documents and requests have them.

#[cfg(feature = "schema")]
use std::borrow::Cow;

use jiff::SignedDuration;
#[cfg(feature = "schema")]
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

/// A timestamp of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timestamp {
    /// Seconds since 1970, UTC.
    pub seconds: i64,
    /// Additional nanoseconds.
    pub nanoseconds: u32,
}

/// The schema of a time in RFC 3339.
#[cfg(feature = "schema")]
#[derive(Debug)]
pub struct Rfc3339;

#[cfg(feature = "schema")]
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

/// `0000-01-01T00:00:00Z`.
const FIRST_SECOND: i64 = -62_167_219_200;

/// Formats a time since the Unix epoch, with as many digits of the second as it has. `None` if RFC
/// 3339 cannot represent it: a year outside of 0 to 9999, or a second or more of nanoseconds. A
/// hostile agent may send any value.
pub fn rfc3339(seconds: i64, nanoseconds: u32) -> Option<String> {
    if nanoseconds >= 1_000_000_000 {
        return None;
    }
    // The fraction counts forwards from its second, before 1970 too.
    let since = SignedDuration::new(seconds, nanoseconds.cast_signed());
    let text = jiff::Timestamp::from_duration(since).ok()?.to_string();
    // The library can format years before 0, with a sign; RFC 3339 cannot.
    (!text.starts_with('-')).then_some(text)
}

/// Parses what [`rfc3339`] formats, and times with an offset.
pub fn parse_rfc3339(text: &str) -> Option<(i64, u32)> {
    let since = text.parse::<jiff::Timestamp>().ok()?.as_duration();
    let second = since.as_secs() - i64::from(since.subsec_nanos() < 0);
    let nanos = u32::try_from(since.subsec_nanos().rem_euclid(1_000_000_000)).ok()?;
    (second >= FIRST_SECOND).then_some((second, nanos))
}

/// Serializes a time; null if there is none, or RFC 3339 cannot represent it.
///
/// # Errors
///
/// Those of the serializer.
pub fn serialize<S: Serializer>(
    time: &Option<Timestamp>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    time.and_then(|time| rfc3339(time.seconds, time.nanoseconds)).serialize(serializer)
}

/// Serializes a time of a request, which is not changed.
///
/// # Errors
///
/// If RFC 3339 cannot represent it, and those of the serializer.
pub fn serialize_exactly<S: Serializer>(
    time: &Option<Timestamp>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    if time.is_some_and(|time| rfc3339(time.seconds, time.nanoseconds).is_none()) {
        return Err(ser::Error::custom("a time that RFC 3339 cannot represent"));
    }
    serialize(time, serializer)
}

/// Reads what [`serialize`] has written.
///
/// # Errors
///
/// If it is another text, or no text.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
    let (seconds, nanoseconds) = parse_rfc3339(&text)
        .ok_or_else(|| de::Error::custom(format!("'{text}' is not a time of RFC 3339")))?;
    Ok(Some(Timestamp { seconds, nanoseconds }))
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
    fn a_time_that_cannot_be_written_is_not_read() {
        assert_eq!(parse_rfc3339("0000-01-01T01:00:00+01:00"), Some((FIRST_SECOND, 0)));
        for text in ["0000-01-01T00:00:00+00:01", "-000001-01-01T00:00:00Z", "", "2026-11-21"] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
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

    proptest! {
        #[test]
        fn no_time_is_too_odd(seconds: i64, nanoseconds: u32) {
            _ = rfc3339(seconds, nanoseconds);
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
