//! File operations: requests and answers.
//!
//! A path is written as a script writes one: relative to the working directory, `~/…`, or absolute
//! under a mount. Where its bytes are not UTF-8, `path_b64` has them and `path` is only for people.
//! An answer names the normalised guest path. Every option is in its request.
//!
//! Content is bytes and travels on the stream that the request names. What bytes mean as text is
//! the controller's business; only [`View`] and [`Edit`] take a file for UTF-8 themselves.

use serde::{Deserialize, Serialize};

use crate::Base64;

/// `read`: the content of a regular file, or a range of it, on `stream`, before the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// Where to begin; beyond the end there is nothing.
    pub offset: u64,
    /// How many bytes, at most; null for all. More than `limits.file_bytes` of what is there is
    /// `too_large`, and nothing is sent.
    pub limit: Option<u64>,
    /// The stream for the content: a number that no open stream has.
    pub stream: u32,
}

/// The agent's answer to `read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadReply {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// How many bytes were sent. Fewer than were there at first only where the file has shrunk.
    pub bytes: u64,
    /// The size of the whole file when it was opened.
    pub size: u64,
}

/// `view`: a window of a file for people and models: lines of text, or an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct View {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The first line, from 1.
    pub offset: u64,
    /// How many lines; null for as many as a view may have
    /// ([`MAX_VIEW_LINES`](crate::limits::MAX_VIEW_LINES)).
    pub limit: Option<u64>,
    /// The stream for the bytes of an image: a number that no open stream has.
    pub stream: u32,
}

/// The agent's answer to `view`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewReply {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// What is in it.
    pub content: ViewContent,
}

/// What a view shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ViewContent {
    /// Lines of text.
    Text(TextWindow),
    /// An image, whose bytes came on the stream before the answer.
    Image(ImageContent),
}

/// Lines of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextWindow {
    /// The lines, exactly as they are in the file: the last one's end included, where it has one
    /// and is shown whole.
    pub text: String,
    /// The number of the first line shown, from 1.
    pub first_line: u64,
    /// How many lines are shown, one that is cut included.
    pub output_lines: u64,
    /// How many lines the file has.
    pub total_lines: u64,
    /// Why there is more of the file behind `text`; null where there is none.
    pub truncated_by: Option<TruncatedBy>,
    /// What to tell a reader where there is more: `[Showing lines 1-2000 of 5000. Use offset=2001
    /// to continue.]`.
    pub footer: Option<String>,
}

/// What ended a text before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TruncatedBy {
    /// The number of lines.
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
    /// How many bytes were sent.
    pub bytes: u64,
}

/// `write`: the content comes on `stream`. Nothing changes before its last chunk; then all of it
/// does, and the answer follows. An error may be answered at any time and ends the stream; so does
/// `cancel`, which leaves everything as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// What becomes of a file that is there.
    pub mode: WriteMode,
    /// Whether missing directories on the way are made.
    pub parents: bool,
    /// For `overwrite`: put a new file in the old one's place, so that every reader sees one of
    /// the two whole. Otherwise the old file itself is overwritten, and keeps what hangs on it:
    /// its other names, its owner. The two other modes take no notice.
    pub atomic: bool,
    /// The stream for the content: a number that no open stream has.
    pub stream: u32,
}

/// What becomes of a file that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    /// It is replaced.
    Overwrite,
    /// It grows at its end.
    Append,
    /// It is an error.
    CreateNew,
}

/// The agent's answer to `write`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteReply {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// How many bytes the content had.
    pub bytes_written: u64,
    /// Whether there was no such file before.
    pub created: bool,
}

/// `edit`: replaces text in a UTF-8 file, all of it or, on any error, nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// The text to replace, not empty.
    pub old: String,
    /// What to put there.
    pub new: String,
    /// How often `old` must be in the file, from 1: another number is an error.
    pub count: u64,
}

/// The agent's answer to `edit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditReply {
    /// The file.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// How many were replaced.
    pub replacements: u64,
}

