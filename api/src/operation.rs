//! File operations as data: a JSON object in, an envelope out. Used by every front end.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use sandbox_protocol::{Base64, ErrorKind, WireError};
use schemars::{JsonSchema, Schema};
use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, de};
use serde_json::map::Entry;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::encoding::Encoding;
use super::files::{OperationStats, ViewOptions, WriteMode};
use crate::failure::Failure;
use crate::time::millis;

macro_rules! operations {
    ($($(#[$doc:meta])* $word:literal $variant:ident {
        $($(#[$field_doc:meta])* $field:ident: $kind:ty $(= $default:expr)?,)*
    })+) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
            #[serde(deny_unknown_fields)]
            pub struct $variant {
                $($(#[$field_doc])* $(#[serde(default = $default)])? pub $field: $kind,)*
            }
        )+

        /// A file operation with all of its options, read from
        /// `{"operation": "read", "path": "a.txt", …}`.
        ///
        /// The bytes of a path or name that is not UTF-8 are given in `path_b64`, with or without
        /// the text form.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
        #[serde(tag = "operation")]
        #[schemars(transform = bytes_suffice)]
        pub enum Operation {
            $($(#[$doc])* #[serde(rename = $word)] $variant($variant),)+
        }

        impl Operation {
            fn new(operation: &str, options: Map<String, Value>) -> Result<Self, WireError> {
                match operation {
                    $($word => options_of(operation, options).map(Self::$variant),)+
                    _ => {
                        let words = [$($word),+].join(", ");
                        Err(invalid(format!("unknown operation '{operation}': it is one of {words}")))
                    }
                }
            }

            /// The operation's name.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $word,)+ }
            }

            /// The names of an operation's options.
            fn options(operation: &str) -> &'static [&'static str] {
                match operation {
                    $($word => &[$(stringify!($field)),*],)+
                    _ => &[],
                }
            }
        }
    };
}

operations! {
    /// Reads a file, or a range of it, as text in an encoding.
    "read" Read {
        /// The file.
        path: String,
        /// The path's bytes, where they are not UTF-8.
        path_b64: Option<Base64>,
        /// The encoding of the content; `None` for the sandbox's default.
        encoding: Option<Encoding>,
        /// The offset of the first byte.
        offset: u64 = "u64::default",
        /// The maximum number of bytes.
        limit: Option<u64>,
    }
    /// Returns a range of a file for people and models.
    "view" View {
        /// The file.
        path: String,
        /// The path's bytes, where they are not UTF-8.
        path_b64: Option<Base64>,
        /// The lines.
        lines: ViewOptions = "ViewOptions::default",
    }
    /// Writes a file completely, or not at all.
    "write" Write {
        /// The file.
        path: String,
        /// The path's bytes, where they are not UTF-8.
        path_b64: Option<Base64>,
        /// The content, in the encoding.
        content: String,
        /// The encoding; `None` for the sandbox's default.
        encoding: Option<Encoding>,
        /// What happens to an existing file.
        mode: WriteMode = "overwrite",
        /// Whether to create missing parent directories.
        parents: bool = "yes",
        /// Whether every reader sees either the old file or the new one whole.
        atomic: bool = "yes",
    }
    /// Replaces text that occurs in a file exactly `count` times.
    "edit" Edit {
        /// The file.
        path: String,
        /// The path's bytes, where they are not UTF-8.
        path_b64: Option<Base64>,
        /// The text to replace.
        old: String,
        /// The replacement.
        new: String,
        /// The expected number of occurrences.
        count: NonZeroU64 = "once",
    }
    /// Lists a directory.
    "list" List {
        /// The directory.
        path: String = "here",
        /// The path's bytes, where they are not UTF-8.
        path_b64: Option<Base64>,
        /// Whether to descend into subdirectories.
        recursive: bool = "bool::default",
        /// The maximum depth.
        max_depth: Option<u64>,
        /// The maximum number of entries.
        limit: Option<u64>,
    }
    /// Finds paths by a pattern.
    "glob" Glob {
        /// The pattern, relative to the directory.
        pattern: String,
        /// The directory.
        path: String = "here",
        /// The path's bytes, where they are not UTF-8.
        path_b64: Option<Base64>,
        /// Paths to leave out: globs of names, or with a slash of paths as they are returned, such as
        /// `node_modules` and `**/target/**`.
        exclude: Vec<String> = "Vec::<String>::new",
        /// Whether names that begin with a dot match where the pattern has no such name.
        hidden: bool = "bool::default",
        /// The maximum number of paths.
        limit: Option<u64>,
    }
    /// Finds lines by a regular expression.
    "grep" Grep {
        /// The regular expression.
        pattern: String,
        /// The file, or the directory whose files are searched.
        path: String = "here",
        /// The path's bytes, where they are not UTF-8.
        path_b64: Option<Base64>,
        /// Only files whose path or name matches this glob; with `!` before it, all others.
        glob: Option<String>,
        /// Files and directories to leave out: globs of names, or with a slash of paths below the
        /// directory.
        exclude: Vec<String> = "Vec::<String>::new",
        /// The number of lines of context on each side of a match.
        context: u64 = "u64::default",
        /// Whether to ignore case.
        ignore_case: bool = "bool::default",
        /// Whether to search files and directories whose names begin with a dot, without those of version
        /// control.
        hidden: bool = "bool::default",
        /// The maximum number of matching lines.
        limit: Option<u64>,
    }
    /// Creates a directory.
    "mkdir" Mkdir {
        /// The directory.
        path: String,
        /// The path's bytes, where they are not UTF-8.
        path_b64: Option<Base64>,
        /// Whether to create missing parent directories.
        parents: bool = "yes",
    }
    /// Removes a file or a directory.
    "remove" Remove {
        /// The path to remove.
        path: String,
        /// The path's bytes, where they are not UTF-8.
        path_b64: Option<Base64>,
        /// Whether to remove a directory with its contents.
        recursive: bool = "bool::default",
        /// Whether to ignore a nonexistent path.
        force: bool = "bool::default",
    }
    /// Tests whether a path exists.
    "exists" Exists {
        /// The path.
        path: String,
        /// The path's bytes, where they are not UTF-8.
        path_b64: Option<Base64>,
    }
    /// Returns the metadata of a path.
    "stat" Stat {
        /// The path.
        path: String,
        /// The path's bytes, where they are not UTF-8.
        path_b64: Option<Base64>,
    }
    /// Moves or renames.
    "rename" Rename {
        /// The old path.
        from: String,
        /// Its bytes, where they are not UTF-8.
        from_b64: Option<Base64>,
        /// The new path.
        to: String,
        /// Its bytes, where they are not UTF-8.
        to_b64: Option<Base64>,
        /// Whether to replace an existing file or directory at the new path.
        overwrite: bool = "bool::default",
    }
    /// Copies a file or a directory.
    "copy" Copy {
        /// The source.
        from: String,
        /// Its bytes, where they are not UTF-8.
        from_b64: Option<Base64>,
        /// The path of the copy.
        to: String,
        /// Its bytes, where they are not UTF-8.
        to_b64: Option<Base64>,
        /// Whether to copy a directory with its contents.
        recursive: bool = "bool::default",
        /// Whether to replace existing files, and to copy a directory into an existing one.
        overwrite: bool = "bool::default",
    }
}

/// In the schema: the bytes of a path suffice, without its text.
fn bytes_suffice(schema: &mut Schema) {
    let variants = schema.get_mut("oneOf").and_then(Value::as_array_mut);
    for variant in variants.into_iter().flatten().filter_map(Value::as_object_mut) {
        let mut either = Vec::new();
        if let Some(Value::Array(required)) = variant.get_mut("required") {
            required.retain(|name| {
                let Some(text @ ("path" | "from" | "to")) = name.as_str() else { return true };
                let bytes = format!("{text}_b64");
                let is_text = json!({ "properties": { &bytes: { "type": "string" } } });
                either.push(json!({ "anyOf": [
                    { "required": [text] },
                    { "required": [bytes], "allOf": [is_text] },
                ]}));
                false
            });
        }
        if !either.is_empty() {
            variant.insert("allOf".to_owned(), either.into());
        }
    }
}

const fn yes() -> bool {
    true
}

const fn once() -> NonZeroU64 {
    NonZeroU64::MIN
}

const fn overwrite() -> WriteMode {
    WriteMode::Overwrite
}

fn here() -> String {
    ".".to_owned()
}

/// A whole number is an integer however it is written: no option is a fraction.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|it| number.is_f64() && it.fract() == 0.0);
            // Integers that a double has exactly.
            if let Some(whole) = whole.filter(|it| (0.0..=MAX_EXACT).contains(it)) {
                *value = (whole as u64).into();
            }
        }
        Value::Object(members) => members.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

/// Larger integers are not exact in a double.
const MAX_EXACT: f64 = (1_u64 << 53) as f64;

fn invalid(message: impl AsRef<str>) -> WireError {
    WireError::new(ErrorKind::InvalidRequest, message)
}

/// A JSON value without duplicate keys, which would be ambiguous.
struct Unambiguous(Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue).map(Self)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Unambiguous(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, Unambiguous(value))) = members.next_entry::<String, _>()? {
            match object.entry(key) {
                Entry::Vacant(entry) => _ = entry.insert(value),
                Entry::Occupied(entry) => {
                    return Err(de::Error::custom(format!("duplicate field `{}`", entry.key())));
                }
            }
        }
        Ok(object.into())
    }
}

