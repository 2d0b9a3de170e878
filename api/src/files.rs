//! Options and results of file operations.
//!
//! Every `path` in a result is the normalised guest path. If a path or name is not UTF-8, it is
//! lossy, and `path_b64` or `name_b64` has its bytes.

use sandbox_protocol::Base64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::encoding::Encoding;
use crate::time::{Rfc3339, rfc3339};
pub use sandbox_protocol::message::{EntryKind, Timestamp, TruncatedBy, WriteMode};

/// Options of `Sandbox::read`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadOptions {
    /// The encoding of the content; `None` for the sandbox's
    /// [default](crate::SandboxSpec::default_encoding).
    pub encoding: Option<Encoding>,
    /// The offset of the first byte; past the end of the file, the content is empty.
    pub offset: u64,
    /// The maximum number of bytes; `None` for all.
    pub limit: Option<u64>,
}

/// The lines of a file that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ViewOptions {
    /// The first line, counted from 1.
    pub offset: u64,
    /// The maximum number of lines; `None` for the maximum of a view (2,000 lines, 50 KiB).
    pub limit: Option<u64>,
}

impl Default for ViewOptions {
    fn default() -> Self {
        Self { offset: 1, limit: None }
    }
}

/// Options of `Sandbox::write`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// What happens to an existing file; by default it is overwritten.
    pub mode: WriteMode,
    /// Whether to create missing parent directories; true by default.
    pub parents: bool,
    /// For [`WriteMode::Overwrite`]: whether to replace the old file by a new one, so that every
    /// reader sees either of the two whole; true by default.
    pub atomic: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { mode: WriteMode::Overwrite, parents: true, atomic: true }
    }
}

/// Options of `Sandbox::list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListOptions {
    /// Whether to descend into subdirectories.
    pub recursive: bool,
    /// The maximum depth, where 1 is the directory alone; `None` for the sandbox's limit.
    pub max_depth: Option<u64>,
    /// The maximum number of entries; `None` for the sandbox's limit.
    pub limit: Option<u64>,
}

/// Options of `Sandbox::mkdir`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MkdirOptions {
    /// Whether to create missing parent directories; true by default.
    pub parents: bool,
}

impl Default for MkdirOptions {
    fn default() -> Self {
        Self { parents: true }
    }
}

/// Options of `Sandbox::remove`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoveOptions {
    /// Whether to remove a directory with its contents.
    pub recursive: bool,
    /// Whether to ignore a nonexistent path.
    pub force: bool,
}

/// Options of `Sandbox::rename`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RenameOptions {
    /// Whether to replace an existing file or directory at the new path.
    pub overwrite: bool,
}

/// Options of `Sandbox::glob`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GlobOptions {
    /// Which of the paths that match: those that one of these globs matches, and none that one matches
    /// which begins with `!`. Without a slash a glob is matched with names, of directories too where it
    /// excludes; with a slash, with paths as they are returned.
    pub globs: Vec<String>,
    /// Whether names that begin with a dot match where the pattern has no such name.
    pub hidden: bool,
    /// The maximum number of paths; `None` for the sandbox's limit of a list.
    pub limit: Option<u64>,
}

/// Options of `Sandbox::grep`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GrepOptions {
    /// Which files below the directory, as for [`GlobOptions::globs`]; those with a slash are matched with
    /// paths relative to the directory.
    pub globs: Vec<String>,
    /// The number of lines of context on each side of a match, at most 100.
    pub context: u64,
    /// Whether to ignore case.
    pub ignore_case: bool,
    /// Whether to search files and directories whose names begin with a dot, without those of version
    /// control.
    pub hidden: bool,
    /// The maximum number of matching lines; `None` for the sandbox's limit of a list.
    pub limit: Option<u64>,
}

/// Options of `Sandbox::copy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyOptions {
    /// Whether to copy a directory with its contents.
    pub recursive: bool,
    /// Whether to replace existing files, and to copy a directory into an existing one.
    pub overwrite: bool,
}

/// The result of `read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadData {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The content, as text in `encoding`.
    pub content: String,
    /// The encoding.
    pub encoding: Encoding,
    /// The number of bytes that were read.
    pub bytes: u64,
    /// `image/png`, `image/jpeg`, `image/gif` or `image/webp`, by the first bytes; otherwise
    /// `text/plain` for UTF-8, and `application/octet-stream` for the rest.
    pub mime_type: String,
}

