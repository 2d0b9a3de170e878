//! What protobuf's JSON allows where serde is strict: null for absent, numbers as text, names as numbers,
//! either alphabet of base64. Unknown members are ignored by serde already.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A member whose null is as if it were absent.
pub(crate) fn or_default<'de, D, T>(json: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(json)?.unwrap_or_default())
}

/// A number that may be written as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Number(pub u32);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(json)?;
        let number = match &value {
            Value::String(text) => text.parse().ok(),
            Value::Number(number) => number
                .as_f64()
                // A whole one may be written as a fraction.
                .filter(|it| it.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(it))
                .map(|it| it as u32),
            _ => None,
        };
        let expected = "a number from 0 to 4294967295";
        let invalid =
            || D::Error::custom(format_args!("invalid value {value}, expected {expected}"));
        number.map(Self).ok_or_else(invalid)
    }
}

/// Bytes in base64: with `+/` or `-_`, padded or not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Base64(pub Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        let text = String::deserialize(json)?.replace('-', "+").replace('_', "/");
        let invalid = |_| D::Error::custom("not base64");
        STANDARD_NO_PAD.decode(text.trim_end_matches('=')).map(Self).map_err(invalid)
    }
}

/// A name of an enum, or its number.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Name {
    /// Its name.
    Text(String),
    /// Its number.
    Number(i64),
}

impl Name {
    /// Whether it is this one.
    pub(crate) fn is(&self, name: &str, number: i64) -> bool {
        match self {
            Self::Text(text) => text == name,
            Self::Number(it) => *it == number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Message {
        #[serde(deserialize_with = "or_default", alias = "a_number")]
        a_number: Number,
        #[serde(deserialize_with = "or_default")]
        text: String,
        data: Option<Base64>,
        name: Option<Name>,
    }

    #[test]
    fn what_protobuf_allows_is_read() {
        for json in [
            r#"{"aNumber":7,"text":"x"}"#,
            r#"{"a_number":"7","text":"x","data":null,"later":{"a":[]}}"#,
            r#"{"aNumber":7.0,"text":"x","name":null}"#,
        ] {
            let Message { a_number, text, data, name } = serde_json::from_str(json).unwrap();
            assert_eq!((a_number, &*text, data, name), (Number(7), "x", None, None), "{json}");
        }
        let empty: Message = serde_json::from_str(r#"{"aNumber":null,"text":null}"#).unwrap();
        assert_eq!((empty.a_number, &*empty.text), (Number(0), ""));
        for wrong in ["-1", "1.5", "4294967296", r#""""#, r#""x""#, "true", "[]"] {
            let json = format!(r#"{{"aNumber":{wrong}}}"#);
            assert!(serde_json::from_str::<Message>(&json).is_err(), "{json}");
        }
    }

    #[test]
    fn base64_and_names_have_several_spellings() {
        for text in ["+/8=", "-_8=", "+/8", "-_8"] {
            let message: Message =
                serde_json::from_str(&format!(r#"{{"data":"{text}"}}"#)).unwrap();
            assert_eq!(message.data, Some(Base64(vec![0xfb, 0xff])), "{text}");
        }
        assert!(serde_json::from_str::<Message>(r#"{"data":"*"}"#).is_err());
        for text in [r#""SIGNAL_SIGKILL""#, "9"] {
            let message: Message = serde_json::from_str(&format!(r#"{{"name":{text}}}"#)).unwrap();
            assert!(message.name.unwrap().is("SIGNAL_SIGKILL", 9), "{text}");
        }
    }
}