/// Deserializes an operation's options; an error names the key.
fn options_of<T: DeserializeOwned>(
    operation: &str,
    options: Map<String, Value>,
) -> Result<T, WireError> {
    serde_path_to_error::deserialize(Value::Object(options)).map_err(|error| {
        let key = error.path().to_string();
        let what = error.inner();
        // The message itself names an unknown or missing key.
        invalid(match &*key {
            "." => format!("{operation}: {what}"),
            key => format!("{operation}: {key}: {what}"),
        })
    })
}

impl Operation {
    /// Whether it may make what is stored larger.
    #[must_use]
    pub const fn stores(&self) -> bool {
        matches!(self, Self::Write(_) | Self::Edit(_) | Self::Copy(_))
    }

    /// How to get a part of a file that is too large to be got whole; `None` for what gets none.
    #[must_use]
    pub const fn part_hint(&self) -> Option<&'static str> {
        match self {
            Self::Read(_) => Some("`offset` and `limit` read a part of a file"),
            Self::View(_) => Some("`read` gets a part of a file, by `offset` and `limit`"),
            _ => None,
        }
    }

    /// What to do with content that is not UTF-8, where the operation takes no encoding.
    #[must_use]
    pub const fn bytes_hint(&self) -> Option<&'static str> {
        match self {
            Self::View(_) => Some("`read` with the encoding base64 gives any bytes"),
            Self::Edit(_) => {
                Some("`read` gives any bytes, and `write` takes them, with the encoding base64")
            }
            _ => None,
        }
    }

    /// Parses an operation.
    ///
    /// # Errors
    ///
    /// `invalid_request`, naming the key that is unknown, missing, or of the wrong type.
    pub fn from_json(json: &str) -> Result<Self, WireError> {
        match serde_json::from_str(json.strip_prefix('\u{feff}').unwrap_or(json)) {
            Ok(Unambiguous(Value::Object(object))) => Self::from_object(object),
            Ok(_) => Err(invalid("not a JSON object")),
            // A data error is the only possible error in valid JSON.
            Err(error) if error.is_data() => Err(invalid(error.to_string())),
            Err(error) => Err(invalid(format!("not a JSON object: {error}"))),
        }
    }

    /// Like [`from_json`](Self::from_json), for a parsed object.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn from_object(mut object: Map<String, Value>) -> Result<Self, WireError> {
        match object.remove("operation") {
            Some(Value::String(operation)) => {
                // The bytes suffice: the text form is for people.
                for bytes in Self::options(&operation) {
                    let Some(text) = bytes.strip_suffix("_b64") else { continue };
                    if object.get(*bytes).is_some_and(Value::is_string) {
                        object.entry(text).or_insert_with(|| String::new().into());
                    }
                }
                object.values_mut().for_each(whole_numbers);
                Self::new(&operation, object)
            }
            Some(_) => Err(invalid("operation: it is not a string")),
            None => Err(invalid("missing field `operation`")),
        }
    }
}

