//! Encodings of file content as text. Nothing is replaced or trimmed in either direction.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use base64::engine::general_purpose::STANDARD;
use base64::{DecodeError, Engine as _};
use schemars::generate::Contract;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// An encoding of file content as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Encoding {
    /// UTF-8. `utf8` is accepted too.
    #[default]
    Utf8,
    /// Base64 (standard alphabet, padded).
    Base64,
    /// Two hexadecimal digits per byte: written in lower case, read in either case.
    Hex,
    /// ISO 8859-1: every byte is the character with that code point.
    Latin1,
    /// UTF-16, little-endian; a byte-order mark is a character like any other.
    Utf16Le,
    /// UTF-16, big-endian; likewise.
    Utf16Be,
    /// ASCII: bytes below 128.
    Ascii,
}

/// The content does not fit the encoding.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the content is not {encoding}: {reason}")]
pub struct EncodingError {
    /// The encoding.
    pub encoding: Encoding,
    /// What is wrong, and where.
    pub reason: String,
}

/// The name of an unknown [`Encoding`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown encoding '{0}': it is one of {words}", words = Encoding::words())]
pub struct UnknownEncoding(pub String);

impl Encoding {
    /// Every encoding, in the order of the documentation.
    pub const ALL: &[Self] = &[
        Self::Utf8,
        Self::Base64,
        Self::Hex,
        Self::Latin1,
        Self::Utf16Le,
        Self::Utf16Be,
        Self::Ascii,
    ];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Utf8 => "utf-8",
            Self::Base64 => "base64",
            Self::Hex => "hex",
            Self::Latin1 => "latin1",
            Self::Utf16Le => "utf-16le",
            Self::Utf16Be => "utf-16be",
            Self::Ascii => "ascii",
        }
    }

    fn words() -> String {
        Self::ALL.iter().map(|encoding| encoding.as_str()).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn error(self, reason: impl Into<String>) -> EncodingError {
        EncodingError { encoding: self, reason: reason.into() }
    }

    /// Decodes the bytes of a file to text.
    ///
    /// # Errors
    ///
    /// [`EncodingError`] if the bytes are not valid in this encoding.
    pub fn decode(self, bytes: Vec<u8>) -> Result<String, EncodingError> {
        let at = |index: usize| self.error(format!("byte {index} of it"));
        match self {
            Self::Utf8 => {
                String::from_utf8(bytes).map_err(|error| at(error.utf8_error().valid_up_to()))
            }
            Self::Base64 => Ok(STANDARD.encode(bytes)),
            Self::Hex => Ok(sandbox_dirfd::hex(&bytes)),
            Self::Latin1 => Ok(bytes.into_iter().map(char::from).collect()),
            Self::Utf16Le => self.decode_utf16(&bytes, u16::from_le_bytes),
            Self::Utf16Be => self.decode_utf16(&bytes, u16::from_be_bytes),
            Self::Ascii => match bytes.iter().position(|byte| !byte.is_ascii()) {
                None => Ok(bytes.into_iter().map(char::from).collect()),
                Some(index) => Err(at(index)),
            },
        }
    }

    fn decode_utf16(self, bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, EncodingError> {
        let (pairs, rest) = bytes.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.error("it has an odd number of bytes"));
        }
        let mut text = String::with_capacity(pairs.len());
        let mut index = 0;
        for character in char::decode_utf16(pairs.iter().map(|pair| unit(*pair))) {
            let character =
                character.map_err(|_| self.error(format!("byte {index} of it: half a pair")))?;
            index += 2 * character.len_utf16();
            text.push(character);
        }
        Ok(text)
    }

    /// Encodes text to bytes.
    ///
    /// # Errors
    ///
    /// [`EncodingError`] if the text cannot be encoded.
    pub fn encode(self, text: &str) -> Result<Vec<u8>, EncodingError> {
        match self {
            Self::Utf8 => Ok(text.as_bytes().to_vec()),
            Self::Base64 => STANDARD.decode(text).map_err(|error| self.error(no_base64(&error))),
            Self::Hex => self.encode_hex(text.as_bytes()),
            Self::Latin1 => self.encode_below(text, 256),
            Self::Utf16Le => Ok(text.encode_utf16().flat_map(u16::to_le_bytes).collect()),
            Self::Utf16Be => Ok(text.encode_utf16().flat_map(u16::to_be_bytes).collect()),
            Self::Ascii => self.encode_below(text, 128),
        }
    }

    fn encode_below(self, text: &str, end: u32) -> Result<Vec<u8>, EncodingError> {
        let byte = |(index, character): (usize, char)| match u8::try_from(u32::from(character)) {
            Ok(byte) if u32::from(byte) < end => Ok(byte),
            _ => Err(self.error(format!("character {} is {character:?}", index + 1))),
        };
        text.chars().enumerate().map(byte).collect()
    }

    fn encode_hex(self, text: &[u8]) -> Result<Vec<u8>, EncodingError> {
        let (pairs, rest) = text.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.error("it has an odd number of digits"));
        }
        let digit = |index: usize, byte: u8| {
            let digit = char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            digit.ok_or_else(|| self.error(format!("character {} is not a digit", index + 1)))
        };
        let byte = |(index, pair): (usize, &[u8; 2])| {
            Ok(digit(2 * index, pair[0])? << 4 | digit(2 * index + 1, pair[1])?)
        };
        pairs.iter().enumerate().map(byte).collect()
    }
}

