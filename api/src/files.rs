//! What file operations take and give.
//!
//! Every `path` in data is the normalised guest path. Where a path or name is not UTF-8 it is lossy,
//! and `path_b64` or `name_b64` has its bytes.

use sandbox_protocol::Base64;
use serde::{Deserialize, Serialize, Serializer};

use super::encoding::Encoding;
use crate::time::rfc3339;
pub use sandbox_protocol::message::{EntryKind, Timestamp, TruncatedBy, WriteMode};

/// How to `Sandbox::read`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadOptions {
    /// As what the content is given; `None` for the sandbox's
    /// [default](crate::SandboxSpec::default_encoding).
    pub encoding: Option<Encoding>,
    /// The first byte; beyond the end there is nothing.
    pub offset: u64,
    /// How many bytes at most; `None` for all.
    pub limit: Option<u64>,
}

/// The lines to `Sandbox::view`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ViewOptions {
    /// The first line, from 1.
    pub offset: u64,
    /// How many; `None` for as many as a view may have (2,000 lines, 50 KiB).
    pub limit: Option<u64>,
}

impl Default for ViewOptions {
    fn default() -> Self {
        Self { offset: 1, limit: None }
    }
}

/// How to `Sandbox::write`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// What becomes of a file that is there; it is replaced by default.
    pub mode: WriteMode,
    /// Whether missing directories on the way are made, as they are by default.
    pub parents: bool,
    /// For [`WriteMode::Overwrite`]: whether a new file takes the old one's place, as it does by
    /// default, so that every reader sees one of the two whole.
    pub atomic: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { mode: WriteMode::Overwrite, parents: true, atomic: true }
    }
}

/// How to `Sandbox::list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListOptions {
    /// Whether directories in it are looked into.
    pub recursive: bool,
    /// How deep, from 1 for the directory alone; `None` for as deep as the sandbox's limit.
    pub max_depth: Option<u64>,
    /// How many entries; `None` for as many as the limit.
    pub limit: Option<u64>,
}

/// How to `Sandbox::mkdir`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MkdirOptions {
    /// Whether missing directories on the way are made, as they are by default.
    pub parents: bool,
}

impl Default for MkdirOptions {
    fn default() -> Self {
        Self { parents: true }
    }
}

/// How to `Sandbox::remove`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoveOptions {
    /// Whether a directory goes with all that is in it.
    pub recursive: bool,
    /// Whether nothing there is no error.
    pub force: bool,
}

/// How to `Sandbox::rename`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RenameOptions {
    /// Whether something that has the new name is replaced.
    pub overwrite: bool,
}

/// What `read` gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReadData {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The content, in the encoding.
    pub content: String,
    /// The encoding.
    pub encoding: Encoding,
    /// How many bytes of the file it is.
    pub bytes: u64,
    /// `image/png`, `image/jpeg`, `image/gif` or `image/webp` by the first bytes; else `text/plain`
    /// for UTF-8, and `application/octet-stream`.
    pub mime_type: String,
}

/// What `view` gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ViewData {
    /// Lines of text.
    Text(TextView),
    /// A PNG, JPEG, GIF or WebP image.
    Image(ImageView),
}

/// Lines of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TextView {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The lines, exactly as they are in the file.
    pub text: String,
    /// The number of the first line that is shown, from 1.
    pub first_line: u64,
    /// How many lines are shown.
    pub output_lines: u64,
    /// How many lines the file has.
    pub total_lines: u64,
    /// There is more of the file behind `text`.
    pub truncated: bool,
    /// What ended the text before its end.
    pub truncated_by: Option<TruncatedBy>,
    /// What to tell a reader where there is more: `[Showing lines 1-2000 of 5000. Use offset=2001
    /// to continue.]`.
    pub footer: Option<String>,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageView {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The image; in JSON as base64.
    pub content: Base64,
    /// Its MIME type.
    pub mime_type: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// What `write` gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WriteData {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// How many bytes the content had.
    pub bytes_written: u64,
    /// Whether there was no such file before.
    pub created: bool,
}

