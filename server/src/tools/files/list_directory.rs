//! `sandbox_list_directory`.

use sandbox_api::files::ListOptions;
use sandbox_controller::{Error, Sandbox};
use sandbox_protocol::Base64;
use schemars::JsonSchema;
use serde::Serialize;

use super::operation::{EntryType, FileArguments, FileTool, OperationOutput, file_arguments};

pub(in crate::tools) struct ListDirectory;

file_arguments! {
    ListDirectoryArgs,
    "The directory, absolute or relative to the mounted one",
    /// List what is in its directories too
    #[serde(default)]
    recursive: bool,
    /// Entries to list at most; 10,000 by default
    #[serde(default)]
    limit: Option<u64>,
    /// Levels to list at most where it is recursive; 10 by default
    #[serde(default)]
    max_depth: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::tools) struct ListDirectoryData {
    /// The directory, absolute
    path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    path_b64: Option<Base64>,
    /// What is in it, sorted by path; `truncated` in the metadata says whether there is more
    entries: Vec<EntryData>,
}

/// An entry of a directory
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
struct EntryData {
    /// The last part of its path
    name: String,
    /// The name's bytes as base64, where they are not UTF-8
    #[serde(rename = "name_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    name_b64: Option<Base64>,
    /// What it is
    r#type: EntryType,
    /// Its size in bytes
    size: u64,
    /// Its path, absolute
    path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    path_b64: Option<Base64>,
}

impl FileTool for ListDirectory {
    const NAME: &'static str = "sandbox_list_directory";
    const DESCRIPTION: &'static str = "List a directory, sorted by path.";
    const OPERATION: &'static str = "list";
    const CHANGES_FILES: bool = false;
    type Args = ListDirectoryArgs;
    type Data = ListDirectoryData;

    async fn perform(
        sandbox: &Sandbox,
        args: ListDirectoryArgs,
    ) -> Result<OperationOutput<ListDirectoryData>, Error> {
        let ListDirectoryArgs { recursive, limit, max_depth, .. } = args;
        let options = ListOptions { recursive, max_depth, limit };
        let list = sandbox.list(args.path(), options).await?;
        let items = list.entries.len() as u64;
        let entries = list.entries.into_iter().map(|entry| EntryData {
            name: entry.name,
            name_b64: entry.name_b64,
            r#type: entry.kind.into(),
            size: entry.size,
            path: entry.path,
            path_b64: entry.path_b64,
        });
        let (path, path_b64) = (list.path, list.path_b64);
        let data = ListDirectoryData { path, path_b64, entries: entries.collect() };
        let (truncated, note) = (Some(list.truncated), list.note);
        Ok(OperationOutput { truncated, items: Some(items), note, ..data.into() })
    }
}