/// What a text with percent signs stands for; none if two digits do not follow each.
#[must_use]
pub fn decode_percent(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let [high, low, after @ ..] = rest else { return None };
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
        decoded.push(digit(high)? << 4 | digit(low)?);
        rest = after;
    }
    Some(decoded)
}

/// Bytes as a part of a URI: letters, digits and these as they are, others with percent signs.
#[must_use]
pub fn encode_percent(bytes: &[u8], plain: &[u8]) -> String {
    let mut encoded = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            true => encoded.push(char::from(byte)),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Why a text is not base64. Everything before an odd byte is digits, one character each.
fn no_base64(error: &DecodeError) -> String {
    match error {
        DecodeError::InvalidByte(index, _) => format!("character {} is not a digit", index + 1),
        DecodeError::InvalidLastSymbol { offset, .. } => {
            format!("character {} has trailing bits", offset + 1)
        }
        DecodeError::InvalidLength(_) => "it ends in the middle of a byte".to_owned(),
        DecodeError::InvalidPadding => "it is not padded with '=' as it should be".to_owned(),
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl FromStr for Encoding {
    type Err = UnknownEncoding;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "utf8" => Ok(Self::Utf8),
            _ => {
                let encoding = Self::ALL.iter().find(|encoding| encoding.as_str() == word);
                encoding.copied().ok_or_else(|| UnknownEncoding(word.to_owned()))
            }
        }
    }
}

sandbox_protocol::as_text!(Encoding);

impl JsonSchema for Encoding {
    fn schema_name() -> Cow<'static, str> {
        "Encoding".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut names: Vec<&str> = Self::ALL.iter().map(|encoding| encoding.as_str()).collect();
        if matches!(generator.contract(), Contract::Deserialize) {
            names.push("utf8");
        }
        json_schema!({
            "description": "An encoding of file content as text.",
            "type": "string",
            "enum": names,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_encoding_is_known_by_its_word() {
        for encoding in Encoding::ALL {
            assert_eq!(encoding.as_str().parse(), Ok(*encoding));
        }
        assert_eq!("utf8".parse(), Ok(Encoding::Utf8));
        let error = "UTF-8".parse::<Encoding>().unwrap_err().to_string();
        assert!(error.contains("'UTF-8'") && error.contains("utf-16le"), "{error}");
    }

    #[test]
    fn content_that_does_not_fit_says_where() {
        let not = |encoding: Encoding, bytes: &[u8]| {
            encoding.decode(bytes.to_vec()).unwrap_err().to_string()
        };
        assert_eq!(not(Encoding::Utf8, b"ab\xff"), "the content is not utf-8: byte 2 of it");
        assert_eq!(not(Encoding::Ascii, "ä".as_bytes()), "the content is not ascii: byte 0 of it");
        assert!(not(Encoding::Utf16Le, b"a\0b").contains("odd number"));
        assert!(not(Encoding::Utf16Be, &[0, b'a', 0xd8, 0]).contains("byte 2"));
        let no = |encoding: Encoding, text: &str| encoding.encode(text).unwrap_err().to_string();
        assert!(no(Encoding::Latin1, "a€").contains("character 2 is '€'"));
        assert!(no(Encoding::Ascii, "ä").contains("character 1"));
        assert!(no(Encoding::Hex, "0g").contains("character 2"));
        assert!(no(Encoding::Hex, "abc").contains("odd number"));
        assert!(no(Encoding::Base64, "Zm9v\n").contains("base64: character 5 is not a digit"));
        assert!(no(Encoding::Base64, "ä").contains("character 1 is not a digit"));
        assert!(no(Encoding::Base64, "Zg").contains("padded"));
        assert!(no(Encoding::Base64, "Zh==").contains("character 2 has trailing bits"));
    }

    #[test]
    fn a_byte_order_mark_and_line_ends_stay() {
        let text = "\u{feff}a\r\nb\n";
        for encoding in [Encoding::Utf8, Encoding::Utf16Le, Encoding::Utf16Be] {
            assert_eq!(encoding.decode(encoding.encode(text).unwrap()).unwrap(), text);
        }
        assert_eq!(Encoding::Utf16Be.encode("a").unwrap(), [0, b'a']);
        assert_eq!(Encoding::Utf16Le.encode("a").unwrap(), [b'a', 0]);
        assert_eq!(Encoding::Hex.encode("00fF").unwrap(), [0, 0xff]);
        assert_eq!(Encoding::Latin1.encode("é").unwrap(), [0xe9]);
    }

    proptest! {
        #[test]
        fn decoded_text_encodes_to_the_same_bytes(bytes in any::<Vec<u8>>()) {
            for encoding in Encoding::ALL {
                if let Ok(text) = encoding.decode(bytes.clone()) {
                    prop_assert_eq!(encoding.encode(&text).unwrap(), bytes.clone());
                }
            }
            for any in [Encoding::Base64, Encoding::Hex, Encoding::Latin1] {
                prop_assert!(any.decode(bytes.clone()).is_ok());
            }
        }

        #[test]
        fn text_of_a_unicode_encoding_comes_back(text in any::<String>()) {
            for encoding in [Encoding::Utf8, Encoding::Utf16Le, Encoding::Utf16Be] {
                prop_assert_eq!(encoding.decode(encoding.encode(&text).unwrap()).unwrap(), text.clone());
            }
        }
    }
}
