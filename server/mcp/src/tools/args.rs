//! The arguments of calls.

use std::time::Duration;

use rmcp::model::JsonObject;
use sandbox_api::{ErrorKind, Failure, millis, strict};
use serde::Deserialize;
use serde_json::Value;

use super::result::invalid;
use crate::settings::Settings;

/// Decodes arguments.
pub(super) fn decode<T: for<'de> Deserialize<'de>>(
    tool: &str,
    arguments: JsonObject,
) -> Result<T, Failure> {
    strict::read(Value::Object(arguments)).map_err(|mistake| invalid(format!("{tool}: {mistake}")))
}

/// Takes an argument under another name that is often given to it; not if it is given under both.
pub(super) fn alias(arguments: &mut JsonObject, other: &str, name: &str) {
    if !arguments.contains_key(name)
        && let Some(value) = arguments.remove(other)
    {
        arguments.insert(name.to_owned(), value);
    }
}

/// The time that a call asks for.
pub(super) fn timeout(
    given: Option<Value>,
    tool: &str,
    settings: &Settings,
) -> Result<Option<Duration>, Failure> {
    let Some(given) = given.filter(|given| !given.is_null()) else { return Ok(None) };
    let ceiling = millis(settings.timeout_ceiling);
    let allowed = given.as_u64().filter(|given| (1..=ceiling).contains(given));
    let allowed = allowed.map(Duration::from_millis).map(Some);
    allowed.ok_or_else(|| {
        let given: String = given.to_string().chars().take(40).collect();
        let message =
            format!("{tool}: `timeout_ms` is {given}: it must be 1 to {ceiling}, a whole number");
        let hint = "limits.ceiling in the user's or the system's configuration is the most";
        Failure::new(ErrorKind::InvalidRequest, message, Some(hint.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::settings;
    use super::*;

    #[test]
    fn bad_timeout_is_refused_with_the_ceiling_named() {
        let settings = settings();
        let allowed = |given| timeout(Some(given), "exec", &settings).map_err(|it| it.message);
        assert_eq!(allowed(json!(600_000)), Ok(Some(Duration::from_secs(600))));
        assert_eq!(allowed(Value::Null), Ok(None));
        assert_eq!(timeout(None, "exec", &settings).unwrap(), None);
        for bad in [
            json!(0),
            json!(-5),
            json!(600_001),
            json!(u64::MAX),
            json!(1e30),
            json!(1.5),
            json!("5"),
            json!([5]),
            json!("x".repeat(1 << 20)),
        ] {
            let message = allowed(bad).unwrap_err();
            assert!(message.contains("1 to 600000") && message.len() < 200, "{message}");
        }
    }
}
