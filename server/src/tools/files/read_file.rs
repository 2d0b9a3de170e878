//! `sandbox_read_file`.

use sandbox_api::files::ReadOptions;
use sandbox_controller::{Error, Sandbox};
use schemars::JsonSchema;
use serde::Serialize;

use super::operation::{ContentEncoding, FileArguments, FileTool, OperationOutput, file_arguments};

pub(in crate::tools) struct ReadFile;

file_arguments! {
    ReadFileArgs,
    "The file, absolute or relative to the mounted directory",
    /// How the content is given
    #[serde(default)]
    #[schemars(schema_with = "super::operation::given_encoding")]
    encoding: ContentEncoding,
    /// Bytes to leave out at the start
    #[serde(default)]
    offset: u64,
    /// Bytes to read at most; the whole file by default
    #[serde(default)]
    limit: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::tools) struct ReadFileData {
    /// The content, with nothing added and nothing left out
    pub content: String,
    /// How it is given
    pub encoding: ContentEncoding,
}

impl FileTool for ReadFile {
    const NAME: &'static str = "sandbox_read_file";
    const DESCRIPTION: &'static str = "Read a file, as text or as base64.";
    const OPERATION: &'static str = "read";
    const CHANGES_FILES: bool = false;
    type Args = ReadFileArgs;
    type Data = ReadFileData;

    fn data_bytes(args: &ReadFileArgs, max_file_size: u64) -> Option<u64> {
        Some(args.limit.map_or(max_file_size, |limit| limit.min(max_file_size)))
    }

    async fn perform(
        sandbox: &Sandbox,
        args: ReadFileArgs,
    ) -> Result<OperationOutput<ReadFileData>, Error> {
        let ReadFileArgs { encoding, offset, limit, .. } = args;
        let options = ReadOptions { encoding: Some(encoding.into()), offset, limit };
        let read = sandbox.read(args.path(), options).await?;
        Ok(ReadFileData { content: read.content, encoding }.into())
    }
}