/// The result of `view`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum ViewData {
    /// Lines of text.
    Text(TextView),
    /// A PNG, JPEG, GIF or WebP image.
    Image(ImageView),
}

/// Lines of a text file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextView {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The lines, exactly as they are in the file.
    pub text: String,
    /// The number of the first line in `text`, counted from 1.
    pub first_line: u64,
    /// The number of lines in `text`.
    pub output_lines: u64,
    /// The number of lines in the file.
    pub total_lines: u64,
    /// Whether the file continues after `text`.
    pub truncated: bool,
    /// The limit that cut `text`.
    pub truncated_by: Option<TruncatedBy>,
    /// What to print after a truncated text: `[Showing lines 1-2000 of 5000. Use offset=2001 to
    /// continue.]`.
    pub footer: Option<String>,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageView {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The bytes of the image; base64 in JSON.
    pub content: Base64,
    /// Its MIME type.
    pub mime_type: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The result of `write`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteData {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The size of the content in bytes.
    pub bytes_written: u64,
    /// Whether the file did not exist before.
    pub created: bool,
}

/// The result of `edit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EditData {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The number of replacements.
    pub replacements: u64,
}

/// The result of `list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListData {
    /// The directory.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The entries, sorted by path; a directory comes before its contents.
    pub entries: Vec<Entry>,
    /// Whether there are more entries.
    pub truncated: bool,
    /// What is left out, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
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
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// When its content was last modified; RFC 3339 in JSON.
    #[serde(with = "time")]
    #[schemars(with = "Option<Rfc3339>")]
    pub modified: Option<Timestamp>,
}

/// The result of `mkdir`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MkdirData {
    /// The directory.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// Whether the directory was created; false if it existed.
    pub created: bool,
}

/// The result of `remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveData {
    /// The removed path.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// Whether something was removed; false only if `force` is set and nothing existed.
    pub removed: bool,
    /// The number of removed entries, including the given path itself.
    pub entries: u64,
}

/// The result of `exists`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExistsData {
    /// The path.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// Whether the path exists. A dangling symbolic link exists, as a link.
    pub exists: bool,
    /// The kind of the entry, if it exists.
    #[serde(rename = "type")]
    pub kind: Option<EntryKind>,
}

/// The result of `stat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatData {
    /// The path.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The kind of the entry.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// Its permissions, as `ls -l` writes them: `rwxr-xr-x`.
    pub permissions: String,
    /// Its permissions in octal: `0755`.
    pub mode: String,
    /// The uid of its owner.
    pub uid: u32,
    /// The gid of its group.
    pub gid: u32,
    /// The name of its owner if the host knows one, otherwise the uid.
    pub owner: String,
    /// The name of its group if the host knows one, otherwise the gid.
    pub group: String,
    /// When its content was last modified; RFC 3339 in JSON.
    #[serde(with = "time")]
    #[schemars(with = "Option<Rfc3339>")]
    pub modified: Option<Timestamp>,
    /// When it was last read, if the filesystem records that.
    #[serde(with = "time")]
    #[schemars(with = "Option<Rfc3339>")]
    pub accessed: Option<Timestamp>,
    /// When it was created, if the filesystem records that.
    #[serde(with = "time")]
    #[schemars(with = "Option<Rfc3339>")]
    pub created: Option<Timestamp>,
}

/// The result of `rename`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameData {
    /// The old path.
    pub from: String,
    /// Its bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_b64: Option<Base64>,
    /// The new path.
    pub to: String,
    /// Its bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_b64: Option<Base64>,
}

/// The result of `glob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GlobData {
    /// The directory where the search began: that of the pattern's names before the first special
    /// one.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The paths that match, sorted component by component.
    pub matches: Vec<GlobMatch>,
    /// Whether there may be more: a limit was reached.
    pub truncated: bool,
    /// Where the search stopped, or what it left out, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A path that matches a glob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GlobMatch {
    /// The path as the pattern begins: relative to the given directory for a relative pattern.
    pub name: String,
    /// The name's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_b64: Option<Base64>,
    /// The guest path.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
}

