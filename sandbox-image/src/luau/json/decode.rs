//! JSON to values, directly into the VM: its memory limit applies.

use std::fmt;

use sandbox_protocol::limits::MAX_VALUE_DEPTH;
use sandbox_protocol::without_bom;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::super::ffi::{Call, Raise, Slot};
use super::array::mark_array;

/// Integers beyond this are not exact.
const MAX_EXACT: u64 = 1 << 53;
/// How many values are decoded between two checks of the deadline.
const STOP_EVERY: u32 = 1024;

/// Pushes the value of a JSON text.
pub(super) fn push_decoded(call: &mut Call<'_>, text: &[u8]) -> Result<(), Raise> {
    let invalid = |what: &dyn fmt::Display| Raise::Error(format!("invalid JSON: {what}"));
    let text = std::str::from_utf8(without_bom(text)).map_err(|error| invalid(&error))?;
    if let Some(integer) = inexact_integer(text) {
        return Err(invalid(&format_args!("the integer {integer} is beyond 2^53")));
    }
    let mut decoder = serde_json::Deserializer::from_str(text);
    push(call, "invalid JSON", false, |seed| {
        seed.deserialize(&mut decoder).and_then(|()| decoder.end())
    })
}

/// Pushes the script's `args`, read-only at every level.
pub(in super::super) fn push_args(
    call: &mut Call<'_>,
    args: &Map<String, Value>,
) -> Result<(), Raise> {
    push(call, "args", true, |seed| seed.deserialize(args))
}

/// Pushes the value that a call has as its result.
pub(in super::super) fn push_value(call: &mut Call<'_>, value: &Value) -> Result<(), Raise> {
    push(call, "the result", false, |seed| seed.deserialize(value))
}

fn push<E: fmt::Display>(
    call: &mut Call<'_>,
    what: &str,
    frozen: bool,
    decode: impl FnOnce(Push<'_, '_, '_>) -> Result<(), E>,
) -> Result<(), Raise> {
    let mut state = State { call, depth: 0, until_stop: STOP_EVERY, raise: None, frozen };
    let result = decode(Push(&mut state));
    match (result, state.raise) {
        (_, Some(raise)) => Err(raise),
        (Err(error), None) => Err(Raise::Error(format!("{what}: {error}"))),
        (Ok(()), None) => Ok(()),
    }
}

/// Finds an integer that the VM's numbers cannot represent exactly. It searches the text, because
/// the parser silently converts integers above 64 bits to floats. The text need not be valid:
/// invalid text is refused later.
fn inexact_integer(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            b'"' => {
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'0'..=b'9' => {
                let in_number = |byte: &u8| {
                    byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-')
                };
                at += bytes[at..].iter().take_while(|byte| in_number(byte)).count();
                let digits = &text[start..at];
                let is_negative = start > 0 && bytes[start - 1] == b'-';
                if digits.len() >= 16
                    && digits.bytes().all(|byte| byte.is_ascii_digit())
                    && digits.parse::<u64>().map_or(true, |value| value > MAX_EXACT)
                {
                    return Some(&text[start - usize::from(is_negative)..at]);
                }
            }
            _ => at += 1,
        }
    }
    None
}

struct State<'c, 'a> {
    call: &'c mut Call<'a>,
    depth: usize,
    until_stop: u32,
    /// The error that caused serde's, if it is not a syntax error.
    raise: Option<Raise>,
    frozen: bool,
}

impl State<'_, '_> {
    fn fail<E: de::Error>(&mut self, raise: Raise) -> E {
        self.raise = Some(raise);
        E::custom("stopped")
    }

    /// Before every value.
    fn begin<E: de::Error>(&mut self) -> Result<(), E> {
        self.until_stop -= 1;
        if self.until_stop == 0 {
            self.until_stop = STOP_EVERY;
            self.call.check_stop().map_err(|raise| self.fail(raise))?;
        }
        // A table, a key and a value per level.
        self.call.reserve(4).map_err(|raise| self.fail(raise))
    }

    fn open<E: de::Error>(&mut self) -> Result<Slot, E> {
        if self.depth == MAX_VALUE_DEPTH {
            return Err(E::custom(format_args!("nested deeper than {MAX_VALUE_DEPTH}")));
        }
        self.depth += 1;
        Ok(self.call.push_table(0, 0))
    }

    fn close(&mut self, table: Slot) {
        self.depth -= 1;
        if self.frozen {
            self.call.freeze(table);
        }
    }
}

/// Pushes one value.
struct Push<'s, 'c, 'a>(&'s mut State<'c, 'a>);

impl<'de> DeserializeSeed<'de> for Push<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        self.0.begin()?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Push<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.0.call.push_null();
        Ok(())
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.0.call.push_boolean(value);
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "checked")]
    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        if value > MAX_EXACT {
            return Err(E::custom(format_args!("the integer {value} is beyond 2^53")));
        }
        self.0.call.push_number(value as f64);
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "checked")]
    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        if value.unsigned_abs() > MAX_EXACT {
            return Err(E::custom(format_args!("the integer {value} is beyond 2^53")));
        }
        self.0.call.push_number(value as f64);
        Ok(())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<(), E> {
        self.0.call.push_number(value);
        Ok(())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<(), E> {
        self.0.call.push_string(value);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        let state = self.0;
        let table = state.open()?;
        let mut len = 0;
        while sequence.next_element_seed(Push(state))?.is_some() {
            len += 1;
            state.call.set_element(table, len).map_err(|raise| state.fail(raise))?;
        }
        mark_array(state.call, table);
        state.close(table);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let state = self.0;
        let table = state.open()?;
        while map.next_key_seed(Push(state))?.is_some() {
            map.next_value_seed(Push(state))?;
            state.call.set_pair(table);
        }
        state.close(table);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_that_is_not_exact_is_found_wherever_it_stands() {
        for (text, found) in [
            ("9007199254740992", None),
            ("9007199254740993", Some("9007199254740993")),
            ("-9007199254740993", Some("-9007199254740993")),
            ("[0,-123456789012345678901234567890]", Some("-123456789012345678901234567890")),
            (
                "[1, {\"a\": 123456789012345678901234567890}]",
                Some("123456789012345678901234567890"),
            ),
            ("\"9007199254740993\"", None),
            ("\"\\\"9007199254740993\"", None),
            ("9007199254740993.0", None),
            ("90071992547409930e0", None),
            ("1e300", None),
            ("\"\\", None),
        ] {
            assert_eq!(inexact_integer(text), found, "{text}");
        }
    }
}
