//! Bytes on the wire.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bytes, encoded on the wire as standard base64 with padding.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Base64(pub Vec<u8>);

impl fmt::Debug for Base64 {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Base64({} bytes)", self.0.len())
    }
}

impl Base64 {
    /// Decodes the text.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        STANDARD.decode(text).ok().map(Self)
    }

    /// Appends the text to `line`.
    pub(crate) fn write_to(&self, line: &mut Vec<u8>) {
        let start = line.len();
        line.resize(start + base64::encoded_len(self.0.len(), true).unwrap_or(0), 0);
        let written = STANDARD.encode_slice(&self.0, &mut line[start..]);
        line.truncate(start + written.expect("as long as it was said to be"));
    }
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&base64::display::Base64Display::new(&self.0, &STANDARD))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A visitor, so that the text is decoded in place in the frame.
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Base64 {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Base64".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "contentEncoding": "base64",
            // The last digit before the padding has only bits of bytes.
            "pattern":
                "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
        })
    }
}

struct Visitor;

impl de::Visitor<'_> for Visitor {
    type Value = Base64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("base64 text")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Base64, E> {
        STANDARD.decode(text).map(Base64).map_err(E::custom)
    }
}
