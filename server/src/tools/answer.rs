//! What a call gives back, and how it is written as JSON.

use std::time::Duration;

use sandbox_api::TouchedFile;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::data::Data;
use super::error::{CommandFailure, Partial, ScriptFailure, ToolError};

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
    /// Of a command.
    pub command: Option<CommandRemarks>,
}

/// What there is to say of a command beside its output and its exit code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandRemarks {
    /// What of its stdout is here.
    pub stdout: Extent,
    /// What of its stderr is here.
    pub stderr: Extent,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The files that it changed, in their final state.
    pub files_touched: Vec<TouchedFile>,
    /// Files are left out.
    pub files_touched_truncated: bool,
}

/// What of an output is in a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extent {
    /// Only the beginning.
    pub truncated: bool,
    /// It was not UTF-8, and the text has U+FFFD in places.
    pub lossy: bool,
}

impl CommandRemarks {
    fn serialize_entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        if let Some(signal) = self.signal {
            map.serialize_entry("signal", &signal)?;
        }
        map.serialize_entry("stdoutTruncated", &self.stdout.truncated)?;
        map.serialize_entry("stderrTruncated", &self.stderr.truncated)?;
        map.serialize_entry("stdoutLossy", &self.stdout.lossy)?;
        map.serialize_entry("stderrLossy", &self.stderr.lossy)?;
        map.serialize_entry("files_touched", &self.files_touched)?;
        map.serialize_entry("filesTouchedTruncated", &self.files_touched_truncated)
    }
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
                map.serialize_entry("metadata", &Metadata(self.answer))?;
            }
            Err(error) => {
                map.serialize_entry("error", &error.message)?;
                map.serialize_entry("metadata", &FailureMetadata(error))?;
            }
        }
        map.end()
    }
}

struct Metadata<'a>(&'a Answer);

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Answer { remarks, took, .. } = self.0;
        let Remarks { truncated, logs_truncated, files_touched_truncated, reason, command } =
            remarks;
        let mut map = serializer.serialize_map(None)?;
        let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        map.serialize_entry("durationMs", &milliseconds)?;
        for (key, value) in [
            ("truncated", truncated),
            ("logsTruncated", logs_truncated),
            ("filesTouchedTruncated", files_touched_truncated),
        ] {
            if let Some(value) = value {
                map.serialize_entry(key, value)?;
            }
        }
        if let Some(reason) = reason {
            map.serialize_entry("reason", reason)?;
        }
        if let Some(command) = command {
            command.serialize_entries(&mut map)?;
        }
        map.end()
    }
}

struct FailureMetadata<'a>(&'a ToolError);

impl Serialize for FailureMetadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ToolError { kind, message: _, retryable, hint, partial } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", kind)?;
        map.serialize_entry("retryable", retryable)?;
        if let Some(hint) = hint {
            map.serialize_entry("hint", hint)?;
        }
        match partial.as_deref() {
            Some(Partial::Script(script)) => {
                let ScriptFailure {
                    data,
                    logs_truncated,
                    files_touched_truncated,
                    line,
                    traceback,
                } = script;
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
            Some(Partial::Command(CommandFailure { stdout, stderr, remarks })) => {
                map.serialize_entry("stdout", stdout)?;
                map.serialize_entry("stderr", stderr)?;
                remarks.serialize_entries(&mut map)?;
            }
            None => {}
        }
        map.end()
    }
}
