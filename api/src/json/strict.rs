//! JSON as its schemas say: serde reads a struct from an array too, by position, takes `3.0` for no
//! integer, and the last of two members of one name.

use std::collections::HashSet;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer as _,
    MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde_path_to_error::{Path, Track};

/// Why JSON cannot be read, and where.
#[derive(Debug)]
pub struct Mistake {
    /// The place of what is wrong.
    pub path: Path,
    /// What is wrong.
    pub error: serde_json::Error,
}

impl Mistake {
    /// What is wrong, in words of JSON, without its place.
    pub fn what(&self) -> String {
        let text = self.error.to_string();
        // Of what is no JSON the position is all there is to say.
        if self.error.is_data() { in_words_of_json(&text) } else { text }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.path.to_string().as_str(), self.what()) {
            // serde's paths: of the whole, and of what has no end.
            ("." | "?", what) => formatter.write_str(&what),
            (path, what) => write!(formatter, "{path}: {what}"),
        }
    }
}

impl std::error::Error for Mistake {}

/// Reads a `T` as [`deserialize`] does.
///
/// # Errors
///
/// The first [`Mistake`].
pub fn read<'de, T, D>(deserializer: D) -> Result<T, Mistake>
where
    T: Deserialize<'de>,
    D: Deserializer<'de, Error = serde_json::Error>,
{
    read_with(deserializer, |tracked| T::deserialize(tracked))
}

/// A deserializer that is strict, and knows where it is.
pub type Tracked<'a, 'b, D> = Strict<serde_path_to_error::Deserializer<'a, 'b, D>>;

/// The same for what is no type alone.
///
/// # Errors
///
/// As of [`read`].
pub fn read_with<'de, T, D>(
    deserializer: D,
    decode: impl FnOnce(Tracked<'_, '_, D>) -> Result<T, serde_json::Error>,
) -> Result<T, Mistake>
where
    D: Deserializer<'de, Error = serde_json::Error>,
{
    let mut track = Track::new();
    let tracked = serde_path_to_error::Deserializer::new(deserializer, &mut track);
    decode(Strict::of(tracked)).map_err(|error| Mistake { path: track.path(), error })
}

/// Reads a text that is nothing but a `T`.
///
/// # Errors
///
/// As of [`read`].
pub fn from_slice<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, Mistake> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = read(&mut reader)?;
    reader.end().map_err(|error| Mistake { path: Track::new().path(), error })?;
    Ok(value)
}

/// A message of serde: without a position, which means nothing where there are no lines, and with the
/// names of JSON for what is there and what was expected.
fn in_words_of_json(message: &str) -> String {
    const EXPECTED: &[(&str, &str)] = &[
        ("u64", "a whole number from 0"),
        ("usize", "a whole number from 0"),
        ("u32", "a whole number from 0 to 4294967295"),
        ("u16", "a whole number from 0 to 65535"),
        ("a nonzero u64", "a whole number from 1"),
        ("a nonzero u32", "a whole number from 1 to 4294967295"),
        ("i64", "a whole number"),
        ("f64", "a number"),
        ("a map", "an object"),
        ("a sequence", "an array"),
    ];
    let message = match message.rsplit_once(" at line ") {
        Some((what, position)) if position.contains("column") => what,
        _ => message,
    };
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return message.to_owned();
    };
    let found = match found {
        "invalid type: map" => "invalid type: object",
        "invalid type: sequence" => "invalid type: array",
        found => found,
    };
    let expected = match EXPECTED.iter().find(|(rust, _)| *rust == expected) {
        Some((_, json)) => json,
        None if expected.starts_with("struct ") => "an object",
        None => expected,
    };
    format!("{found}, expected {expected}")
}

/// Reads a `T` whose structs are objects and whose objects have each member once, all the way down.
///
/// # Errors
///
/// As of the deserializer.
pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(Strict::of(deserializer))
}

/// Passes everything on, but for arrays in place of structs, whole numbers, and members that are twice.
#[derive(Debug)]
pub struct Strict<T> {
    inner: T,
    expected: Expected,
}

/// What a visitor expects that needs a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Struct,
    Integer,
    Other,
}

impl<T> Strict<T> {
    const fn of(inner: T) -> Self {
        Self { inner, expected: Expected::Other }
    }
}

/// Beyond this not every integer is a double.
const MAX_EXACT: f64 = (1_u64 << 53) as f64;

macro_rules! pass_on {
    ($($method:ident($($argument:ident: $kind:ty),*))+) => {
        $(fn $method<V: Visitor<'de>>(self, $($argument: $kind,)* visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method($($argument,)* Strict::of(visitor))
        })+
    };
}

