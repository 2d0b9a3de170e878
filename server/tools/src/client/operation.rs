//! `sandbox_operation`: a file operation as the API has it.

use sandbox_api::operation::{Envelope, OperationRequest};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::error::ToolError;
use crate::exchange::Exchange;
use crate::registry::Scope;
use crate::stop::Stop;
use crate::tool::{Context, Tool, Work, arguments};

pub(crate) struct Operate;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OperateArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// The operation, as of POST /v1/sandboxes/{id}/operations
    pub operation: OperationRequest,
}

arguments!(OperateArgs);

impl Tool for Operate {
    const NAME: &'static str = "sandbox_operation";
    const DESCRIPTION: &'static str = "Perform a file operation of the API. An operation that \
        fails is an envelope too.";
    type Args = OperateArgs;
    type Data = Envelope;

    fn begin(
        args: OperateArgs,
        context: &Context,
        stop: Stop,
        _exchange: Exchange,
    ) -> Result<Work<Envelope>, ToolError> {
        let mut lease = context.registry.find(&args.container_id)?.enter(Scope::Concurrent);
        Ok(stop.or(async move {
            let sandbox = lease.ready().await?;
            let envelope = sandbox.perform(args.operation).await;
            match sandbox.ended() {
                // Not the file's failure but the sandbox's.
                Some(error) if !envelope.success => Err(lease.failure(error)),
                _ => Ok(envelope.into()),
            }
        }))
    }
}
