//! What the replies to file operations contain, and the [`Page`]s before them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::WireString;
use crate::message::configure::Limits;
use crate::path::MAX_PATH_BYTES;
use crate::time::Timestamp;

/// The content of a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ViewContent {
    /// Lines of text.
    Text(TextWindow),
    /// An image. Its bytes were sent on the stream before the answer.
    Image(ImageContent),
}

/// Lines of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextWindow {
    /// The lines, exactly as they are in the file. The line end of the last one is included, if it
    /// has one and the line is shown in full.
    pub text: String,
    /// The number of the first line shown, from 1.
    pub first_line: u64,
    /// Number of lines shown, including one that is cut.
    pub output_lines: u64,
    /// Number of lines in the file.
    pub total_lines: u64,
    /// Why `text` ends before the file does; null if it does not.
    pub truncated_by: Option<TruncatedBy>,
    /// A hint for readers if the file continues: `[Showing lines 1-2000 of 5000. Use offset=2001 to
    /// continue.]`.
    pub footer: Option<String>,
}

/// Why a text was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum TruncatedBy {
    /// The limit on lines.
    Lines,
    /// [`MAX_VIEW_BYTES`](crate::limits::MAX_VIEW_BYTES).
    Bytes,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageContent {
    /// `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
    pub mime_type: String,
    /// Number of bytes sent.
    pub bytes: u64,
}

/// What to do if the file exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    /// Replace its content.
    Overwrite,
    /// Append to it.
    Append,
    /// Return an error.
    CreateNew,
}

/// `page`: some entries of a list, at most [`LIST_PAGE`](crate::limits::LIST_PAGE), in order: by
/// path, component by component, a directory before its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// The id of the `list` request.
    pub request: u64,
    /// The entries.
    pub entries: Vec<Entry>,
}

/// An entry of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its path relative to the listed directory, `sub/a.csv`; just its name if it is in the
    /// directory itself.
    pub name: WireString,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// When its content was last modified.
    pub modified: Option<Timestamp>,
    /// More, if the request asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<EntryDetails>,
}

/// What a list has of an entry beyond the usual.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryDetails {
    /// Its permissions: the lowest twelve bits of its mode.
    pub permissions: u32,
    /// The uid of its owner.
    pub uid: u32,
    /// The gid of its group.
    pub gid: u32,
    /// The name of its owner in the sandbox, if that is looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The name of its group in the sandbox, if that is looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// What it points to, if it is a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<WireString>,
    /// What `set_metadata` has stored, by `NAMESPACE.KEY`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

impl EntryDetails {
    /// How many bytes it takes in a frame, at most, beyond its numbers.
    pub fn encoded_len(&self) -> usize {
        let text = |text: &str| crate::limits::encoded_len(text) + 4;
        let names = self.owner.iter().chain(&self.group).map(|name| text(name));
        let metadata = self.metadata.iter().map(|(key, value)| text(key) + text(value));
        let target = self.target.as_ref().map_or(0, WireString::encoded_len);
        names.chain(metadata).sum::<usize>() + target
    }
}

crate::words! {
    /// The type of an entry. Links are never followed.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    pub enum EntryKind {
        /// A regular file.
        File = "file",
        /// A directory.
        Directory = "directory",
        /// A symbolic link, wherever it points to.
        Symlink = "symlink",
        /// A FIFO, a socket, a device.
        Other = "other",
    }
}

/// What a list or a search leaves out, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// Why.
    pub by: CutBy,
    /// The first path that it does not have, relative to where it began.
    pub at: WireString,
}

