//! `sandbox_filesystem`: any operation, with an envelope that reports whether it succeeded.

use std::borrow::Cow;

use sandbox_api::{ErrorKind, strict};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Value, json};

use super::entry::{Entry, FilesystemArgs};
use super::operation::{OperationError, OperationOutput};
use super::table::OPERATIONS;
use crate::args::Members;
use crate::error::ToolError;
use crate::metadata::Json;
use crate::stop::Stop;
use crate::tool::{Arguments, Context, Output, Tool, Work};

pub(crate) struct Filesystem;

impl Arguments for FilesystemArgs {
    fn decode(tool: &str, mut members: Members<'_>) -> Result<Self, ToolError> {
        let wrong = |what: &str| ToolError::invalid(format!("{tool}: `operation`: {what}"));
        let value = members.take(tool, "operation")?;
        let operation: String =
            strict::from_slice(value.get().as_bytes()).map_err(|mistake| wrong(&mistake.what()))?;
        match OPERATIONS.iter().find(|entry| entry.operation == operation) {
            Some(entry) => (entry.decode)(members),
            None => {
                let known = OPERATIONS.iter().map(|entry| format!("`{}`", entry.operation));
                let known = known.collect::<Vec<_>>().join(", ");
                Err(wrong(&format!("unknown variant `{operation}`, expected one of {known}")))
            }
        }
    }

    fn container_id(&self) -> &str {
        &self.container_id
    }
}

impl JsonSchema for FilesystemArgs {
    fn schema_name() -> Cow<'static, str> {
        "FilesystemArgs".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let operations: Vec<Value> = OPERATIONS.iter().map(Entry::input_schema).collect();
        json_schema!({ "type": "object", "oneOf": operations })
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct FilesystemData {
    /// Whether it was done
    success: bool,
    /// What the operation's own tool gives
    #[schemars(schema_with = "data_schema")]
    data: Option<Json>,
    /// What went wrong
    error: Option<String>,
    metadata: FilesystemMetadata,
}

fn data_schema(_: &mut SchemaGenerator) -> Schema {
    let failed = json!({ "type": "null", "description": "The operation failed" });
    let data: Vec<Value> = OPERATIONS.iter().map(Entry::output_schema).chain([failed]).collect();
    json_schema!({ "anyOf": data })
}

#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, deny_unknown_fields)]
struct FilesystemMetadata {
    /// Bytes that a write wrote
    #[schemars(schema_with = "count_schema")]
    bytes_written: Option<u64>,
    /// Entries that were listed or deleted
    #[schemars(schema_with = "count_schema")]
    items_count: Option<u64>,
    /// Of a list: there is more
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    truncated: Option<bool>,
    /// Of a list: what it leaves out, and why
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    note: Option<String>,
    /// Of a failure: what went wrong, in one word
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    kind: Option<ErrorKind>,
    /// Of a failure: the same call may succeed if it is made again
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    retryable: Option<bool>,
    /// Of a failure: the next step
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    hint: Option<String>,
}

fn count_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["integer", "null"] })
}

impl Tool for Filesystem {
    const NAME: &'static str = "sandbox_filesystem";
    const DESCRIPTION: &'static str = "One operation on files: what the operation's own tool \
        does, in an envelope that says whether it was done.";
    type Args = FilesystemArgs;
    type Data = FilesystemData;

    fn is_read_only(args: &FilesystemArgs) -> bool {
        args.is_read_only
    }

    fn begin(
        args: FilesystemArgs,
        context: &Context,
        stop: Stop,
    ) -> Result<Work<FilesystemData>, ToolError> {
        let work = args.operation.begin(context)?;
        Ok(stop.or(async move { render(work.await) }))
    }
}

/// The envelope. A failed operation is returned as data.
fn render(
    outcome: Result<OperationOutput<Json>, OperationError>,
) -> Result<Output<FilesystemData>, ToolError> {
    match outcome {
        Ok(OperationOutput { data, truncated, note, bytes_written, items: items_count, held }) => {
            let metadata = FilesystemMetadata {
                bytes_written,
                items_count,
                truncated,
                note,
                ..FilesystemMetadata::default()
            };
            let data = FilesystemData { success: true, data: Some(data), error: None, metadata };
            Ok(Output { held, ..data.into() })
        }
        Err(OperationError::Sandbox(error)) => Err(error),
        Err(OperationError::Operation(error)) => {
            let failure = Some(error.kind);
            let metadata = FilesystemMetadata {
                kind: failure,
                retryable: Some(error.retryable),
                hint: error.hint,
                ..FilesystemMetadata::default()
            };
            let error = Some(error.message);
            let data = FilesystemData { success: false, data: None, error, metadata };
            Ok(Output { failure, ..data.into() })
        }
    }
}
