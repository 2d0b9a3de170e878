//! What the tools give. Names are those that Loopstack's own tools have.

use sandbox_api::TouchedFile;
use sandbox_protocol::Base64;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::args::ContentEncoding;

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum EntryType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, which is never followed.
    Symlink,
    /// A FIFO, socket or device.
    Other,
}

/// Of `sandbox_init`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InitData {
    /// As it was given
    pub container_id: String,
    /// The engine's id of the container
    pub docker_id: String,
}

/// Of `sandbox_command`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandData {
    /// What it wrote to stdout, without white space at its two ends; bytes that are no UTF-8 are
    /// U+FFFD here, and the metadata says so
    pub stdout: String,
    /// What it wrote to stderr, likewise
    pub stderr: String,
    /// Its exit code; 128 and the signal's number where one ended it, -1 where it was out of time
    pub exit_code: i32,
    /// It was out of time, and was killed
    pub timed_out: bool,
}

/// Of `sandbox_destroy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DestroyData {
    /// As it was given
    pub container_id: String,
    /// The container is gone
    pub removed: bool,
}

/// Of `sandbox_read_file`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReadFileData {
    /// The content, with nothing added and nothing left out
    pub content: String,
    /// How it is given
    pub encoding: ContentEncoding,
}

/// Of `sandbox_write_file`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WriteFileData {
    /// The file, absolute
    pub path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub path_b64: Option<Base64>,
    /// Its bytes
    pub bytes_written: u64,
}

/// Of `sandbox_list_directory`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListDirectoryData {
    /// The directory, absolute
    pub path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub path_b64: Option<Base64>,
    /// What is in it, sorted by path; `truncated` in the metadata says whether there is more
    pub entries: Vec<EntryData>,
}

/// An entry of a directory
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub struct EntryData {
    /// The last part of its path
    pub name: String,
    /// The name's bytes as base64, where they are not UTF-8
    #[serde(rename = "name_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub name_b64: Option<Base64>,
    /// What it is
    pub r#type: EntryType,
    /// Its size in bytes
    pub size: u64,
    /// Its path, absolute
    pub path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub path_b64: Option<Base64>,
}

/// Of `sandbox_create_directory`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateDirectoryData {
    /// The directory, absolute
    pub path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub path_b64: Option<Base64>,
    /// The directory is there now; false only where it was there before and recursive was false
    pub created: bool,
}

/// Of `sandbox_delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeleteData {
    /// The path, absolute
    pub path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub path_b64: Option<Base64>,
    /// Nothing is there now; with force also where nothing was there before
    pub deleted: bool,
}

/// Of `sandbox_exists`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExistsData {
    /// The path, absolute
    pub path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub path_b64: Option<Base64>,
    /// Something is there
    pub exists: bool,
    /// What it is; null where nothing is there
    pub r#type: Option<EntryType>,
}

/// Of `sandbox_file_info`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileInfoData {
    /// The path, absolute
    pub path: String,
    /// The path's bytes as base64, where they are not UTF-8
    #[serde(rename = "path_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub path_b64: Option<Base64>,
    /// Its last part
    pub name: String,
    /// The name's bytes as base64, where they are not UTF-8
    #[serde(rename = "name_b64", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub name_b64: Option<Base64>,
    /// What it is
    pub r#type: EntryType,
    /// Its size in bytes
    pub size: u64,
    /// As in -rw-r--r--, with the type first; ? is the type of a FIFO, a socket or a device
    pub permissions: String,
    /// The owner's name, or number where it has none
    pub owner: String,
    /// The group's name, or number where it has none
    pub group: String,
    /// RFC 3339
    pub modified_at: Option<String>,
    /// RFC 3339
    pub accessed_at: Option<String>,
    /// RFC 3339; null where the file system does not know it
    pub created_at: Option<String>,
}

/// Of `sandbox_execute_script`; on failure, in the metadata.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecuteScriptData {
    /// What the script returned; null where it returned nothing, or failed
    pub result: ScriptResult,
    /// What it printed
    pub logs: Vec<String>,
    /// The files that it changed, in their final state
    #[schemars(with = "Vec<TouchedSchema>")]
    pub files_touched: Vec<TouchedFile>,
}

/// What a script returned, as JSON.
#[derive(Debug, Clone, Default)]
pub struct ScriptResult(pub Option<Box<RawValue>>);

impl Serialize for ScriptResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl JsonSchema for ScriptResult {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ScriptResult".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({})
    }
}

/// A file that a script changed
#[derive(JsonSchema)]
#[schemars(inline, deny_unknown_fields)]
#[expect(dead_code, reason = "a schema is all that it is for")]
struct TouchedSchema {
    /// Its path, relative to the mounted directory
    name: String,
    /// The name's bytes as base64, where they are not UTF-8
    #[schemars(skip_serializing_if = "Option::is_none")]
    name_b64: Option<String>,
    /// What became of it
    op: TouchedOp,
    /// Its size now
    bytes: u64,
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
#[expect(dead_code, reason = "a schema is all that it is for")]
enum TouchedOp {
    Write,
    Append,
    Remove,
}

/// Of `sandbox_filesystem`: what the operation's own tool gives, in an envelope.
#[derive(Debug, Clone, Serialize)]
pub struct FilesystemData {
    /// Whether it was done.
    pub success: bool,
    /// The data of the operation's own tool; null where it failed.
    pub data: Option<Box<Data>>,
    /// What went wrong.
    pub error: Option<String>,
    /// More of it.
    pub metadata: FilesystemMetadata,
}

/// The metadata of a [`FilesystemData`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FilesystemMetadata {
    /// Bytes that a write wrote; else null.
    pub bytes_written: Option<u64>,
    /// Entries that were listed or deleted; else null.
    pub items_count: Option<u64>,
    /// Of a list: there is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<bool>,
    /// Of a failure: what went wrong, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<sandbox_protocol::ErrorKind>,
    /// Of a failure: the same call may succeed if it is made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// Of a failure: the next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What a tool gives.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "each variant is a tool's, and so is its struct")]
pub enum Data {
    Init(InitData),
    Command(CommandData),
    Destroy(DestroyData),
    ReadFile(ReadFileData),
    WriteFile(WriteFileData),
    ListDirectory(ListDirectoryData),
    CreateDirectory(CreateDirectoryData),
    Delete(DeleteData),
    Exists(ExistsData),
    FileInfo(FileInfoData),
    ExecuteScript(ExecuteScriptData),
    Filesystem(FilesystemData),
}

/// The struct alone: which tool it is of, the caller knows.
impl Serialize for Data {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Init(data) => data.serialize(serializer),
            Self::Command(data) => data.serialize(serializer),
            Self::Destroy(data) => data.serialize(serializer),
            Self::ReadFile(data) => data.serialize(serializer),
            Self::WriteFile(data) => data.serialize(serializer),
            Self::ListDirectory(data) => data.serialize(serializer),
            Self::CreateDirectory(data) => data.serialize(serializer),
            Self::Delete(data) => data.serialize(serializer),
            Self::Exists(data) => data.serialize(serializer),
            Self::FileInfo(data) => data.serialize(serializer),
            Self::ExecuteScript(data) => data.serialize(serializer),
            Self::Filesystem(data) => data.serialize(serializer),
        }
    }
}