impl<'de> Deserialize<'de> for Operation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Unambiguous::deserialize(deserializer)? {
            Unambiguous(Value::Object(object)) => {
                Self::from_object(object).map_err(de::Error::custom)
            }
            Unambiguous(_) => Err(de::Error::custom("not a JSON object")),
        }
    }
}

/// The result of an operation as JSON, with its statistics.
#[derive(Debug, Clone)]
pub struct OperationOutput {
    data: Box<RawValue>,
    bytes: Option<u64>,
    items: Option<u64>,
}

impl OperationOutput {
    /// Serializes the result of an operation.
    ///
    /// # Errors
    ///
    /// If the data cannot be represented in JSON, which does not happen for the types of this
    /// module.
    pub fn new(data: &(impl OperationStats + Serialize)) -> Result<Self, WireError> {
        let (bytes, items) = (data.bytes(), data.items());
        let data = serde_json::value::to_raw_value(data)
            .map_err(|error| WireError::new(ErrorKind::Internal, error.to_string()))?;
        Ok(Self { data, bytes, items })
    }

    /// Its envelope, with the duration of the operation.
    #[must_use]
    pub fn envelope(self, took: Duration) -> Envelope {
        let Self { data, bytes, items } = self;
        let metadata = Metadata { duration_ms: millis(took), bytes, items };
        Envelope { success: true, data: Some(data), error: None, metadata }
    }
}