/// Why a list or a search is not complete. The later ones end it, and count where there are several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CutBy {
    /// A name or a path in this directory is too long for any operation.
    Name,
    /// This directory is on another file system, which no operation enters.
    Mount,
    /// What is in this directory is deeper than `limits.list_depth`.
    Depth,
    /// More directories were found than may wait to be searched.
    Directories,
    /// As many files were searched as may be: `limits.list_entries`.
    Files,
    /// The result would be larger than [`MAX_GLOB_BYTES`](crate::limits::MAX_GLOB_BYTES) or
    /// [`MAX_GREP_BYTES`](crate::limits::MAX_GREP_BYTES).
    Bytes,
    /// `limits.operation_timeout_ms` was over.
    Time,
    /// There are more than the request asked for, or than `limits.list_entries`.
    Entries,
}

impl Cut {
    /// Records a path that a result does not have. The first one of a kind stands; of `entries` the last
    /// one, because a list drops what comes last first.
    pub fn add(cut: &mut Option<Self>, by: CutBy, at: &[u8]) {
        if by == CutBy::Entries || cut.as_ref().is_none_or(|cut| cut.by < by) {
            *cut = Some(Self { by, at: WireString::new(at) });
        }
    }

    /// What is left out, and what gives it, where a request asked for at most so many entries.
    pub fn text(&self, limit: Option<u64>, limits: &Limits) -> String {
        let (most, depth) = (limits.list_entries, limits.list_depth);
        // No longer than a path, also from a hostile agent.
        let at = &self.at.as_bytes()[..self.at.as_bytes().len().min(MAX_PATH_BYTES)];
        let at: &[u8] = if at.is_empty() { b"." } else { at };
        let at = String::from_utf8_lossy(at);
        match self.by {
            CutBy::Name => format!("a name or path in '{at}' is too long for any operation"),
            CutBy::Mount => format!("'{at}' is on another file system, which is not entered"),
            CutBy::Depth => format!(
                "what is in '{at}' is deeper than {depth}, and left out (filesystem.max_depth)"
            ),
            CutBy::Directories => format!(
                "directories from '{at}' on were not searched, because there are too many: exclude \
                 some, or search one of them"
            ),
            CutBy::Files => format!(
                "{most} files were searched, and '{at}' was not: exclude directories, or search one \
                 of them"
            ),
            CutBy::Bytes => format!("the limit of a result, 1 MiB, was reached at '{at}'"),
            CutBy::Time => {
                let timeout = limits.operation_timeout_ms;
                format!("the timeout of {timeout} ms was reached at '{at}' (filesystem.timeout)")
            }
            CutBy::Entries => {
                let limit = limit.unwrap_or(most).min(most);
                format!("the limit of {limit} was reached at '{at}'")
            }
        }
    }
}

/// A line that `grep` has found, or one of its context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrepLine {
    /// The path of its file, relative to where the search began; empty for that file itself.
    pub name: WireString,
    /// Its number, from 1.
    pub line: u64,
    /// Its text without the line end, with U+FFFD where it is not UTF-8.
    pub text: String,
    /// The text is cut: the line is longer than
    /// [`MAX_GREP_LINE_BYTES`](crate::limits::MAX_GREP_LINE_BYTES).
    pub cut: bool,
    /// It does not match: it is near one that does.
    pub context: bool,
}

/// Permissions as `ls` shows them, without the type: `rwxr-xr-x`.
pub fn permissions_text(permissions: u32) -> String {
    let bits = [0o4000, 0o2000, 0o1000].into_iter().enumerate().flat_map(|(who, special)| {
        let shift = 6 - 3 * who;
        let has = |bit: u32| permissions >> shift & bit != 0;
        let letter = if who == 2 { 't' } else { 's' };
        let execute = match (has(1), permissions & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        };
        [if has(4) { 'r' } else { '-' }, if has(2) { 'w' } else { '-' }, execute]
    });
    bits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_shown_as_ls_does() {
        for (permissions, text) in [
            (0o644, "rw-r--r--"),
            (0o755, "rwxr-xr-x"),
            (0o000, "---------"),
            (0o7777, "rwsrwsrwt"),
            (0o7000, "--S--S--T"),
            (0o4750, "rwsr-x---"),
        ] {
            assert_eq!(permissions_text(permissions), text);
        }
    }
}
