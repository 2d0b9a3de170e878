//! File operations as data: a JSON object in, an envelope out. Used by every front end.

use std::borrow::Cow;
use std::time::Duration;

pub use sandbox_protocol::operation::*;
use sandbox_protocol::{ErrorKind, WireError, names, without_bom};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize, Serializer, de, ser};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::encoding::Encoding;
use crate::failure::Failure;
use crate::json::strict;
use crate::time::millis;

/// A file operation given as JSON, read from `{"operation": "read", "path": "a.txt", …}`: beside the
/// operation itself, what only the controller needs of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OperationRequest {
    /// The operation.
    #[serde(flatten)]
    pub operation: Operation,
    /// The content of a write, in the encoding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The encoding of the content; by default the sandbox's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
}

/// What a read has beside the operation.
#[derive(Deserialize, JsonSchema)]
struct ReadText {
    /// The encoding of the content; by default the sandbox's.
    encoding: Option<Encoding>,
}

/// What a write has beside the operation.
#[derive(Deserialize, JsonSchema)]
struct WriteText {
    /// The content, in the encoding.
    content: String,
    /// The encoding; by default the sandbox's.
    encoding: Option<Encoding>,
}

impl<O> From<O> for OperationRequest
where
    Operation: From<O>,
{
    fn from(operation: O) -> Self {
        Self { operation: operation.into(), content: None, encoding: None }
    }
}

impl JsonSchema for OperationRequest {
    fn schema_name() -> Cow<'static, str> {
        "Operation".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Operation::json_schema(generator);
        let beside = [
            ("read", ReadText::json_schema(generator)),
            ("write", WriteText::json_schema(generator)),
        ];
        let variants = schema.get_mut("oneOf").and_then(Value::as_array_mut);
        for variant in variants.into_iter().flatten() {
            let name = variant["properties"]["operation"]["const"].clone();
            let Some((_, more)) = beside.iter().find(|(of, _)| name == *of) else { continue };
            if let (Some(members), Some(Value::Object(more))) =
                (variant["properties"].as_object_mut(), more.get("properties"))
            {
                members.extend(more.clone());
            }
            if let (Some(required), Some(Value::Array(more))) =
                (variant["required"].as_array_mut(), more.get("required"))
            {
                required.extend(more.iter().cloned());
            }
        }
        schema.insert(
            "description".to_owned(),
            "A file operation with all of its options, read from `{\"operation\": \"read\", \"path\": \
             \"a.txt\", …}`.\n\nA path that is not UTF-8 is given as its bytes: `{\"b64\": \"Yf8=\"}`."
                .into(),
        );
        schema
    }
}

fn invalid(message: impl AsRef<str>) -> WireError {
    WireError::invalid(message)
}

/// Decodes an operation's options; an error names the key.
fn options_of<T>(
    operation: &str,
    options: Map<String, Value>,
    decode: impl FnOnce(strict::Tracked<'_, '_, Value>) -> Result<T, serde_json::Error>,
) -> Result<T, WireError> {
    strict::read_with(Value::Object(options), decode)
        .map_err(|mistake| invalid(format!("{operation}: {mistake}")))
}

