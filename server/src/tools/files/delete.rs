//! `sandbox_delete`.

use sandbox_api::files::RemoveOptions;
use sandbox_controller::{Error, Sandbox};
use sandbox_protocol::Base64;
use schemars::JsonSchema;
use serde::Serialize;

use super::operation::{FileArguments, FileTool, OperationOutput, file_arguments};

pub(in crate::tools) struct Delete;

file_arguments! {
    DeleteArgs,
    "The file or directory, absolute or relative to the mounted directory",
    /// Delete a directory with all that is in it
    #[serde(default)]
    recursive: bool,
    /// Take it as done where nothing is there
    #[serde(default)]
    force: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::tools) struct DeleteData {
    /// The path, absolute
    path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    path_b64: Option<Base64>,
    /// Nothing is there now; with force also where nothing was there before
    deleted: bool,
}

impl FileTool for Delete {
    const NAME: &'static str = "sandbox_delete";
    const DESCRIPTION: &'static str = "Delete a file or a directory.";
    const OPERATION: &'static str = "delete";
    const CHANGES_FILES: bool = true;
    type Args = DeleteArgs;
    type Data = DeleteData;

    async fn perform(
        sandbox: &Sandbox,
        args: DeleteArgs,
    ) -> Result<OperationOutput<DeleteData>, Error> {
        let options = RemoveOptions { recursive: args.recursive, force: args.force };
        let removed = sandbox.remove(args.path(), options).await?;
        let (path, path_b64) = (removed.path, removed.path_b64);
        // Like `rm -f`; a path that does not exist is an error without force.
        let data = DeleteData { path, path_b64, deleted: true };
        Ok(OperationOutput { items: Some(removed.entries), ..data.into() })
    }
}
