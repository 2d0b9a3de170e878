//! What a call gives back, and how it is written as JSON.

use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::data::Data;
use super::error::{ScriptFailure, ToolError};

/// What a call gives back.
#[derive(Debug)]
pub struct Answer {
    /// The data, or why there is none.
    pub outcome: Result<Data, ToolError>,
    /// What else there is to say of data.
    pub remarks: Remarks,
    /// How long the call took.
    pub took: Duration,
    /// Its share of what may be in memory, until it has been given away.
    pub(super) _held: Option<OwnedSemaphorePermit>,
}

/// What else there is to say of data.
#[derive(Debug, Clone, Default)]
pub struct Remarks {
    /// Of a list: there is more.
    pub truncated: Option<bool>,
    /// Of a script: something of the log is left out.
    pub logs_truncated: Option<bool>,
    /// Of a script: files are left out.
    pub files_touched_truncated: Option<bool>,
    /// Why data is not what was asked for: a container that could not be removed.
    pub reason: Option<String>,
}

impl Answer {
    /// The answer to a call that was refused at once.
    #[must_use]
    pub fn refused(error: ToolError) -> Self {
        Self { outcome: Err(error), remarks: Remarks::default(), took: Duration::ZERO, _held: None }
    }

    /// The answer as a JSON object: `type`, `data` and `metadata`, or `error` and `metadata`.
    #[must_use]
    pub const fn document(&self) -> Document<'_> {
        Document { id: None, answer: self }
    }

    /// The same with the id of its call first; a line that has none is answered with null.
    #[must_use]
    pub const fn document_with_id<'a>(&'a self, id: &'a Value) -> Document<'a> {
        Document { id: Some(id), answer: self }
    }
}

/// An [`Answer`] as JSON.
#[derive(Debug)]
pub struct Document<'a> {
    id: Option<&'a Value>,
    answer: &'a Answer,
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
                let Remarks { truncated, logs_truncated, files_touched_truncated, reason } =
                    &self.answer.remarks;
                let metadata = Metadata {
                    duration_ms: u64::try_from(self.answer.took.as_millis()).unwrap_or(u64::MAX),
                    truncated: *truncated,
                    logs_truncated: *logs_truncated,
                    files_touched_truncated: *files_touched_truncated,
                    reason: reason.as_deref(),
                };
                map.serialize_entry("metadata", &metadata)?;
            }
            Err(error) => {
                map.serialize_entry("error", &error.message)?;
                map.serialize_entry("metadata", &FailureMetadata(error))?;
            }
        }
        map.end()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logs_truncated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files_touched_truncated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

struct FailureMetadata<'a>(&'a ToolError);

impl Serialize for FailureMetadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ToolError { kind, message: _, retryable, hint, script } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", kind)?;
        map.serialize_entry("retryable", retryable)?;
        if let Some(hint) = hint {
            map.serialize_entry("hint", hint)?;
        }
        if let Some(script) = script {
            let ScriptFailure { data, logs_truncated, files_touched_truncated, line, traceback } =
                &**script;
            map.serialize_entry("result", &data.result)?;
            map.serialize_entry("logs", &data.logs)?;
            map.serialize_entry("files_touched", &data.files_touched)?;
            map.serialize_entry("logsTruncated", logs_truncated)?;
            map.serialize_entry("filesTouchedTruncated", files_touched_truncated)?;
            if let Some(line) = line {
                map.serialize_entry("line", line)?;
            }
            if let Some(traceback) = traceback {
                map.serialize_entry("traceback", traceback)?;
            }
        }
        map.end()
    }
}