/// What `edit` gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EditData {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// How many were replaced.
    pub replacements: u64,
}

/// What `list` gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListData {
    /// The directory.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// What is in it, sorted by path, a directory before what is in it.
    pub entries: Vec<Entry>,
    /// There are more.
    pub truncated: bool,
}

/// An entry of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its name: the last component of its path.
    pub name: String,
    /// The name's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_b64: Option<Base64>,
    /// Its guest path.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// When its content changed last; in JSON by RFC 3339.
    #[serde(serialize_with = "time")]
    pub modified: Option<Timestamp>,
}

/// What `mkdir` gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MkdirData {
    /// The directory.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// False where the directory was there.
    pub created: bool,
}

/// What `remove` gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RemoveData {
    /// What was removed.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// False only with `force` and nothing there.
    pub removed: bool,
    /// How many entries went, the named one included.
    pub entries: u64,
}

/// What `exists` gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExistsData {
    /// The name.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// Whether something has it. A dangling link is there, as a link.
    pub exists: bool,
    /// What is there.
    #[serde(rename = "type")]
    pub kind: Option<EntryKind>,
}

/// What `stat` gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StatData {
    /// The name.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// Its permissions, as `ls -l` writes them: `rwxr-xr-x`.
    pub permissions: String,
    /// Its permissions in octal: `0755`.
    pub mode: String,
    /// Its owner, by number.
    pub uid: u32,
    /// Its group, by number.
    pub gid: u32,
    /// Its owner by name, where this machine knows one; else the number.
    pub owner: String,
    /// Its group by name, where this machine knows one; else the number.
    pub group: String,
    /// When its content changed last; in JSON by RFC 3339.
    #[serde(serialize_with = "time")]
    pub modified: Option<Timestamp>,
    /// When it was read last, as far as the file system keeps that.
    #[serde(serialize_with = "time")]
    pub accessed: Option<Timestamp>,
    /// When it was made, where the file system keeps that.
    #[serde(serialize_with = "time")]
    pub created: Option<Timestamp>,
}

/// What `rename` gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RenameData {
    /// The old name.
    pub from: String,
    /// Its bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_b64: Option<Base64>,
    /// The new name.
    pub to: String,
    /// Its bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_b64: Option<Base64>,
}

/// A time as RFC 3339 writes it, in UTC: `2026-11-22T06:11:28.5Z`; `None` where it can write none.
#[must_use]
pub fn time_text(time: Timestamp) -> Option<String> {
    rfc3339(time.seconds, time.nanoseconds)
}

fn time<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    time.and_then(time_text).serialize(serializer)
}

/// What an operation's data says of its extent.
pub trait OperationStats {
    /// Bytes of content.
    fn bytes(&self) -> Option<u64> {
        None
    }
    /// Entries, or places.
    fn items(&self) -> Option<u64> {
        None
    }
}

impl OperationStats for ReadData {
    fn bytes(&self) -> Option<u64> {
        Some(self.bytes)
    }
}

impl OperationStats for ViewData {
    fn bytes(&self) -> Option<u64> {
        Some(match self {
            Self::Text(view) => view.text.len() as u64,
            Self::Image(view) => view.bytes,
        })
    }
}

impl OperationStats for WriteData {
    fn bytes(&self) -> Option<u64> {
        Some(self.bytes_written)
    }
}

impl OperationStats for EditData {
    fn items(&self) -> Option<u64> {
        Some(self.replacements)
    }
}

impl OperationStats for ListData {
    fn items(&self) -> Option<u64> {
        Some(self.entries.len() as u64)
    }
}

impl OperationStats for RemoveData {
    fn items(&self) -> Option<u64> {
        Some(self.entries)
    }
}

impl OperationStats for MkdirData {}
impl OperationStats for ExistsData {}
impl OperationStats for StatData {}
impl OperationStats for RenameData {}