/// The response to an operation: `{"success":true,"data":{…},"error":null,"metadata":{…}}`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// Whether the operation succeeded.
    pub success: bool,
    /// The operation's result; null if it failed.
    pub data: Option<Box<RawValue>>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// Statistics.
    pub metadata: Metadata,
}

/// Statistics of an operation in its [`Envelope`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OperationMetadata")]
pub struct Metadata {
    /// The duration in milliseconds.
    pub duration_ms: u64,
    /// The number of bytes of content that were read or written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The number of listed or removed entries, or of replacements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<u64>,
}

impl Envelope {
    /// The envelope of a failure, including one before a sandbox existed.
    #[must_use]
    pub fn failed(took: Duration, error: Failure) -> Self {
        let metadata = Metadata { duration_ms: millis(took), bytes: None, items: None };
        Self { success: false, data: None, error: Some(error), metadata }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_protocol::WireString;

    fn refusal(json: &str) -> String {
        let error = Operation::from_json(json).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        error.to_string()
    }

    #[test]
    fn part_of_a_file_is_a_hint_for_what_reads() {
        let hint = |json: &str| {
            let part = Operation::from_json(json).unwrap().part_hint();
            let hint = crate::operation_hint(ErrorKind::TooLarge);
            Failure::new(ErrorKind::TooLarge, "", hint).with_hints(part, None).hint.unwrap()
        };
        let read = hint(r#"{"operation":"read","path":"a"}"#);
        assert!(read.starts_with("`offset` and `limit` read a part of a file; "), "{read}");
        let write = hint(r#"{"operation":"write","path":"a","content":"x"}"#);
        assert!(!write.contains("`offset`") && read.ends_with(&write), "{write}");
    }

    #[test]
    fn operation_without_an_encoding_is_not_told_to_take_another() {
        let hint = |json: &str| {
            let operation = Operation::from_json(json).unwrap();
            let hint = crate::operation_hint(ErrorKind::Encoding);
            let failure = Failure::new(ErrorKind::Encoding, "", hint);
            failure.with_hints(operation.part_hint(), operation.bytes_hint()).hint.unwrap()
        };
        let edit = hint(r#"{"operation":"edit","path":"a","old":"x","new":"y"}"#);
        assert!(edit.starts_with("`read` gives any bytes, and `write` takes them"), "{edit}");
        let view = hint(r#"{"operation":"view","path":"a"}"#);
        assert!(view.starts_with("`read` with the encoding base64"), "{view}");
        let read = hint(r#"{"operation":"read","path":"a"}"#);
        assert_eq!(Some(read), crate::operation_hint(ErrorKind::Encoding));
    }

    #[test]
    fn an_operation_is_read_with_its_defaults() {
        let read = Operation::from_json(r#"{"operation":"read","path":"a"}"#).unwrap();
        assert_eq!(read.name(), "read");
        let Operation::Write(write) =
            Operation::from_json(r#"{"operation":"write","path":"a","content":""}"#).unwrap()
        else {
            panic!("another one")
        };
        assert_eq!((write.mode, write.parents, write.atomic), (WriteMode::Overwrite, true, true));
        let Operation::Edit(edit) =
            Operation::from_json(r#"{"operation":"edit","path":"a","old":"x","new":""}"#).unwrap()
        else {
            panic!("another one")
        };
        assert_eq!(edit.count.get(), 1);
        let Operation::Read(read) =
            Operation::from_json(r#"{"operation":"read","path":"a","offset":3.0}"#).unwrap()
        else {
            panic!("another one")
        };
        assert_eq!(read.offset, 3);
    }

    #[test]
    fn bytes_of_a_path_stand_alone_or_beside_its_text() {
        let stat = |json: &str| match Operation::from_json(json).unwrap() {
            Operation::Stat(Stat { path, path_b64 }) => {
                WireString::from_parts(path, path_b64).into_bytes()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(stat(r#"{"operation":"stat","path_b64":"Yf8="}"#), b"a\xff");
        assert_eq!(stat(r#"{"operation":"stat","path":"a?","path_b64":"Yf8="}"#), b"a\xff");
        assert_eq!(stat(r#"{"operation":"stat","path":"a","path_b64":null}"#), b"a");
        let rename = r#"{"operation":"rename","from_b64":"Yf8=","to_b64":"Yv8="}"#;
        let Operation::Rename(rename) = Operation::from_json(rename).unwrap() else {
            panic!("another one")
        };
        assert_eq!(WireString::from_parts(rename.from, rename.from_b64).as_bytes(), b"a\xff");
        assert_eq!(WireString::from_parts(rename.to, rename.to_b64).as_bytes(), b"b\xff");
    }

    #[test]
    fn operation_errors_name_the_member() {
        let cases = [
            ("[]", "not a JSON object"),
            ("{", "not a JSON object"),
            (r#"{"path":"a"}"#, "missing field `operation`"),
            (r#"{"operation":7,"path":"a"}"#, "operation: it is not a string"),
            (r#"{"operation":"reed","path":"a"}"#, "'reed': it is one of read, view"),
            (r#"{"operation":"read"}"#, "read: missing field `path`"),
            (r#"{"operation":"read","path":"a","lines":1}"#, "unknown field `lines`"),
            (r#"{"operation":"read","path":7}"#, "read: path: invalid type"),
            (r#"{"operation":"read","path":"a","limit":"1"}"#, "read: limit: invalid type"),
            (r#"{"operation":"read","path":"a","offset":-1}"#, "read: offset: invalid value"),
            (r#"{"operation":"read","path":"a","encoding":"utf-7"}"#, "encoding 'utf-7'"),
            (r#"{"operation":"view","path":"a","lines":{"offset":"x"}}"#, "lines.offset"),
            (r#"{"operation":"view","path":"a","lines":{"from":1}}"#, "unknown field `from`"),
            (r#"{"operation":"write","path":"a"}"#, "write: missing field `content`"),
            (r#"{"operation":"write","path":"a","content":"","mode":"x"}"#, "write: mode"),
            (r#"{"operation":"edit","path":"a","old":"a","new":"b","count":0}"#, "edit: count"),
            (r#"{"operation":"rename","from":"a"}"#, "rename: missing field `to`"),
            (r#"{"operation":"stat","path":"a","path_b64":"!"}"#, "stat: path_b64"),
            (r#"{"operation":"stat","path_b64":null}"#, "stat: missing field `path`"),
            (r#"{"operation":"rename","path_b64":"YQ==","to":"b"}"#, "`path_b64`"),
            (r#"{"operation":"stat","path":"a","path":"b"}"#, "duplicate field `path`"),
            (
                r#"{"operation":"stat","operation":"remove","path":"a"}"#,
                "duplicate field `operation`",
            ),
            (r#"{"operation":"view","path":"a","lines":{"limit":1,"limit":2}}"#, "field `limit`"),
        ];
        for (json, part) in cases {
            let refusal = refusal(json);
            assert!(refusal.contains(part), "{json}: {refusal}");
        }
    }

    #[test]
    fn operations_and_envelopes_come_back_as_they_were_written() {
        for json in [
            r#"{"operation":"read","path_b64":"Yf8=","encoding":"hex","offset":3}"#,
            r#"{"operation":"view","path":"a","lines":{"offset":2,"limit":null}}"#,
            r#"{"operation":"write","path":"a","content":"b","mode":"append","atomic":false}"#,
            r#"{"operation":"edit","path":"a","old":"b","new":"c","count":2}"#,
            r#"{"operation":"list"}"#,
            r#"{"operation":"remove","path":"a","recursive":true}"#,
            r#"{"operation":"rename","from":"a","to":"b","overwrite":true}"#,
        ] {
            let operation = Operation::from_json(json).unwrap();
            let written = serde_json::to_string(&operation).unwrap();
            assert_eq!(serde_json::from_str::<Operation>(&written).unwrap(), operation, "{json}");
        }
        let error = serde_json::from_str::<Operation>(r#"{"operation":"stat"}"#).unwrap_err();
        assert!(error.to_string().contains("stat: missing field `path`"), "{error}");
        for json in [
            r#"{"success":true,"data":{"a": 1.50},"error":null,"metadata":{"duration_ms":1,"items":2}}"#,
            r#"{"success":false,"data":null,"error":{"kind":"busy","message":"m"},"metadata":{"duration_ms":1}}"#,
        ] {
            let envelope: Envelope = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&envelope).unwrap(), json);
        }
    }
}
