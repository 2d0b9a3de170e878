//! `sandbox_exists`.

use sandbox_controller::{Error, Sandbox};
use sandbox_protocol::Base64;
use schemars::JsonSchema;
use serde::Serialize;

use super::operation::{EntryType, FileArguments, FileTool, OperationOutput, file_arguments};

pub(in crate::tools) struct Exists;

file_arguments! {
    ExistsArgs,
    "The path, absolute or relative to the mounted directory",
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::tools) struct ExistsData {
    /// The path, absolute
    path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    path_b64: Option<Base64>,
    /// Something is there
    exists: bool,
    /// What it is; null where nothing is there
    r#type: Option<EntryType>,
}

impl FileTool for Exists {
    const NAME: &'static str = "sandbox_exists";
    const DESCRIPTION: &'static str = "Say whether something is at a path, and what it is.";
    const OPERATION: &'static str = "exists";
    const CHANGES_FILES: bool = false;
    type Args = ExistsArgs;
    type Data = ExistsData;

    async fn perform(
        sandbox: &Sandbox,
        args: ExistsArgs,
    ) -> Result<OperationOutput<ExistsData>, Error> {
        let found = sandbox.exists(args.path()).await?;
        Ok(ExistsData {
            path: found.path,
            path_b64: found.path_b64,
            exists: found.exists,
            r#type: found.kind.map(EntryType::from),
        }
        .into())
    }
}
