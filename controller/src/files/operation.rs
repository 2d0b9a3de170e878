//! File operations as data: a JSON object in, an envelope out. The same for every front end.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use sandbox_protocol::path::written;
use sandbox_protocol::{Base64, ErrorKind, WireError};
use serde::de::{self, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::map::Entry;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::Encoding;
use super::data::{
    Extent, ListOptions, MkdirOptions, ReadOptions, RemoveOptions, RenameOptions, ViewOptions,
    WriteMode, WriteOptions,
};
use crate::error::Error;
use crate::limits::millis;
use crate::report::ErrorDocument;
use crate::sandbox::Sandbox;

/// A file operation with all of its options, read from
/// `{"operation": "read", "path": "a.txt", …}`.
///
/// A path or name that is not UTF-8 is given by its bytes in `path_b64`, with or without text beside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation(Request);

macro_rules! requests {
    ($($word:literal $variant:ident {
        $($field:ident: $kind:ty $(= $default:expr)?,)*
    })+) => {
        $(
            #[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
            #[serde(deny_unknown_fields)]
            struct $variant {
                $($(#[serde(default = $default)])? $field: $kind,)*
            }
        )+

        #[derive(Debug, Clone, PartialEq, Eq)]
        enum Request {
            $($variant($variant),)+
        }

        impl Request {
            fn new(operation: &str, options: Map<String, Value>) -> Result<Self, Error> {
                match operation {
                    $($word => options_of(operation, options).map(Self::$variant),)+
                    _ => {
                        let words = [$($word),+].join(", ");
                        Err(invalid(format!("unknown operation '{operation}': it is one of {words}")))
                    }
                }
            }

            const fn word(&self) -> &'static str {
                match self { $(Self::$variant(_) => $word,)+ }
            }
        }
    };
}

requests! {
    "read" Read {
        path: String,
        path_b64: Option<Base64> = "none",
        encoding: Option<Encoding> = "none",
        offset: u64 = "u64::default",
        limit: Option<u64> = "none",
    }
    "view" View {
        path: String,
        path_b64: Option<Base64> = "none",
        lines: Lines = "Lines::default",
    }
    "write" Write {
        path: String,
        path_b64: Option<Base64> = "none",
        content: String,
        encoding: Option<Encoding> = "none",
        mode: WriteMode = "overwrite",
        parents: bool = "yes",
        atomic: bool = "yes",
    }
    "edit" Edit {
        path: String,
        path_b64: Option<Base64> = "none",
        old: String,
        new: String,
        count: NonZeroU64 = "once",
    }
    "list" List {
        path: String = "here",
        path_b64: Option<Base64> = "none",
        recursive: bool = "bool::default",
        max_depth: Option<u64> = "none",
        limit: Option<u64> = "none",
    }
    "mkdir" Mkdir {
        path: String,
        path_b64: Option<Base64> = "none",
        parents: bool = "yes",
    }
    "remove" Remove {
        path: String,
        path_b64: Option<Base64> = "none",
        recursive: bool = "bool::default",
        force: bool = "bool::default",
    }
    "exists" Exists {
        path: String,
        path_b64: Option<Base64> = "none",
    }
    "stat" Stat {
        path: String,
        path_b64: Option<Base64> = "none",
    }
    "rename" Rename {
        from: String,
        from_b64: Option<Base64> = "none",
        to: String,
        to_b64: Option<Base64> = "none",
        overwrite: bool = "bool::default",
    }
}

/// The lines of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Lines {
    offset: u64,
    limit: Option<u64>,
}

impl Default for Lines {
    fn default() -> Self {
        let ViewOptions { offset, limit } = ViewOptions::default();
        Self { offset, limit }
    }
}

const fn none<T>() -> Option<T> {
    None
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

fn invalid(message: impl AsRef<str>) -> Error {
    Error::Operation { source: WireError::new(ErrorKind::InvalidRequest, message) }
}

/// A JSON value in which no object has a key twice: which of the two is meant, nobody can say.
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

/// Reads an operation's options; an error names the key.
fn options_of<T: DeserializeOwned>(
    operation: &str,
    options: Map<String, Value>,
) -> Result<T, Error> {
    serde_path_to_error::deserialize(Value::Object(options)).map_err(|error| {
        let key = error.path().to_string();
        let what = error.inner();
        // A key that is unknown or missing is named by the message itself.
        invalid(match &*key {
            "." => format!("{operation}: {what}"),
            key => format!("{operation}: {key}: {what}"),
        })
    })
}

impl Operation {
    /// Reads an operation.
    ///
    /// # Errors
    ///
    /// `invalid_request`, which names the key that is unknown, missing, or of a wrong type.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        match serde_json::from_str(json) {
            Ok(Unambiguous(Value::Object(object))) => Self::from_object(object),
            Ok(_) => Err(invalid("not a JSON object")),
            // The only thing that is wrong with what is JSON.
            Err(error) if error.is_data() => Err(invalid(error.to_string())),
            Err(error) => Err(invalid(format!("not a JSON object: {error}"))),
        }
    }

    /// As [`from_json`](Self::from_json), of an object that is read already.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn from_object(mut object: Map<String, Value>) -> Result<Self, Error> {
        match object.remove("operation") {
            Some(Value::String(operation)) => {
                let names: &[_] = match &*operation {
                    "rename" => &[("from", "from_b64"), ("to", "to_b64")],
                    _ => &[("path", "path_b64")],
                };
                // The bytes will do: the text beside them is for people.
                for (text, bytes) in names {
                    if object.get(*bytes).is_some_and(Value::is_string) {
                        object.entry(*text).or_insert_with(|| String::new().into());
                    }
                }
                Request::new(&operation, object).map(Self)
            }
            Some(_) => Err(invalid("operation: it is no text")),
            None => Err(invalid("missing field `operation`")),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.0.word()
    }

    /// Performs it. How it went, an error too, is in the envelope.
    pub async fn perform(self, sandbox: &Sandbox) -> Envelope {
        let started = Instant::now();
        let result = self.result(sandbox).await;
        Envelope::new(started.elapsed(), result)
    }

    async fn result(self, sandbox: &Sandbox) -> Result<Performed, Error> {
        match self.0 {
            Request::Read(Read { path, path_b64, encoding, offset, limit }) => {
                let options = ReadOptions { encoding, offset, limit };
                Performed::new(&sandbox.read(written(&path, path_b64.as_ref()), options).await?)
            }
            Request::View(View { path, path_b64, lines: Lines { offset, limit } }) => {
                let options = ViewOptions { offset, limit };
                Performed::new(&sandbox.view(written(&path, path_b64.as_ref()), options).await?)
            }
            Request::Write(write) => {
                let Write { path, path_b64, content, encoding, mode, parents, atomic } = write;
                let path = written(&path, path_b64.as_ref());
                let options = WriteOptions { mode, parents, atomic };
                Performed::new(&sandbox.write_text(path, &content, encoding, options).await?)
            }
            Request::Edit(Edit { path, path_b64, old, new, count }) => {
                let path = written(&path, path_b64.as_ref());
                Performed::new(&sandbox.edit(path, &old, &new, count).await?)
            }
            Request::List(List { path, path_b64, recursive, max_depth, limit }) => {
                let options = ListOptions { recursive, max_depth, limit };
                Performed::new(&sandbox.list(written(&path, path_b64.as_ref()), options).await?)
            }
            Request::Mkdir(Mkdir { path, path_b64, parents }) => {
                let options = MkdirOptions { parents };
                Performed::new(&sandbox.mkdir(written(&path, path_b64.as_ref()), options).await?)
            }
            Request::Remove(Remove { path, path_b64, recursive, force }) => {
                let options = RemoveOptions { recursive, force };
                Performed::new(&sandbox.remove(written(&path, path_b64.as_ref()), options).await?)
            }
            Request::Exists(Exists { path, path_b64 }) => {
                Performed::new(&sandbox.exists(written(&path, path_b64.as_ref())).await?)
            }
            Request::Stat(Stat { path, path_b64 }) => {
                Performed::new(&sandbox.stat(written(&path, path_b64.as_ref())).await?)
            }
            Request::Rename(Rename { from, from_b64, to, to_b64, overwrite }) => {
                let (from, to) = (written(&from, from_b64.as_ref()), written(&to, to_b64.as_ref()));
                Performed::new(&sandbox.rename(from, to, RenameOptions { overwrite }).await?)
            }
        }
    }
}

