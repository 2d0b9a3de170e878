//! `sandbox_create_directory`.

use sandbox_api::files::MkdirOptions;
use sandbox_controller::{Error, Sandbox};
use sandbox_protocol::Base64;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::args::yes;
use super::operation::{FileArguments, FileTool, OperationOutput, file_arguments};

pub(in crate::tools) struct CreateDirectory;

file_arguments! {
    CreateDirectoryArgs,
    "The directory, absolute or relative to the mounted one",
    /// Make the directories above it that are missing
    #[serde(default = "yes")]
    recursive: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::tools) struct CreateDirectoryData {
    /// The directory, absolute
    path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    path_b64: Option<Base64>,
    /// The directory is there now; false only where it was there before and recursive was false
    created: bool,
}

impl FileTool for CreateDirectory {
    const NAME: &'static str = "sandbox_create_directory";
    const DESCRIPTION: &'static str = "Create a directory; an existing one is not an error.";
    const OPERATION: &'static str = "createDir";
    const CHANGES_FILES: bool = true;
    type Args = CreateDirectoryArgs;
    type Data = CreateDirectoryData;

    async fn perform(
        sandbox: &Sandbox,
        args: CreateDirectoryArgs,
    ) -> Result<OperationOutput<CreateDirectoryData>, Error> {
        let parents = args.recursive;
        let made = sandbox.mkdir(args.path(), MkdirOptions { parents }).await?;
        // As `mkdir -p` does.
        let created = made.created || parents;
        Ok(CreateDirectoryData { path: made.path, path_b64: made.path_b64, created }.into())
    }
}
