//! `sandbox_execute_script`: runs a script, and reports its log and files however it ended.

use std::sync::Arc;
use std::time::Duration;

use sandbox_api::{ErrorKind, ExecutionResult, LogEntry, Outcome, ResultBody, Script, TouchedFile};
use sandbox_controller::Error;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::args::Members;
use super::error::{ToolError, over_ceiling};
use super::metadata::Metadata;
use super::stop::{Stop, StopCause};
use super::tool::{Arguments, Context, Output, Tool, Work};
use crate::registry::{RegisteredSandbox, Registry, Scope, Ticket};

pub(super) struct ExecuteScript;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ExecuteScriptArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// The script, in Luau
    pub script: String,
    /// Milliseconds that it may take
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<u64>,
}

impl Arguments for ExecuteScriptArgs {
    fn decode(tool: &str, members: Members<'_>) -> Result<Self, ToolError> {
        members.decode(tool)
    }

    fn container_id(&self) -> &str {
        &self.container_id
    }
}

/// On failure its members are in the metadata.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExecuteScriptData {
    /// What the script returned; null where it returned nothing, or failed
    #[schemars(with = "Value")]
    pub result: Option<Box<RawValue>>,
    /// What it printed
    pub logs: Vec<String>,
    /// The files that it changed, in their final state
    #[schemars(schema_with = "touched_schema")]
    pub files_touched: Vec<TouchedFile>,
}

fn touched_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "description": "A file that a script changed",
            "properties": {
                "name": {
                    "type": "string",
                    "description": "Its path, relative to the mounted directory",
                },
                "name_b64": {
                    "type": ["string", "null"],
                    "description": "The name's bytes as base64, where they are not UTF-8",
                },
                "op": {
                    "type": "string",
                    "enum": ["write", "append", "remove"],
                    "description": "What became of it",
                },
                "bytes": {
                    "type": "integer",
                    "format": "uint64",
                    "minimum": 0,
                    "description": "Its size now",
                },
            },
            "required": ["name", "op", "bytes"],
            "additionalProperties": false,
        },
    })
}

impl Tool for ExecuteScript {
    const NAME: &'static str = "sandbox_execute_script";
    const DESCRIPTION: &'static str = "Run a Luau script. It reads and writes files with io.open, \
        and returns a value as JSON.";
    type Args = ExecuteScriptArgs;
    type Data = ExecuteScriptData;

    fn begin(
        args: ExecuteScriptArgs,
        context: &Context,
        stop: Stop,
    ) -> Result<Work<ExecuteScriptData>, ToolError> {
        let sandbox = context.registry.find(&args.container_id)?;
        let ticket = sandbox.enter(Scope::Script);
        Ok(Box::pin(run(context.registry.clone(), sandbox, args, ticket, stop)))
    }

    fn complete_error(mut error: ToolError) -> ToolError {
        if error.metadata.is_empty() {
            error.metadata = failure_metadata(ExecuteScriptData::default(), false, false);
        }
        error
    }
}

/// Runs a script, in the order of the calls. If it is stopped, the script is cancelled, and what it
/// had done up to then is reported.
async fn run(
    registry: Arc<Registry>,
    registered: Arc<RegisteredSandbox>,
    args: ExecuteScriptArgs,
    mut ticket: Ticket,
    mut stop: Stop,
) -> Result<Output<ExecuteScriptData>, ToolError> {
    let mut script = Script::new(args.script);
    if let Some(milliseconds) = args.timeout_ms {
        if milliseconds == 0 {
            return Err(ToolError::invalid("sandbox_execute_script: `timeoutMs`: it is 0"));
        }
        script = script.timeout(Duration::from_millis(milliseconds));
    }
    let ready = async {
        ticket.turn().await;
        registered.ready().await
    };
    let failed = |error| match error {
        Error::OverCeiling(over) => over_ceiling("timeoutMs", &over),
        error => registry.failure(&registered, error).into(),
    };
    let ended = stop.run(ready, script.into(), failed).await;
    // Calls that wait for this one see all its effects.
    drop(ticket);
    let (result, cause) = ended?;
    report(result, cause)
}

fn report(
    result: ExecutionResult,
    cause: Option<StopCause>,
) -> Result<Output<ExecuteScriptData>, ToolError> {
    let hint = hint(&result);
    let ExecutionResult { outcome, files_touched, notes, body, .. } = result;
    let (logs, logs_truncated) = match body {
        ResultBody::Script { logs, logs_truncated, .. } => (logs, logs_truncated),
        ResultBody::Command { .. } => (Vec::new(), false),
    };
    let files_touched_truncated = files_touched.truncated;
    let mut data = ExecuteScriptData {
        result: None,
        logs: logs.iter().map(|entry: &LogEntry| entry.line().into_owned()).collect(),
        files_touched: files_touched.files,
    };
    let failure = outcome.failure();
    if let Outcome::Ok { result } = outcome {
        data.result = Some(result);
        let mut output = Output::from(data);
        output.metadata.push("logsTruncated", logs_truncated);
        output.metadata.push("filesTouchedTruncated", files_touched_truncated);
        return Ok(output);
    }
    let mut metadata = failure_metadata(data, logs_truncated, files_touched_truncated);
    let error = match (outcome, cause, failure) {
        (Outcome::Cancelled { .. }, Some(cause), _) => cause.into(),
        (_, _, Some(failure)) => {
            metadata.push_some("notes", Some(notes).filter(|notes| !notes.is_empty()));
            metadata.push_some("line", failure.line);
            metadata.push_some("traceback", failure.traceback);
            metadata.push_some("value", failure.value);
            ToolError { hint, ..ToolError::new(failure.kind, failure.message) }
        }
        (_, _, None) => {
            let message = "internal error: unexpected outcome";
            ToolError::new(ErrorKind::Internal, message)
        }
    };
    Err(ToolError { metadata, ..error })
}

/// The metadata of every failed script.
fn failure_metadata(
    data: ExecuteScriptData,
    logs_truncated: bool,
    files_touched_truncated: bool,
) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.push("result", data.result);
    metadata.push("logs", data.logs);
    metadata.push("files_touched", data.files_touched);
    metadata.push("logsTruncated", logs_truncated);
    metadata.push("filesTouchedTruncated", files_touched_truncated);
    metadata
}

fn hint(result: &ExecutionResult) -> Option<String> {
    match result.outcome.failure()?.kind {
        ErrorKind::Timeout => Some("timeoutMs gives it more time".to_owned()),
        _ => result.hint(),
    }
}
