//! The answer to a call, and its JSON form.

use std::time::Duration;

use sandbox_api::ErrorKind;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::error::ToolError;
use super::metadata::{Json, Metadata};

/// The answer to a call.
pub struct ToolResponse {
    pub(super) outcome: Result<Json, ToolError>,
    /// Further metadata.
    pub(super) metadata: Metadata,
    /// The error, if the tool returns a failure as data.
    pub(super) failure: Option<ErrorKind>,
    /// The duration of the call.
    pub(super) took: Duration,
    /// Its share of the memory for pending answers, held until it is written.
    pub(super) _held: Option<OwnedSemaphorePermit>,
}

impl ToolResponse {
    /// The answer to a call that was refused immediately.
    #[must_use]
    pub fn refused(error: ToolError) -> Self {
        Self {
            outcome: Err(error),
            metadata: Metadata::default(),
            failure: None,
            took: Duration::ZERO,
            _held: None,
        }
    }

    /// The kind of the error, also if it is returned as data.
    #[must_use]
    pub fn failure(&self) -> Option<ErrorKind> {
        self.outcome.as_ref().err().map(|error| error.kind).or(self.failure)
    }

    /// Whether the call returned data.
    #[must_use]
    pub const fn is_ok(&self) -> bool {
        self.outcome.is_ok()
    }

    /// The answer as a JSON object: `type`, `data` and `metadata`, or `error` and `metadata`.
    #[must_use]
    pub const fn document(&self) -> Document<'_> {
        Document { id: None, answer: self }
    }

    /// The same with the id of its call first; null for a line without one.
    #[must_use]
    pub const fn document_with_id<'a>(&'a self, id: &'a Value) -> Document<'a> {
        Document { id: Some(id), answer: self }
    }
}

/// A [`ToolResponse`] as JSON.
pub struct Document<'a> {
    id: Option<&'a Value>,
    answer: &'a ToolResponse,
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(id) = self.id {
            map.serialize_entry("id", id)?;
        }
        match &self.answer.outcome {
            Ok(data) => {
                map.serialize_entry("type", "text")?;
                map.serialize_entry("data", data)?;
                map.serialize_entry("metadata", &DataMetadata(self.answer))?;
            }
            Err(error) => {
                map.serialize_entry("error", &error.message)?;
                map.serialize_entry("metadata", &ErrorMetadata(error))?;
            }
        }
        map.end()
    }
}

struct DataMetadata<'a>(&'a ToolResponse);

impl Serialize for DataMetadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ToolResponse { metadata, took, .. } = self.0;
        let mut map = serializer.serialize_map(None)?;
        let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        map.serialize_entry("durationMs", &milliseconds)?;
        metadata.serialize_members(&mut map)?;
        map.end()
    }
}

struct ErrorMetadata<'a>(&'a ToolError);

impl Serialize for ErrorMetadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ToolError { kind, message: _, retryable, hint, metadata } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", kind)?;
        map.serialize_entry("retryable", retryable)?;
        if let Some(hint) = hint {
            map.serialize_entry("hint", hint)?;
        }
        metadata.serialize_members(&mut map)?;
        map.end()
    }
}
