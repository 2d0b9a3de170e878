//! The answer to a call, and its JSON form.

use std::time::Duration;

use sandbox_api::{ErrorKind, millis};
use serde::Serialize;
use serde_json::Value;

use super::error::ToolError;
use super::metadata::{Json, Metadata};
use super::tool::Output;

/// The answer to a call.
pub struct ToolResponse {
    pub(super) outcome: Result<Output<Json>, ToolError>,
    /// The duration of the call.
    pub(super) took: Duration,
}

impl ToolResponse {
    /// The answer to a call that was refused immediately.
    #[must_use]
    pub fn refused(error: ToolError) -> Self {
        Self { outcome: Err(error), took: Duration::ZERO }
    }

    /// The kind of the error, also if it is returned as data.
    #[must_use]
    pub fn failure(&self) -> Option<ErrorKind> {
        self.outcome.as_ref().map_or_else(|error| Some(error.kind), |output| output.failure)
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
            Ok(Output { data, metadata, .. }) => {
                let metadata = DataMetadata { duration_ms: millis(self.took), others: metadata };
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
