//! `sandbox_write_file`.

use sandbox_api::files::WriteOptions;
use sandbox_controller::{Error, Sandbox};
use sandbox_protocol::Base64;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::args::yes;
use super::operation::{ContentEncoding, FileArguments, FileTool, OperationOutput, file_arguments};

pub(in crate::tools) struct WriteFile;

file_arguments! {
    WriteFileArgs,
    "The file, absolute or relative to the mounted directory; it is overwritten as a whole",
    /// The content
    content: String,
    /// How the content is given
    #[serde(default)]
    #[schemars(schema_with = "super::operation::given_encoding")]
    encoding: ContentEncoding,
    /// Make the directories above it that are missing
    #[serde(default = "yes")]
    create_parent_dirs: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::tools) struct WriteFileData {
    /// The file, absolute
    path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    path_b64: Option<Base64>,
    /// Its bytes
    bytes_written: u64,
}

impl FileTool for WriteFile {
    const NAME: &'static str = "sandbox_write_file";
    const DESCRIPTION: &'static str =
        "Write a whole file. Concurrent readers see the old content or the new one.";
    const OPERATION: &'static str = "write";
    const CHANGES_FILES: bool = true;
    type Args = WriteFileArgs;
    type Data = WriteFileData;

    async fn perform(
        sandbox: &Sandbox,
        args: WriteFileArgs,
    ) -> Result<OperationOutput<WriteFileData>, Error> {
        let options = WriteOptions { parents: args.create_parent_dirs, ..WriteOptions::default() };
        let encoding = Some(args.encoding.into());
        let written = sandbox.write_text(args.path(), &args.content, encoding, options).await?;
        let bytes_written = written.bytes_written;
        let (path, path_b64) = (written.path, written.path_b64);
        let data = WriteFileData { path, path_b64, bytes_written };
        Ok(OperationOutput { bytes_written: Some(bytes_written), ..data.into() })
    }
}
