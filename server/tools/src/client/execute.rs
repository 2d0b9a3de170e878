//! `sandbox_execute`: a script or a command as the API has them, with its events.

use std::borrow::Cow;

use sandbox_api::service::{ExecutionRequest, Time};
use sandbox_api::{Bounds, ByteSize, EventRecord, ExecutionDocument, Workload, WorkloadError};
use sandbox_controller::Error;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{ToolError, over_ceiling};
use crate::exchange::{CallMessage, Exchange};
use crate::registry::Scope;
use crate::stop::Stop;
use crate::tool::{Context, Tool, Work as CallWork, arguments};

/// The longest stdin of a command: what a line can have.
const MAX_STDIN: ByteSize = ByteSize::b(48 << 20);

pub(crate) struct Execute;

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ExecuteArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// What runs, as of POST /v1/sandboxes/{id}/executions
    pub request: ExecutionRequest,
}

arguments!(ExecuteArgs);

/// The result document.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct ExecuteData(Box<RawValue>);

impl JsonSchema for ExecuteData {
    fn schema_name() -> Cow<'static, str> {
        ExecutionDocument::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        ExecutionDocument::json_schema(generator)
    }
}

impl From<WorkloadError> for ToolError {
    fn from(error: WorkloadError) -> Self {
        let message = format!("sandbox_execute: `request.{}`: {}", error.field, error.problem);
        Self { hint: error.hint, ..Self::new(error.kind, message) }
    }
}

impl Tool for Execute {
    const NAME: &'static str = "sandbox_execute";
    const DESCRIPTION: &'static str = "Run a script or a command of the API, and give its result \
        document, whatever its status.";
    type Args = ExecuteArgs;
    type Data = ExecuteData;

    fn begin(
        args: ExecuteArgs,
        context: &Context,
        stop: Stop,
        exchange: Exchange,
    ) -> Result<CallWork<ExecuteData>, ToolError> {
        let mut lease = context.registry.find(&args.container_id)?.enter(Scope::Concurrent);
        let Bounds { limits: of_sandbox, ceiling } = *lease.bounds();
        let mut limits = of_sandbox;
        args.request.limits.apply(&mut limits).map_err(|(name, error)| {
            ToolError::invalid(format!("sandbox_execute: `request.limits.{name}`: {error}"))
        })?;
        limits.check(&ceiling).map_err(|over| over_ceiling("request.limits", &over))?;
        let workload = Workload::in_sandbox(args.request, &limits, &of_sandbox, MAX_STDIN)?;
        Ok(Box::pin(async move {
            let sandbox = tokio::select! {
                biased;
                sandbox = lease.ready() => sandbox?,
                cause = stop.stopped() => return Err(cause.into()),
            };
            let kind = workload.kind();
            let ran = async {
                let mut execution = sandbox.start(workload, stop.cancel.clone()).await?;
                let mut seq = 0;
                while let Some(event) = execution.next().await {
                    seq += 1;
                    if exchange.wants_events() {
                        let (time, event) = (Time::now(), event.into());
                        let record = EventRecord { seq, time, name: None, event };
                        exchange.send(CallMessage::Event(Box::new(record))).await;
                    }
                }
                execution.wait().await
            };
            // What it had done when it is stopped is in its document, as is why it ended.
            let document = match ran.await {
                Ok(result) => {
                    let mut document = ExecutionDocument::from(&result);
                    document.common.io_dir = None;
                    document.to_json()
                }
                Err(error @ Error::Cancelled) => {
                    let exit_code = error.exit_code();
                    ExecutionDocument::failed(kind, (&error).into(), exit_code).to_json()
                }
                Err(error) => return Err(lease.failure(error)),
            };
            let document = document
                .and_then(RawValue::from_string)
                .map_err(|error| ToolError::invalid(format!("the result: {error}")))?;
            Ok(ExecuteData(document).into())
        }))
    }
}
