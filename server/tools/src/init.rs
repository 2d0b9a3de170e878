//! `sandbox_init`.

use sandbox_api::LimitsRequest;
use sandbox_api::hosts::AllowRule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ToolError;
use super::stop::Stop;
use super::tool::{Context, Tool, Work, arguments};
use crate::registry::SandboxRequest;

pub(super) struct Init;

pub(super) fn workspace() -> String {
    "workspace".to_owned()
}

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct InitArgs {
    /// Your name for the sandbox, which the other tools take
    pub container_id: String,
    /// The engine's image that programs run in; without one the sandbox has scripts and files
    #[serde(default)]
    pub image_name: Option<String>,
    /// A name to show for the container
    #[serde(default)]
    pub container_name: Option<String>,
    /// The host's directory that the sandbox sees; it is made if it is missing. Without one the
    /// sandbox has a private directory, which ends with it
    #[serde(default)]
    pub project_out_path: Option<String>,
    /// Where it appears in the sandbox, from the root
    #[serde(default = "workspace")]
    pub root_path: String,
    /// The limits that differ from the usual ones
    #[serde(default)]
    pub limits: LimitsRequest,
    /// The hosts that commands may reach, as HOST[:PORT], if they are others than the usual ones
    #[serde(default)]
    pub allow: Option<Vec<String>>,
}

arguments!(InitArgs);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct InitData {
    /// As it was given
    pub container_id: String,
    /// The sandbox's id, which `sandboxctl ps` lists
    pub sandbox_id: String,
    /// The engine's id of the container
    pub docker_id: String,
    /// Where its directory appears in it
    pub mount_path: String,
}

impl Tool for Init {
    const NAME: &'static str = "sandbox_init";
    const DESCRIPTION: &'static str = "Make a sandbox that sees one directory of the host, and \
        keep it by a name. With the same arguments it returns the same sandbox.";
    type Args = InitArgs;
    type Data = InitData;

    fn begin(args: InitArgs, context: &Context, stop: Stop) -> Result<Work<InitData>, ToolError> {
        let container_id = args.container_id.clone();
        let limits = match args.limits == LimitsRequest::default() {
            true => None,
            false => {
                let mut limits = context.registry.bounds(args.image_name.as_deref()).limits;
                args.limits.apply(&mut limits).map_err(|(name, error)| {
                    ToolError::invalid(format!("sandbox_init: `limits.{name}`: {error}"))
                })?;
                Some(limits)
            }
        };
        let rule = |rule: &String| {
            let invalid = |error| ToolError::invalid(format!("sandbox_init: `allow`: {error}"));
            rule.parse::<AllowRule>().map_err(invalid)
        };
        let hosts =
            args.allow.as_ref().map(|rules| rules.iter().map(rule).collect()).transpose()?;
        let launch = context.registry.launch(SandboxRequest {
            handle: args.container_id,
            image: args.image_name,
            container_name: args.container_name,
            host_dir: args.project_out_path,
            mount_path: args.root_path,
            limits,
            hosts,
        })?;
        let mount_path = launch.mount_path();
        Ok(stop.or(async move {
            let sandbox = launch.ready().await?;
            let (sandbox_id, docker_id) = (sandbox.id(), sandbox.container_id());
            let (sandbox_id, docker_id) = (sandbox_id.to_owned(), docker_id.to_owned());
            Ok(InitData { container_id, sandbox_id, docker_id, mount_path }.into())
        }))
    }
}
