//! Paths, names and words of command lines on the wire.

use std::borrow::Cow;
use std::fmt;

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::Base64;

/// A path, a name or a word of a command line: bytes, which are UTF-8 almost always. On the wire a
/// string, or `{"b64": "…"}` where the bytes are not UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct WireString(Vec<u8>);

impl WireString {
    /// From its bytes.
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(bytes.as_ref().to_vec())
    }

    /// From the text and the bytes of a public document, where the bytes win.
    pub fn from_parts(text: String, bytes: Option<Base64>) -> Self {
        Self(bytes.map_or_else(|| text.into_bytes(), |bytes| bytes.0))
    }

    /// A name for a public document: the text, with U+FFFD where the bytes are not UTF-8, and then the
    /// bytes.
    pub fn parts(name: &[u8]) -> (Cow<'_, str>, Option<Base64>) {
        let text = String::from_utf8_lossy(name);
        let exact = matches!(text, Cow::Owned(_)).then(|| Base64(name.to_vec()));
        (text, exact)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// The text for people: U+FFFD where the bytes are not UTF-8.
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// How many bytes it takes in a frame, at most.
    pub fn encoded_len(&self) -> usize {
        match std::str::from_utf8(&self.0) {
            Ok(text) => crate::limits::encoded_len(text) + 2,
            Err(_) => self.0.len().div_ceil(3) * 4 + r#"{"b64":""}"#.len(),
        }
    }
}

impl AsRef<[u8]> for WireString {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq<str> for WireString {
    fn eq(&self, text: &str) -> bool {
        self.0 == text.as_bytes()
    }
}

impl PartialEq<&str> for WireString {
    fn eq(&self, text: &&str) -> bool {
        *self == **text
    }
}

impl<T: AsRef<[u8]> + ?Sized> From<&T> for WireString {
    fn from(bytes: &T) -> Self {
        Self::new(bytes)
    }
}

impl From<String> for WireString {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl From<Vec<u8>> for WireString {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

/// For people: U+FFFD where the bytes are not UTF-8.
impl fmt::Display for WireString {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.to_string_lossy())
    }
}

impl fmt::Debug for WireString {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string_lossy(), formatter)
    }
}

impl Serialize for WireString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = std::str::from_utf8(&self.0) {
            return serializer.serialize_str(text);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("b64", &Base64(self.0.clone()))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for WireString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for WireString {
    fn schema_name() -> Cow<'static, str> {
        "Content".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Text, or bytes in base64.",
            "oneOf": [
                { "type": "string" },
                {
                    "type": "object",
                    "properties": { "b64": generator.subschema_for::<Base64>() },
                    "required": ["b64"],
                    "additionalProperties": false,
                },
            ],
        })
    }
}

struct Visitor;

impl<'de> de::Visitor<'de> for Visitor {
    type Value = WireString;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, or an object with its bytes as b64")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<WireString, E> {
        Ok(text.into())
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<WireString, E> {
        Ok(text.into())
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<WireString, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Bytes {
            b64: Base64,
        }
        let bytes = Bytes::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Ok(WireString(bytes.b64.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json(string: &WireString) -> String {
        serde_json::to_string(string).unwrap()
    }

    #[test]
    fn text_is_a_string_and_other_bytes_an_object() {
        assert_eq!(json(&"a\u{e9}".into()), "\"a\u{e9}\"");
        assert_eq!(json(&WireString::new(b"a\xff")), r#"{"b64":"Yf8="}"#);
        for malformed in [r#"{"b64":"!"}"#, "{}", r#"{"b64":"YQ==","text":"a"}"#, "1", "null", "[]"]
        {
            assert!(serde_json::from_str::<WireString>(malformed).is_err(), "{malformed}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_arrive_and_take_as_much_room_as_announced(bytes in any::<Vec<u8>>()) {
            let string = WireString::new(&bytes);
            let json = json(&string);
            prop_assert_eq!(json.len(), string.encoded_len());
            prop_assert_eq!(&serde_json::from_str::<WireString>(&json).unwrap(), &string);
            let (text, exact) = WireString::parts(&bytes);
            prop_assert_eq!(exact.is_some(), std::str::from_utf8(&bytes).is_err());
            prop_assert_eq!(WireString::from_parts(text.into_owned(), exact), string);
        }
    }
}