/// An operation's data as JSON, and its extent.
#[derive(Debug, Clone)]
pub struct Performed {
    data: Box<RawValue>,
    bytes: Option<u64>,
    items: Option<u64>,
}

impl Performed {
    /// What is told of such data.
    ///
    /// # Errors
    ///
    /// Only for data that JSON cannot hold, which is none of this module's.
    pub fn new(data: &(impl Extent + Serialize)) -> Result<Self, Error> {
        let (bytes, items) = (data.bytes(), data.items());
        let data = serde_json::value::to_raw_value(data).map_err(|error| Error::Operation {
            source: WireError::new(ErrorKind::Internal, error.to_string()),
        })?;
        Ok(Self { data, bytes, items })
    }

    /// The envelope of it, which took so long.
    #[must_use]
    pub fn envelope(self, took: Duration) -> Envelope {
        let Self { data, bytes, items } = self;
        let metadata = Metadata { duration_ms: millis(took), bytes, items };
        Envelope { success: true, data: Some(data), error: None, metadata }
    }
}

/// How an operation went: `{"success":true,"data":{…},"error":null,"metadata":{…}}`.
#[derive(Debug, Clone, Serialize)]
pub struct Envelope {
    /// Whether it did.
    pub success: bool,
    /// The operation's data; null where it failed.
    pub data: Option<Box<RawValue>>,
    /// Why it failed.
    pub error: Option<ErrorDocument>,
    /// Beside the data.
    pub metadata: Metadata,
}

