//! Results of file operations.
//!
//! Every `path` in a result is the normalised guest path. For what is not here, the agent's reply is the
//! result, once it is verified.

use std::collections::BTreeMap;

use sandbox_protocol::names::describe;
use sandbox_protocol::{Base64, WireString};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::encoding::Encoding;
use crate::time::{Rfc3339, rfc3339};
pub use sandbox_protocol::operation::{
    ChmodReply, CopyReply, EditReply, EntryKind, ExistsReply, MkdirReply, OperationStats,
    ReadLinkReply, RemoveReply, RenameReply, SetMetadataReply, SymlinkReply, Timestamp,
    TruncatedBy, WriteMode, WriteReply,
};

/// The result of `read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = describe)]
pub struct ReadData {
    /// The file.
    pub path: WireString,
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
#[schemars(transform = describe)]
pub struct TextView {
    /// The file.
    pub path: WireString,
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
#[schemars(transform = describe)]
pub struct ImageView {
    /// The file.
    pub path: WireString,
    /// The bytes of the image; base64 in JSON.
    pub content: Base64,
    /// Its MIME type.
    pub mime_type: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The result of `list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = describe)]
pub struct ListData {
    /// The directory.
    pub path: WireString,
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
#[schemars(transform = describe)]
pub struct Entry {
    /// Its name: the last component of its path.
    pub name: WireString,
    /// Its guest path.
    pub path: WireString,
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// When its content was last modified; RFC 3339 in JSON.
    #[serde(with = "sandbox_protocol::time")]
    #[schemars(with = "Option<Rfc3339>")]
    pub modified: Option<Timestamp>,
    /// More, if the request asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<EntryDetails>,
}

/// What a list with `details` has of an entry beyond the usual, as `stat` gives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = describe)]
pub struct EntryDetails {
    /// Its permissions, as `ls -l` writes them: `rwxr-xr-x`.
    pub permissions: String,
    /// Its permissions in octal: `0755`.
    pub mode: String,
    /// The uid of its owner.
    pub uid: u32,
    /// The gid of its group.
    pub gid: u32,
    /// The name of its owner, if one is known, otherwise the uid.
    pub owner: String,
    /// The name of its group, if one is known, otherwise the gid.
    pub group: String,
    /// What it points to, if it is a link, in a sandbox with `files: all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "WireString", !default)]
    pub target: Option<WireString>,
    /// Its metadata by `NAMESPACE.KEY`, in a sandbox with `files: all`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// The result of `stat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = describe)]
pub struct StatData {
    /// The path.
    pub path: WireString,
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
    /// The name of its owner if the host knows one, otherwise the uid; with `files: all` the name in the
    /// sandbox.
    pub owner: String,
    /// The name of its group if the host knows one, otherwise the gid; with `files: all` the name in the
    /// sandbox.
    pub group: String,
    /// When its content was last modified; RFC 3339 in JSON.
    #[serde(with = "sandbox_protocol::time")]
    #[schemars(with = "Option<Rfc3339>")]
    pub modified: Option<Timestamp>,
    /// When it was last read, if the filesystem records that.
    #[serde(with = "sandbox_protocol::time")]
    #[schemars(with = "Option<Rfc3339>")]
    pub accessed: Option<Timestamp>,
    /// When it was created, if the filesystem records that.
    #[serde(with = "sandbox_protocol::time")]
    #[schemars(with = "Option<Rfc3339>")]
    pub created: Option<Timestamp>,
    /// What it points to, if it is a link, in a sandbox with `files: all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "WireString", !default)]
    pub target: Option<WireString>,
    /// Its metadata by `NAMESPACE.KEY`, in a sandbox with `files: all`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// The result of `glob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = describe)]
pub struct GlobData {
    /// The directory where the search began: that of the pattern's names before the first special
    /// one.
    pub path: WireString,
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
#[schemars(transform = describe)]
pub struct GlobMatch {
    /// The path as the pattern begins: relative to the given directory for a relative pattern.
    pub name: WireString,
    /// The guest path.
    pub path: WireString,
}

/// The result of `grep`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = describe)]
pub struct GrepData {
    /// The file or directory that was searched.
    pub path: WireString,
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
#[schemars(transform = describe)]
pub struct GrepLine {
    /// The path of the file, as the searched path begins.
    pub name: WireString,
    /// The guest path of the file.
    pub path: WireString,
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

/// A time in RFC 3339, in UTC: `2026-11-22T06:11:28.5Z`; `None` if RFC 3339 cannot represent it.
pub fn time_text(time: Timestamp) -> Option<String> {
    rfc3339(time.seconds, time.nanoseconds)
}

sandbox_protocol::operation_stats! {
    ReadData: bytes = |data| data.bytes;
    ViewData: bytes = |data| match data {
        ViewData::Text(view) => view.text.len() as u64,
        ViewData::Image(view) => view.bytes,
    };
    ListData: items = |data| data.entries.len() as u64;
    GlobData: items = |data| data.matches.len() as u64;
    GrepData: items = |data| data.matches;
}

impl OperationStats for StatData {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{read_result, result_json};

    fn check<T: Serialize + serde::de::DeserializeOwned>(json: &str) {
        let data: T = read_result(json).unwrap_or_else(|error| panic!("{json}: {error}"));
        assert_eq!(result_json(&data).unwrap().get(), json);
        let more = json.replacen('{', r#"{"more":1,"#, 1);
        assert!(read_result::<T>(&more).is_err(), "{more}");
    }

    #[test]
    fn results_come_back_as_they_were_written() {
        check::<ViewData>(
            r#"{"type":"image","path":"/io/a","content":"Yf8=","mime_type":"image/png","bytes":2}"#,
        );
        check::<ListData>(concat!(
            r#"{"path":"/io","entries":[{"name":"a�","name_b64":"Yf8=","path":"/io/a�","#,
            r#""path_b64":"L2lvL2H/","type":"file","size":1,"modified":"1969-12-31T23:59:59.25Z"},"#,
            r#"{"name":"b","path":"/io/b","type":"directory","size":0,"modified":null}],"#,
            r#""truncated":false}"#,
        ));
        check::<GrepData>(concat!(
            r#"{"path":"/io","lines":[{"name":"a","path":"/io/a","line":3,"text":"b","cut":true},"#,
            r#"{"name":"a","path":"/io/a","line":4,"text":"","context":true}],"#,
            r#""matches":1,"files":2,"truncated":false}"#,
        ));
        check::<ExistsReply>(r#"{"path":"/io/a","exists":false,"type":null}"#);
        check::<RenameReply>(r#"{"from":"/io/a","to":"/io/b"}"#);
    }
}
