//! `sandbox_execute_script`: runs a script, and reports its log and files however it ended.

use std::time::Duration;

use sandbox_api::{ExecutionResult, HostTool, LogEntry, Outcome, ResultBody, Script, TouchedFile};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::ToolError;
use super::metadata::Metadata;
use super::stop::Stop;
use super::tool::{Context, Output, Tool, Work, arguments};
use crate::registry::Scope;

/// The argument of a script's timeout.
const TIMEOUT: &str = "timeoutMs";

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
    /// Functions of the caller that it may call as tools.GROUP.NAME: with `tools --stdio`, each call is a
    /// line that the caller answers
    #[serde(default)]
    pub tools: Option<Vec<HostTool>>,
}

arguments!(ExecuteScriptArgs);

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
        mut args: ExecuteScriptArgs,
        context: &Context,
        stop: Stop,
    ) -> Result<Work<ExecuteScriptData>, ToolError> {
        let tools = args.tools.take();
        let tools = tools.map(|tools| context.callbacks.grant(Self::NAME, tools)).transpose()?;
        let lease = context.registry.find(&args.container_id)?.enter(Scope::Script);
        Ok(Box::pin(async move {
            let result = stop.run(lease, script(args)?.into(), tools, TIMEOUT).await?;
            report(result, &stop)
        }))
    }

    fn complete_error(mut error: ToolError) -> ToolError {
        if error.metadata.is_empty() {
            error.metadata = failure_metadata(ExecuteScriptData::default(), false, false);
        }
        error
    }
}

/// Converts the arguments to a script.
fn script(args: ExecuteScriptArgs) -> Result<Script, ToolError> {
    let script = Script::new(args.script);
    match args.timeout_ms {
        None => Ok(script),
        Some(0) => Err(ToolError::invalid("sandbox_execute_script: `timeoutMs`: it is 0")),
        Some(milliseconds) => Ok(script.timeout(Duration::from_millis(milliseconds))),
    }
}

fn report(result: ExecutionResult, stop: &Stop) -> Result<Output<ExecuteScriptData>, ToolError> {
    let error = stop.error(&result, TIMEOUT);
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
    let is_cancelled = matches!(outcome, Outcome::Cancelled { .. });
    if let Outcome::Ok { result } = outcome {
        data.result = Some(result);
        let mut output = Output::from(data);
        output.metadata.push("logsTruncated", logs_truncated);
        output.metadata.push("filesTouchedTruncated", files_touched_truncated);
        return Ok(output);
    }
    let mut metadata = failure_metadata(data, logs_truncated, files_touched_truncated);
    let is_stopped = is_cancelled && stop.cause().is_some();
    if let Some(failure) = failure.filter(|_| !is_stopped) {
        metadata.push_some("notes", Some(notes).filter(|notes| !notes.is_empty()));
        metadata.push_some("line", failure.line);
        metadata.push_some("traceback", failure.traceback);
        metadata.push_some("value", failure.value);
    }
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