/// What an [`Envelope`] tells beside the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Metadata {
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// Bytes of content that were read or written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Entries that were listed or removed, places that were edited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<u64>,
}

impl Envelope {
    fn new(took: Duration, result: Result<Performed, Error>) -> Self {
        match result {
            Ok(performed) => performed.envelope(took),
            Err(error) => Self::failed(took, ErrorDocument::from(&error)),
        }
    }

    /// The envelope of a failure, also of one before there was a sandbox.
    #[must_use]
    pub fn failed(took: Duration, error: ErrorDocument) -> Self {
        let metadata = Metadata { duration_ms: millis(took), bytes: None, items: None };
        Self { success: false, data: None, error: Some(error), metadata }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(json: &str) -> String {
        let error = Operation::from_json(json).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        error.to_string()
    }

    #[test]
    fn an_operation_is_read_with_its_defaults() {
        let read = Operation::from_json(r#"{"operation":"read","path":"a"}"#).unwrap();
        assert_eq!(read.name(), "read");
        let Request::Write(write) =
            Operation::from_json(r#"{"operation":"write","path":"a","content":""}"#).unwrap().0
        else {
            panic!("another one")
        };
        assert_eq!((write.mode, write.parents, write.atomic), (WriteMode::Overwrite, true, true));
        let Request::Edit(edit) =
            Operation::from_json(r#"{"operation":"edit","path":"a","old":"x","new":""}"#)
                .unwrap()
                .0
        else {
            panic!("another one")
        };
        assert_eq!(edit.count.get(), 1);
    }

    #[test]
    fn bytes_of_a_path_stand_alone_or_beside_its_text() {
        let stat = |json: &str| match Operation::from_json(json).unwrap().0 {
            Request::Stat(Stat { path, path_b64 }) => written(&path, path_b64.as_ref()).to_vec(),
            other => panic!("{other:?}"),
        };
        assert_eq!(stat(r#"{"operation":"stat","path_b64":"Yf8="}"#), b"a\xff");
        assert_eq!(stat(r#"{"operation":"stat","path":"a?","path_b64":"Yf8="}"#), b"a\xff");
        assert_eq!(stat(r#"{"operation":"stat","path":"a","path_b64":null}"#), b"a");
        let rename = r#"{"operation":"rename","from_b64":"Yf8=","to_b64":"Yv8="}"#;
        let Request::Rename(rename) = Operation::from_json(rename).unwrap().0 else {
            panic!("another one")
        };
        assert_eq!(written(&rename.from, rename.from_b64.as_ref()), b"a\xff");
        assert_eq!(written(&rename.to, rename.to_b64.as_ref()), b"b\xff");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("[]", "not a JSON object"),
            ("{", "not a JSON object"),
            (r#"{"path":"a"}"#, "missing field `operation`"),
            (r#"{"operation":7,"path":"a"}"#, "operation: it is no text"),
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
}
