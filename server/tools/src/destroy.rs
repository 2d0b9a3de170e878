//! `sandbox_destroy`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::args::yes;
use super::error::ToolError;
use super::stop::Stop;
use super::tool::{Context, Output, Tool, Work, arguments};

pub(super) struct Destroy;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DestroyArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// A container that has ended holds nothing, so it is removed either way
    #[serde(default = "yes")]
    pub remove_container: bool,
}

arguments!(DestroyArgs);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DestroyData {
    /// As it was given
    pub container_id: String,
    /// The container is gone
    pub removed: bool,
}

impl Tool for Destroy {
    const NAME: &'static str = "sandbox_destroy";
    const DESCRIPTION: &'static str =
        "End a sandbox and remove its container. Its files stay on the host.";
    type Args = DestroyArgs;
    type Data = DestroyData;

    fn begin(
        args: DestroyArgs,
        context: &Context,
        stop: Stop,
    ) -> Result<Work<DestroyData>, ToolError> {
        let container_id = args.container_id;
        let removal = context.registry.remove(&container_id)?;
        Ok(stop.or(async move {
            let reason = removal.finished().await?;
            let removed = reason.is_none();
            let mut output = Output::from(DestroyData { container_id, removed });
            // Why the container is still there.
            output.metadata.push_some("reason", reason);
            Ok(output)
        }))
    }
}
