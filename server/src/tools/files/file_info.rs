//! `sandbox_file_info`.

use sandbox_api::files::{EntryKind, time_text};
use sandbox_controller::{Error, Sandbox};
use sandbox_protocol::Base64;
use sandbox_protocol::WireString;
use schemars::JsonSchema;
use serde::Serialize;

use super::operation::{EntryType, FileArguments, FileTool, OperationOutput, file_arguments};

pub(in crate::tools) struct FileInfo;

file_arguments! {
    FileInfoArgs,
    "The file or directory, absolute or relative to the mounted directory",
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::tools) struct FileInfoData {
    /// The path, absolute
    path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    path_b64: Option<Base64>,
    /// Its last part
    name: String,
    /// The name's bytes as base64, where they are not UTF-8
    #[serde(rename = "name_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    name_b64: Option<Base64>,
    /// What it is
    r#type: EntryType,
    /// Its size in bytes
    size: u64,
    /// As in -rw-r--r--, with the type first; ? is the type of a FIFO, a socket or a device
    permissions: String,
    /// The owner's name, or number where it has none
    owner: String,
    /// The group's name, or number where it has none
    group: String,
    /// RFC 3339
    modified_at: Option<String>,
    /// RFC 3339
    accessed_at: Option<String>,
    /// RFC 3339; null where the file system does not know it
    created_at: Option<String>,
}

impl FileTool for FileInfo {
    const NAME: &'static str = "sandbox_file_info";
    const DESCRIPTION: &'static str =
        "Describe a file or a directory: size, permissions, owner, times.";
    const OPERATION: &'static str = "info";
    const CHANGES_FILES: bool = false;
    type Args = FileInfoArgs;
    type Data = FileInfoData;

    async fn perform(
        sandbox: &Sandbox,
        args: FileInfoArgs,
    ) -> Result<OperationOutput<FileInfoData>, Error> {
        let stat = sandbox.stat(args.path()).await?;
        let path = WireString::from_parts(stat.path.clone(), stat.path_b64.clone());
        let (name, name_b64) = name(path.as_bytes());
        Ok(FileInfoData {
            name,
            name_b64,
            path: stat.path,
            path_b64: stat.path_b64,
            r#type: stat.kind.into(),
            size: stat.size,
            permissions: format!("{}{}", type_letter(stat.kind), stat.permissions),
            owner: stat.owner,
            group: stat.group,
            modified_at: stat.modified.and_then(time_text),
            accessed_at: stat.accessed.and_then(time_text),
            created_at: stat.created.and_then(time_text),
        }
        .into())
    }
}

/// The last component of a normalised path.
fn name(path: &[u8]) -> (String, Option<Base64>) {
    WireString::new(path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()).into_parts()
}

/// The type as `stat` writes it before the permissions. The types FIFO, socket and device are not
/// distinguished.
const fn type_letter(kind: EntryKind) -> char {
    match kind {
        EntryKind::File => '-',
        EntryKind::Directory => 'd',
        EntryKind::Symlink => 'l',
        EntryKind::Other => '?',
    }
}