impl OperationRequest {
    /// How to get a part of a file that is too large to be got whole; `None` for what gets none.
    pub const fn part_hint(&self) -> Option<&'static str> {
        match &self.operation {
            Operation::Read(_) => Some("`offset` and `limit` read a part of a file"),
            Operation::View(_) => Some("`read` gets a part of a file, by `offset` and `limit`"),
            _ => None,
        }
    }

    /// What to do with content that is not UTF-8, where the operation takes no encoding.
    pub const fn bytes_hint(&self) -> Option<&'static str> {
        match &self.operation {
            Operation::View(_) => Some("`read` with the encoding base64 gives any bytes"),
            Operation::Edit(_) => {
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
        match strict::from_slice(without_bom(json.as_bytes())) {
            Ok(Value::Object(object)) => Self::from_object(object),
            Ok(_) => Err(invalid("not a JSON object")),
            Err(mistake) if mistake.error.is_data() => Err(invalid(mistake.to_string())),
            Err(mistake) => Err(invalid(format!("not a JSON object: {mistake}"))),
        }
    }

    /// Like [`from_json`](Self::from_json), for a parsed object.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn from_object(mut object: Map<String, Value>) -> Result<Self, WireError> {
        let name = match object.remove("operation") {
            Some(Value::String(name)) => name,
            Some(_) => return Err(invalid("operation: it is not a string")),
            None if object.contains_key("op") => {
                return Err(invalid("unknown field `op`: the name of an operation is `operation`"));
            }
            None => return Err(invalid("missing field `operation`")),
        };
        let beside: &[&str] = match &*name {
            "read" => &["encoding"],
            "write" => &["content", "encoding"],
            _ => &[],
        };
        let beside = beside.iter().filter_map(|member| object.remove_entry(*member)).collect();
        let operation = options_of(&name, object, |it| Operation::decode(&name, it).transpose())?;
        let Some(operation) = operation else {
            let names = Operation::NAMES.join(", ");
            return Err(invalid(format!("unknown operation '{name}': it is one of {names}")));
        };
        let mut request = Self::from(operation);
        match &request.operation {
            Operation::Read(_) => {
                request.encoding =
                    options_of(&name, beside, |it| ReadText::deserialize(it))?.encoding;
            }
            Operation::Write(_) => {
                let WriteText { content, encoding } =
                    options_of(&name, beside, |it| WriteText::deserialize(it))?;
                (request.content, request.encoding) = (Some(content), encoding);
            }
            _ => {}
        }
        Ok(request)
    }
}

impl<'de> Deserialize<'de> for OperationRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match strict::deserialize(deserializer)? {
            Value::Object(object) => Self::from_object(object).map_err(de::Error::custom),
            _ => Err(de::Error::custom("not a JSON object")),
        }
    }
}

/// The JSON of a result, as callers are given it.
///
/// # Errors
///
/// If it cannot be represented in JSON, which does not happen for results of operations.
pub fn result_json(result: &impl Serialize) -> Result<Box<RawValue>, serde_json::Error> {
    RawValue::from_string(names::published(serde_json::to_string(result)?))
}

/// A result of an operation, which is serialized as callers are given it.
#[derive(Debug, Clone)]
pub struct Published<T>(pub T);

impl<T: Serialize> Serialize for Published<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        result_json(&self.0).map_err(ser::Error::custom)?.serialize(serializer)
    }
}

