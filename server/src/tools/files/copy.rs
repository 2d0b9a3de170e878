//! `sandbox_copy`.

use sandbox_api::files::CopyOptions;
use sandbox_controller::{Error, Sandbox};
use sandbox_protocol::Base64;
use schemars::JsonSchema;
use serde::Serialize;

use super::operation::{FileArguments, FileTool, OperationOutput, file_arguments, path_bytes};

pub(in crate::tools) struct Copy;

file_arguments! {
    CopyArgs,
    "The file or directory to copy, absolute or relative to the mounted directory",
    /// The path of the copy, absolute or relative to the mounted directory
    destination: String,
    /// Its bytes as base64, for one that is not UTF-8; where they are given, they count
    #[serde(default, rename = "destination_b64")]
    #[schemars(with = "Option<String>")]
    destination_b64: Option<Base64>,
    /// Copy a directory with all that is in it
    #[serde(default)]
    recursive: bool,
    /// Replace existing files, and copy a directory into an existing one
    #[serde(default)]
    overwrite: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::tools) struct CopyData {
    /// The source, absolute
    path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    path_b64: Option<Base64>,
    /// The copy, absolute
    destination: String,
    /// Its bytes as base64, where they are not UTF-8
    #[serde(rename = "destination_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    destination_b64: Option<Base64>,
    /// The number of files and directories that were copied
    entries: u64,
    /// The number of bytes that were copied
    bytes: u64,
}

impl FileTool for Copy {
    const NAME: &'static str = "sandbox_copy";
    const DESCRIPTION: &'static str = "Copy a file, or a directory with recursive.";
    const OPERATION: &'static str = "copy";
    const CHANGES_FILES: bool = true;
    type Args = CopyArgs;
    type Data = CopyData;

    fn used_path(_args: &CopyArgs) -> &[u8] {
        // The mounted directory contains the source and the copy.
        b"."
    }

    async fn perform(
        sandbox: &Sandbox,
        args: CopyArgs,
    ) -> Result<OperationOutput<CopyData>, Error> {
        let options = CopyOptions { recursive: args.recursive, overwrite: args.overwrite };
        let destination = path_bytes(&args.destination, args.destination_b64.as_ref());
        let copied = sandbox.copy(args.path(), destination, options).await?;
        let (bytes_written, items) = (Some(copied.bytes), Some(copied.entries));
        let data = CopyData {
            path: copied.from,
            path_b64: copied.from_b64,
            destination: copied.to,
            destination_b64: copied.to_b64,
            entries: copied.entries,
            bytes: copied.bytes,
        };
        Ok(OperationOutput { bytes_written, items, ..data.into() })
    }
}