/// `list`: what is in a directory, in [`Page`]s before the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// The directory.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// How deep to look, from 1 for the directory alone; null for as deep as `limits.list_depth`
    /// allows, which also bounds a number.
    pub max_depth: Option<u64>,
    /// How many entries, at most; null for as many as `limits.list_entries` allows, which also
    /// bounds a number. The first ones in order are given.
    pub limit: Option<u64>,
}

/// `page`: some entries of a list, at most [`LIST_PAGE`](crate::limits::LIST_PAGE), in order:
/// by path, component by component, a directory before what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// The id of the `list` that they belong to.
    pub request: u64,
    /// The entries.
    pub entries: Vec<Entry>,
}

/// An entry of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its path below the listed directory, `sub/a.csv`; its name alone where it is in the
    /// directory itself.
    pub name: String,
    /// The bytes of `name`, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_b64: Option<Base64>,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// When its content changed last.
    pub modified: Option<Timestamp>,
}

/// What a name stands for. Links are never followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, wherever it leads.
    Symlink,
    /// A FIFO, a socket, a device.
    Other,
}

impl EntryKind {
    /// The word for it, as on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Other => "other",
        }
    }
}

/// A time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timestamp {
    /// Seconds since 1970, UTC.
    pub seconds: i64,
    /// Nanoseconds beyond them.
    pub nanoseconds: u32,
}

/// The agent's answer to `list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListReply {
    /// The directory.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// How many entries the pages had.
    pub entries: u64,
    /// There are more: beyond the number, or deeper than `limits.list_depth`.
    pub truncated: bool,
}

/// `mkdir`: makes a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mkdir {
    /// The directory.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// Whether missing directories on the way are made.
    pub parents: bool,
}

/// The agent's answer to `mkdir`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MkdirReply {
    /// The directory.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// False where the directory was there.
    pub created: bool,
}

/// `remove`: removes a file, a symbolic link itself, an empty directory; with `recursive` a
/// directory with all that is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    /// What to remove.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// Whether a directory that is not empty goes too.
    pub recursive: bool,
    /// Whether nothing there is no error.
    pub force: bool,
}

/// The agent's answer to `remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveReply {
    /// What was removed.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// False only with `force` and nothing there.
    pub removed: bool,
    /// How many entries went, the named one included.
    pub entries: u64,
}

/// `exists`: whether a name is there, and what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exists {
    /// The name.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
}

/// The agent's answer to `exists`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExistsReply {
    /// The name.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// What is there, or null. A dangling link is there, as a link.
    #[serde(rename = "type")]
    pub kind: Option<EntryKind>,
}

/// `stat`: what is known of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stat {
    /// The name.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
}

/// The agent's answer to `stat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatReply {
    /// The name.
    pub path: String,
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// Its permissions: the lowest twelve bits of its mode.
    pub permissions: u32,
    /// Its owner, by number.
    pub uid: u32,
    /// Its group, by number.
    pub gid: u32,
    /// When its content changed last.
    pub modified: Option<Timestamp>,
    /// When it was read last, as far as the file system keeps that.
    pub accessed: Option<Timestamp>,
    /// When it was made, where the file system keeps that.
    pub created: Option<Timestamp>,
}

/// `rename`: gives a name to what has another one, within one mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// The old name.
    pub from: String,
    /// Its bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_b64: Option<Base64>,
    /// The new name.
    pub to: String,
    /// Its bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_b64: Option<Base64>,
    /// Whether what has the new name already is replaced, as `rename(2)` does it.
    pub overwrite: bool,
}

/// The agent's answer to `rename`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenameReply {
    /// The old name.
    pub from: String,
    /// Its bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_b64: Option<Base64>,
    /// The new name.
    pub to: String,
    /// Its bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_b64: Option<Base64>,
}

/// Permissions as `ls` shows them, without the type: `rwxr-xr-x`.
#[must_use]
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