/// The result of `grep`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrepData {
    /// The file or directory that was searched.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The matching lines and their context, by file and line number.
    pub lines: Vec<GrepLine>,
    /// The number of matching lines.
    pub matches: u64,
    /// The number of files that were searched.
    pub files: u64,
    /// Whether there may be more: a limit was reached.
    pub truncated: bool,
    /// Where the search stopped, or what it left out, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrepLine {
    /// The path of the file, as the searched path begins.
    pub name: String,
    /// The name's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_b64: Option<Base64>,
    /// The guest path of the file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The number of the line, counted from 1.
    pub line: u64,
    /// Its text without the line end; lossy where it is not UTF-8.
    pub text: String,
    /// Whether the line is longer than its text: 2 KiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Whether the line only surrounds a match.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub context: bool,
}

/// The result of `copy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CopyData {
    /// The source.
    pub from: String,
    /// Its bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_b64: Option<Base64>,
    /// The copy.
    pub to: String,
    /// Its bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_b64: Option<Base64>,
    /// The number of copied files and directories.
    pub entries: u64,
    /// The number of copied bytes.
    pub bytes: u64,
}

/// A time in RFC 3339, in UTC: `2026-11-22T06:11:28.5Z`; `None` if RFC 3339 cannot represent it.
#[must_use]
pub fn time_text(time: Timestamp) -> Option<String> {
    rfc3339(time.seconds, time.nanoseconds)
}

/// A time in JSON.
mod time {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    use super::{Timestamp, time_text};
    use crate::time::parse_rfc3339;

    pub fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.and_then(time_text).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        let (seconds, nanoseconds) = parse_rfc3339(&text)
            .ok_or_else(|| de::Error::custom(format!("'{text}' is not a time of RFC 3339")))?;
        Ok(Some(Timestamp { seconds, nanoseconds }))
    }
}

/// How much an operation read, wrote or touched, by its result.
pub trait OperationStats {
    /// The number of bytes of content.
    fn bytes(&self) -> Option<u64> {
        None
    }
    /// The number of entries or replacements.
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

impl OperationStats for GlobData {
    fn items(&self) -> Option<u64> {
        Some(self.matches.len() as u64)
    }
}

impl OperationStats for GrepData {
    fn items(&self) -> Option<u64> {
        Some(self.matches)
    }
}

impl OperationStats for CopyData {
    fn bytes(&self) -> Option<u64> {
        Some(self.bytes)
    }

    fn items(&self) -> Option<u64> {
        Some(self.entries)
    }
}

impl OperationStats for MkdirData {}
impl OperationStats for ExistsData {}
impl OperationStats for StatData {}
impl OperationStats for RenameData {}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Serialize + serde::de::DeserializeOwned>(json: &str) {
        let data: T = serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"));
        assert_eq!(serde_json::to_string(&data).unwrap(), json);
        let more = json.replacen('{', r#"{"more":1,"#, 1);
        assert!(serde_json::from_str::<T>(&more).is_err(), "{more}");
    }

    #[test]
    fn results_come_back_as_they_were_written() {
        check::<ViewData>(
            r#"{"type":"image","path":"/io/a","content":"Yf8=","mime_type":"image/png","bytes":2}"#,
        );
        check::<ListData>(concat!(
            r#"{"path":"/io","entries":[{"name":"a?","name_b64":"Yf8=","path":"/io/a?","#,
            r#""path_b64":"L2lvL2H/","type":"file","size":1,"modified":"1969-12-31T23:59:59.25Z"},"#,
            r#"{"name":"b","path":"/io/b","type":"directory","size":0,"modified":null}],"#,
            r#""truncated":false}"#,
        ));
        check::<GrepData>(concat!(
            r#"{"path":"/io","lines":[{"name":"a","path":"/io/a","line":3,"text":"b","cut":true},"#,
            r#"{"name":"a","path":"/io/a","line":4,"text":"","context":true}],"#,
            r#""matches":1,"files":2,"truncated":false}"#,
        ));
        check::<ExistsData>(r#"{"path":"/io/a","exists":false,"type":null}"#);
        check::<RenameData>(r#"{"from":"/io/a","to":"/io/b"}"#);
    }
}
