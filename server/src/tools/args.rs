//! What the tools take. Names and defaults are those that Loopstack's own tools have.
//!
//! Each struct is decoded strictly, and is the tool's JSON Schema too: its comments are what a
//! model reads of an argument.

use sandbox_protocol::Base64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::command::DEFAULT_TIMEOUT_MS;

/// How content is written in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ContentEncoding {
    /// Text.
    #[default]
    #[serde(alias = "utf-8")]
    Utf8,
    /// Any bytes.
    Base64,
}

/// [`ContentEncoding`] as it may be given
#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
#[expect(dead_code, reason = "a schema is all that it is for")]
enum EncodingSchema {
    /// Text.
    Utf8,
    /// The same.
    #[schemars(rename = "utf-8")]
    Utf8Hyphen,
    /// Any bytes.
    Base64,
}

const fn yes() -> bool {
    true
}

fn workspace() -> String {
    "workspace".to_owned()
}

fn root() -> String {
    "/".to_owned()
}

/// `sandbox_init`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InitArgs {
    /// Your name for the sandbox, which the other tools take
    pub container_id: String,
    /// The engine's image that programs run in; without one the sandbox has scripts and files
    #[serde(default)]
    pub image_name: Option<String>,
    /// A name to show for the container
    #[serde(default)]
    pub container_name: Option<String>,
    /// The host's directory that the sandbox sees; it is made if it is missing
    pub project_out_path: String,
    /// Where it appears in the sandbox, from the root
    #[serde(default = "workspace")]
    pub root_path: String,
}

/// `sandbox_command`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// The program; no shell is implied
    pub executable: String,
    /// Its arguments
    #[serde(default)]
    pub args: Option<Vec<String>>,
    /// Where it starts: any directory of the sandbox; a relative one is below the mounted one
    #[serde(default = "root")]
    pub working_directory: String,
    /// Variables, each as KEY=VALUE
    #[serde(default)]
    pub env_vars: Option<Vec<String>>,
    /// Milliseconds that it may take
    #[serde(default)]
    #[schemars(with = "u64", range(min = 1), extend("default" = DEFAULT_TIMEOUT_MS))]
    pub timeout: Option<u64>,
}

/// `sandbox_destroy`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DestroyArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// A container that has ended holds nothing, so it is removed either way
    #[serde(default = "yes")]
    pub remove_container: bool,
}

/// `sandbox_read_file`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReadFileArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// The file, absolute or relative to the mounted directory
    pub path: String,
    /// The path's bytes as base64, for one that is not UTF-8; where they are given, they count
    #[serde(default, rename = "path_b64")]
    #[schemars(with = "Option<String>")]
    pub path_b64: Option<Base64>,
    /// How the content is given
    #[serde(default)]
    #[schemars(with = "EncodingSchema")]
    pub encoding: ContentEncoding,
    /// Bytes to leave out at the start
    #[serde(default)]
    pub offset: u64,
    /// Bytes to read at most; the whole file by default
    #[serde(default)]
    pub limit: Option<u64>,
}

/// `sandbox_write_file`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WriteFileArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// The file, absolute or relative to the mounted directory; it is overwritten as a whole
    pub path: String,
    /// The path's bytes as base64, for one that is not UTF-8; where they are given, they count
    #[serde(default, rename = "path_b64")]
    #[schemars(with = "Option<String>")]
    pub path_b64: Option<Base64>,
    /// The content
    pub content: String,
    /// How the content is given
    #[serde(default)]
    #[schemars(with = "EncodingSchema")]
    pub encoding: ContentEncoding,
    /// Make the directories above it that are missing
    #[serde(default = "yes")]
    pub create_parent_dirs: bool,
}

/// `sandbox_list_directory`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListDirectoryArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// The directory, absolute or relative to the mounted one
    pub path: String,
    /// The path's bytes as base64, for one that is not UTF-8; where they are given, they count
    #[serde(default, rename = "path_b64")]
    #[schemars(with = "Option<String>")]
    pub path_b64: Option<Base64>,
    /// List what is in its directories too
    #[serde(default)]
    pub recursive: bool,
    /// Entries to list at most; 10,000 by default
    #[serde(default)]
    pub limit: Option<u64>,
    /// Levels to list at most where it is recursive; 10 by default
    #[serde(default)]
    pub max_depth: Option<u64>,
}

/// `sandbox_create_directory`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateDirectoryArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// The directory, absolute or relative to the mounted one
    pub path: String,
    /// The path's bytes as base64, for one that is not UTF-8; where they are given, they count
    #[serde(default, rename = "path_b64")]
    #[schemars(with = "Option<String>")]
    pub path_b64: Option<Base64>,
    /// Make the directories above it that are missing
    #[serde(default = "yes")]
    pub recursive: bool,
}

/// `sandbox_delete`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeleteArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// The file or directory, absolute or relative to the mounted directory
    pub path: String,
    /// The path's bytes as base64, for one that is not UTF-8; where they are given, they count
    #[serde(default, rename = "path_b64")]
    #[schemars(with = "Option<String>")]
    pub path_b64: Option<Base64>,
    /// Delete a directory with all that is in it
    #[serde(default)]
    pub recursive: bool,
    /// Take it as done where nothing is there
    #[serde(default)]
    pub force: bool,
}

/// `sandbox_exists`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExistsArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// The path, absolute or relative to the mounted directory
    pub path: String,
    /// The path's bytes as base64, for one that is not UTF-8; where they are given, they count
    #[serde(default, rename = "path_b64")]
    #[schemars(with = "Option<String>")]
    pub path_b64: Option<Base64>,
}

/// `sandbox_file_info`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileInfoArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// The file or directory, absolute or relative to the mounted directory
    pub path: String,
    /// The path's bytes as base64, for one that is not UTF-8; where they are given, they count
    #[serde(default, rename = "path_b64")]
    #[schemars(with = "Option<String>")]
    pub path_b64: Option<Base64>,
}

/// `sandbox_execute_script`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecuteScriptArgs {
    /// The sandbox, by the name that sandbox_init gave it
    pub container_id: String,
    /// The script, in Luau
    pub script: String,
    /// Milliseconds that it may take
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<u64>,
}
