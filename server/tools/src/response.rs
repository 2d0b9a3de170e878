//! The answer to a call, and its JSON form.

use std::time::Duration;

use sandbox_api::{ErrorKind, millis};
use serde::Serialize;
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
    pub fn document(&self) -> Document<'_> {
        let answer = match &self.outcome {
            Ok(data) => {
                let metadata =
                    DataMetadata { duration_ms: millis(self.took), others: &self.metadata };
                Answer::Data { r#type: "text", data, metadata }
            }
            Err(error) => Answer::Error { error: &error.message, metadata: error },
        };
        Document { id: None, answer }
    }

    /// The same with the id of its call first; null for a line without one.
    #[must_use]
    pub fn document_with_id<'a>(&'a self, id: &'a Value) -> Document<'a> {
        Document { id: Some(id), ..self.document() }
    }
}

/// A [`ToolResponse`] as JSON.
#[derive(Serialize)]
pub struct Document<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a Value>,
    #[serde(flatten)]
    answer: Answer<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Answer<'a> {
    Data { r#type: &'static str, data: &'a Json, metadata: DataMetadata<'a> },
    Error { error: &'a str, metadata: &'a ToolError },
}

#[derive(Serialize)]
struct DataMetadata<'a> {
    #[serde(rename = "durationMs")]
    duration_ms: u64,
    #[serde(flatten)]
    others: &'a Metadata,
}