impl<T: JsonSchema> JsonSchema for Published<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// Reads a result that was given to a caller.
///
/// # Errors
///
/// If it is not one.
pub fn read_result<T: DeserializeOwned>(json: &str) -> Result<T, serde_json::Error> {
    let mut result = serde_json::from_str(json)?;
    names::restore(&mut result);
    serde_json::from_value(result)
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
        let data = result_json(data)
            .map_err(|error| WireError::new(ErrorKind::Internal, error.to_string()))?;
        Ok(Self { data, bytes, items })
    }

    /// Its envelope, with the duration of the operation.
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
    pub fn failed(took: Duration, error: Failure) -> Self {
        let metadata = Metadata { duration_ms: millis(took), bytes: None, items: None };
        Self { success: false, data: None, error: Some(error), metadata }
    }

    /// The operation's result.
    ///
    /// # Errors
    ///
    /// Why it failed.
    pub fn into_result(self) -> Result<Box<RawValue>, Failure> {
        let no_result = || Failure::new(ErrorKind::Internal, "no result", None);
        match (self.data, self.error) {
            (Some(data), None) => Ok(data),
            (_, error) => Err(error.unwrap_or_else(no_result)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::WriteMode;
    use sandbox_protocol::WireString;

    fn refusal(json: &str) -> String {
        let error = OperationRequest::from_json(json).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        error.to_string()
    }

    #[test]
    fn part_of_a_file_is_a_hint_for_what_reads() {
        let hint = |json: &str| {
            let part = OperationRequest::from_json(json).unwrap().part_hint();
            let hint = crate::operation_hint(ErrorKind::TooLarge);
            Failure::new(ErrorKind::TooLarge, "", hint).with_hints(part, None).hint.unwrap()
        };
        let read = hint(r#"{"operation":"read","path":"a"}"#);
        assert!(read.starts_with("`offset` and `limit` read a part of a file; "), "{read}");
        let write = hint(r#"{"operation":"write","path":"a","content":"x"}"#);
        assert!(!write.contains("`offset`") && read.ends_with(&write), "{write}");
    }

    #[test]
    fn operation_without_an_encoding_gets_no_hint_about_one() {
        let hint = |json: &str| {
            let operation = OperationRequest::from_json(json).unwrap();
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
        let of = |json: &str| OperationRequest::from_json(json).unwrap();
        assert_eq!(
            of(r#"{"operation":"read","path":"a"}"#),
            Operation::from(Read::new("a")).into()
        );
        let write = of(r#"{"operation":"write","path":"a","content":""}"#);
        assert_eq!((write.content.as_deref(), write.encoding), (Some(""), None));
        let Operation::Write(write) = write.operation else { panic!("another one") };
        assert_eq!((write.mode, write.parents, write.atomic), (WriteMode::Overwrite, true, true));
        let edit = of(r#"{"operation":"edit","path":"a","old":"x","new":""}"#);
        assert_eq!(edit.operation, Edit::new("a", "x", "").into());
        let read = of(r#"{"operation":"read","path":"a","offset":3.0,"encoding":"hex"}"#);
        assert_eq!(read.encoding, Some(Encoding::Hex));
        assert_eq!(read.operation, Read { offset: 3, ..Read::new("a") }.into());
    }

    #[test]
    fn a_path_is_text_or_its_bytes() {
        let of = |json: &str| OperationRequest::from_json(json).unwrap().operation;
        let bytes = || WireString::new(b"a\xff");
        let stat = of(r#"{"operation":"stat","path":{"b64":"Yf8="}}"#);
        assert_eq!(stat, Stat::new(bytes()).into());
        let rename = of(r#"{"operation":"rename","from":{"b64":"Yf8="},"to":"b"}"#);
        assert_eq!(rename, Rename::new(bytes(), "b").into());
    }

    #[test]
    fn operation_errors_name_the_member() {
        let cases = [
            ("[]", "not a JSON object"),
            ("{", "not a JSON object"),
            (r#"{"path":"a"}"#, "missing field `operation`"),
            (r#"{"op":"read","path":"a"}"#, "unknown field `op`: the name of an operation is"),
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
            (r#"{"operation":"stat","path":{"b64":"!"}}"#, "stat: path"),
            (r#"{"operation":"stat","path":{"b64":"YQ==","b64":"YQ=="}}"#, "duplicate field `b64`"),
            (r#"{"operation":"stat","path":null}"#, "stat: path: invalid type"),
            (r#"{"operation":"stat","path":"a","path_b64":"YQ=="}"#, "unknown field `path_b64`"),
            (r#"{"operation":"stat","path":"a","encoding":"hex"}"#, "unknown field `encoding`"),
            (r#"{"operation":"read","path":"a","content":"x"}"#, "unknown field `content`"),
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
            r#"{"operation":"read","path":{"b64":"Yf8="},"encoding":"hex","offset":3}"#,
            r#"{"operation":"view","path":"a","lines":{"offset":2,"limit":null}}"#,
            r#"{"operation":"write","path":"a","content":"b","mode":"append","atomic":false}"#,
            r#"{"operation":"edit","path":"a","old":"b","new":"c","count":2}"#,
            r#"{"operation":"list"}"#,
            r#"{"operation":"remove","path":"a","recursive":true}"#,
            r#"{"operation":"rename","from":"a","to":"b","overwrite":true}"#,
        ] {
            let operation = OperationRequest::from_json(json).unwrap();
            let written = serde_json::to_string(&operation).unwrap();
            assert_eq!(
                serde_json::from_str::<OperationRequest>(&written).unwrap(),
                operation,
                "{json}"
            );
        }
        let error =
            serde_json::from_str::<OperationRequest>(r#"{"operation":"stat"}"#).unwrap_err();
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