macro_rules! integers {
    ($($method:ident)+) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(Strict { inner: visitor, expected: Expected::Integer })
        })+
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    pass_on! {
        deserialize_any() deserialize_bool() deserialize_f32() deserialize_f64() deserialize_char()
        deserialize_str() deserialize_string() deserialize_bytes() deserialize_byte_buf()
        deserialize_option() deserialize_unit() deserialize_seq() deserialize_map()
        deserialize_identifier() deserialize_ignored_any()
        deserialize_unit_struct(name: &'static str) deserialize_newtype_struct(name: &'static str)
        deserialize_tuple(length: usize)
        deserialize_tuple_struct(name: &'static str, length: usize)
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_struct(
            name,
            fields,
            Strict { inner: visitor, expected: Expected::Struct },
        )
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! visit {
    ($($method:ident($kind:ty))+) => {
        $(fn $method<E: Error>(self, value: $kind) -> Result<V::Value, E> {
            self.inner.$method(value)
        })+
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Strict<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    visit! {
        visit_bool(bool) visit_i64(i64) visit_i128(i128) visit_u64(u64) visit_u128(u128)
        visit_char(char) visit_str(&str) visit_borrowed_str(&'de str)
        visit_string(String) visit_bytes(&[u8]) visit_borrowed_bytes(&'de [u8])
        visit_byte_buf(Vec<u8>)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        let is_whole = value.fract() == 0.0 && value.abs() <= MAX_EXACT;
        match self.expected == Expected::Integer && is_whole {
            true if value < 0.0 => self.inner.visit_i64(value as i64),
            true => self.inner.visit_u64(value as u64),
            false => self.inner.visit_f64(value),
        }
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Strict::of(deserializer))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Strict::of(deserializer))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        if self.expected == Expected::Struct {
            return Err(A::Error::invalid_type(Unexpected::Seq, &"an object"));
        }
        self.inner.visit_seq(Strict::of(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        // A struct knows its own; others it refuses, or does not keep.
        let seen = (self.expected != Expected::Struct).then(HashSet::new);
        self.inner.visit_map(Members { members, seen })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Strict::of(variant))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Strict::of(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        self.inner.next_element_seed(Strict::of(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// The members of an object, and the names of those that were read, if none may be there twice.
struct Members<A> {
    members: A,
    seen: Option<HashSet<String>>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Members<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let Some(seen) = &mut self.seen else { return self.members.next_key_seed(seed) };
        let Some(name) = self.members.next_key::<String>()? else { return Ok(None) };
        if seen.contains(&name) {
            return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
        }
        let key = seed.deserialize(name.as_str().into_deserializer())?;
        seen.insert(name);
        Ok(Some(key))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.members.next_value_seed(Strict::of(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.members.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Strict<A> {
    type Error = A::Error;
    type Variant = Strict<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        self.inner.variant_seed(seed).map(|(value, variant)| (value, Strict::of(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        self.inner.newtype_variant_seed(Strict::of(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(length, Strict::of(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.struct_variant(fields, Strict { inner: visitor, expected: Expected::Struct })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(text: &str) -> Result<Value, String> {
        from_slice(text.as_bytes()).map_err(|mistake| mistake.to_string())
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Lines {
        #[serde(rename = "from")]
        _from: std::num::NonZeroU64,
        #[serde(rename = "count", default)]
        _count: u64,
    }

    #[derive(Debug, serde::Deserialize)]
    struct View {
        #[serde(rename = "lines")]
        _lines: Lines,
    }

    #[test]
    fn mistake_is_reported_with_its_place_in_words_of_json() {
        for (text, expected) in [
            (r#"{"lines":[2,3]}"#, "lines: invalid type: array, expected an object"),
            (r#"{"lines":"a"}"#, "lines: invalid type: string \"a\", expected an object"),
            (
                r#"{"lines":{"from":{}}}"#,
                "lines.from: invalid type: object, expected a whole number from 1",
            ),
            (
                r#"{"lines":{"from":1,"count":-1}}"#,
                "lines.count: invalid value: integer `-1`, expected a whole number from 0",
            ),
            (
                r#"{"lines":{"from":1,"to":2}}"#,
                "lines.to: unknown field `to`, expected `from` or `count`",
            ),
            (r#"{"lines":{"from":1,"from":2}}"#, "lines: duplicate field `from`"),
            ("{}", "missing field `lines`"),
            ("[]", "invalid type: array, expected an object"),
            ("{} {}", "missing field `lines`"),
            ("{", "EOF while parsing an object at line 1 column 1"),
        ] {
            let mistake = from_slice::<View>(text.as_bytes()).unwrap_err();
            assert_eq!(mistake.to_string(), expected, "{text}");
        }
        from_slice::<View>(br#"{"lines":{"from":1.0,"count":2e3}}"#).unwrap();
        assert!(from_slice::<View>(br#"{"lines":{"from":1}} {}"#).is_err());
    }

    #[test]
    fn member_is_there_once_at_any_depth() {
        assert_eq!(
            read(r#"{"a":{"b":[1,"x",null]}}"#),
            Ok(json!({ "a": { "b": [1, "x", null] } }))
        );
        for twice in [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"\u0061":2}}]"#] {
            assert!(read(twice).unwrap_err().contains("duplicate field `a`"), "{twice}");
        }
    }
}
