//! `sandbox_execute`: a script or a command as the API has them, with its events.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt as _;
use sandbox_api::service::{EventBody, ExecutionEvent, ExecutionRequest, Time};
use sandbox_api::{Bounds, ByteSize, ExecDocument, ResultDocument};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::super::args::Members;
use super::super::error::{ToolError, over_ceiling};
use super::super::exchange::{CallMessage, Exchange};
use super::super::stop::Stop;
use super::super::tool::{Arguments, Context, Tool, Work as CallWork};
use super::sandbox_ref::SandboxRef;
use crate::execution::{self, Cancel, DocumentContext, RequestError, Work};

/// The longest stdin of a command: what a line can have.
const MAX_STDIN: ByteSize = ByteSize::b(48 << 20);

pub(in crate::tools) struct Execute;

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::tools) struct ExecuteArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// What runs, as of POST /v1/sandboxes/{id}/executions
    pub request: ExecutionRequest,
}

impl Arguments for ExecuteArgs {
    fn decode(tool: &str, members: Members<'_>) -> Result<Self, ToolError> {
        members.decode(tool)
    }

    fn container_id(&self) -> &str {
        &self.container_id
    }
}

/// The result document.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(in crate::tools) struct ExecuteData(Box<RawValue>);

impl JsonSchema for ExecuteData {
    fn schema_name() -> Cow<'static, str> {
        "ExecutionDocument".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let script = generator.subschema_for::<ResultDocument<'_>>();
        let command = generator.subschema_for::<ExecDocument<'_>>();
        json_schema!({ "type": "object", "anyOf": [script, command] })
    }
}

impl From<RequestError> for ToolError {
    fn from(error: RequestError) -> Self {
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
    ) -> Result<CallWork<ExecuteData>, ToolError> {
        Self::begin_with(args, context, stop, Exchange::closed())
    }

    fn begin_with(
        args: ExecuteArgs,
        context: &Context,
        mut stop: Stop,
        exchange: Exchange,
    ) -> Result<CallWork<ExecuteData>, ToolError> {
        let place = SandboxRef::find(context, &args.container_id)?;
        let Bounds { limits: of_sandbox, ceiling } = *place.registered.bounds();
        let mut limits = of_sandbox;
        args.request.limits.apply(&mut limits).map_err(|(name, error)| {
            ToolError::invalid(format!("sandbox_execute: `request.limits.{name}`: {error}"))
        })?;
        limits.check(&ceiling).map_err(|over| over_ceiling("request.limits", &over))?;
        let work = Work::in_sandbox(args.request, &limits, &of_sandbox, MAX_STDIN)?;
        Ok(Box::pin(async move {
            let sandbox = tokio::select! {
                biased;
                sandbox = place.ready() => sandbox?,
                cause = stop.stopped() => return Err(cause.into()),
            };
            let (cancel, cancelled) = watch::channel(Cancel::No);
            let seq = AtomicU64::new(1);
            let say = |body: EventBody| {
                let exchange = &exchange;
                let seq = seq.fetch_add(1, Ordering::Relaxed);
                async move {
                    if exchange.wants_events() {
                        let event = ExecutionEvent { seq, time: Time::now(), name: None, body };
                        exchange.send(CallMessage::Event(Box::new(event))).await;
                    }
                }
                .boxed()
            };
            say(EventBody::Start).await;
            let ran = execution::run(&sandbox, work, DocumentContext::default(), cancelled, &say);
            tokio::pin!(ran);
            let ran = tokio::select! {
                biased;
                ran = &mut ran => ran,
                // What it had done until then is in its document, as is why it ended.
                _ = stop.stopped() => {
                    cancel.send_replace(Cancel::Asked);
                    ran.await
                }
            };
            let document = ran.map_err(|error| place.failure(error))?.document;
            let document = RawValue::from_string(document)
                .map_err(|error| ToolError::invalid(format!("the result: {error}")))?;
            Ok(ExecuteData(document).into())
        }))
    }
}
