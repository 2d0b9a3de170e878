//! How the values of flags are read.

use std::ffi::OsStr;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use sandbox_api::{LimitKey, LimitValue, SignalName, User};
use sandbox_protocol::UserError;

use crate::config::{Key, Value};

/// Refuses what is not UTF-8 with the flag's name, which clap's own refusal leaves out.
#[derive(Debug, Clone)]
pub(super) struct Utf8<P>(pub(super) P);

impl<P: TypedValueParser> TypedValueParser for Utf8<P> {
    type Value = P::Value;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<P::Value, clap::Error> {
        if value.to_str().is_some() {
            return self.0.parse_ref(command, arg, value);
        }
        let refuse = OsStringValueParser::new().try_map(|_| Err("it is not UTF-8 text"));
        refuse.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}

/// Reads a flag as one of the words that its key takes.
pub(super) fn word_of(key: Key) -> impl TypedValueParser<Value = Value> {
    Utf8(PossibleValuesParser::new(key.words()).map(Value::Text))
}

/// Reads a flag as the value of its key.
pub(super) fn value_of(key: Key) -> impl TypedValueParser<Value = Value> {
    Utf8(move |text: &str| Value::from_text(key, text).map_err(|error| error.to_string()))
}

/// Reads a flag as one of these by its word.
pub(super) fn one_of<T: Copy + Send + Sync + 'static>(
    all: impl IntoIterator<Item = T>,
    word: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let all: Vec<T> = all.into_iter().collect();
    let words = PossibleValuesParser::new(all.iter().map(|it| word(*it)));
    words.try_map(move |text| all.iter().copied().find(|it| word(*it) == text).ok_or("unknown"))
}

/// Reads a flag as text.
pub(super) fn text<T>() -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: ToString> + Clone + Send + Sync + 'static,
{
    Utf8(|text: &str| T::from_str(text).map_err(|error| error.to_string()))
}

/// The name of a signal, with or without SIG.
pub(super) fn signal(text: &str) -> Result<SignalName, String> {
    let name = text.to_ascii_uppercase();
    SignalName::from_word(name.strip_prefix("SIG").unwrap_or(&name)).ok_or_else(|| {
        "unknown signal: HUP, INT, QUIT, KILL, USR1, USR2, TERM, CONT, STOP, TSTP, WINCH".to_owned()
    })
}

/// A time, written as every time is, from a millisecond on.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    match LimitKey::Timeout.parse(text) {
        Ok(LimitValue::Time(time)) => Ok(time),
        Ok(_) => Err("it is not a time".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads a user; without a group it is the one with the same number.
pub(super) fn user() -> impl TypedValueParser<Value = User> {
    Utf8(|text: &str| {
        let user = match text.contains(':') {
            true => text.parse(),
            false => format!("{text}:{text}").parse(),
        };
        user.map_err(|error: UserError| match error {
            UserError::Format if text.contains(|it: char| it.is_ascii_alphabetic()) => {
                "names are not looked up: --user 0 is root, and any other number, such as --user 1000, \
                 is a user who owns nothing in the image"
                    .to_owned()
            }
            error => error.to_string(),
        })
    })
}

/// Reads what may have a path, of any bytes.
pub(super) fn written<T, E>(parse: fn(&OsStr) -> Result<T, E>) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
{
    OsStringValueParser::new().try_map(move |written| parse(&written))
}

/// Reads a guest path, which is UTF-8 and not empty.
pub(super) fn guest_path() -> impl TypedValueParser<Value = String> {
    Utf8(clap::builder::NonEmptyStringValueParser::new())
}
