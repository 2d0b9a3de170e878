//! File operations: requests and answers.
//!
//! A path is written as a script writes it: relative to the working directory, `~/…`, or absolute
//! under a mount. An answer contains the normalised guest path. Every option is in its request.
//!
//! Content is bytes and is sent on the stream that the request names. The controller decides on its
//! text encoding; only [`View`] and [`Edit`] require UTF-8 themselves.

use serde::{Deserialize, Serialize};

use super::configure::Limits;
use crate::WireString;
use crate::path::MAX_PATH_BYTES;

/// `read`: the content of a regular file, or a range of it, on `stream`, before the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// The file.
    pub path: WireString,
    /// The offset; past the end of the file nothing is read.
    pub offset: u64,
    /// The most bytes to read; null for all. If there are more than `limits.file_bytes` to send,
    /// the answer is `too_large` and nothing is sent.
    pub limit: Option<u64>,
    /// The stream for the content: a number that is not in use.
    pub stream: u32,
}

/// The agent's answer to `read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadReply {
    /// The file.
    pub path: WireString,
    /// Number of bytes sent. Less than was there at first only if the file has shrunk.
    pub bytes: u64,
    /// The size of the whole file when it was opened.
    pub size: u64,
}

/// `view`: a window of a file for people and models: lines of text, or an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct View {
    /// The file.
    pub path: WireString,
    /// The first line, from 1.
    pub offset: u64,
    /// The number of lines; null for the maximum
    /// ([`MAX_VIEW_LINES`](crate::limits::MAX_VIEW_LINES)).
    pub limit: Option<u64>,
    /// The stream for the bytes of an image: a number that is not in use.
    pub stream: u32,
}

/// The agent's answer to `view`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewReply {
    /// The file.
    pub path: WireString,
    /// The content.
    pub content: ViewContent,
}

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

/// `write`: the content is sent on `stream`. Nothing changes before its last chunk; then the file
/// is written in full, and the answer follows. An error may be answered at any time and ends the
/// stream; so does `cancel`, which leaves everything unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    /// The file.
    pub path: WireString,
    /// What to do if the file exists.
    pub mode: WriteMode,
    /// Whether missing parent directories are created.
    pub parents: bool,
    /// For `overwrite`: replace the old file by a new one, so that every reader sees either the old
    /// or the new content in full. Otherwise the old file is overwritten in place, and keeps its
    /// hard links and its owner. The other two modes ignore this.
    pub atomic: bool,
    /// The stream for the content: a number that is not in use.
    pub stream: u32,
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

/// The agent's answer to `write`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteReply {
    /// The file.
    pub path: WireString,
    /// Size of the content in bytes.
    pub bytes_written: u64,
    /// Whether the file did not exist before.
    pub created: bool,
}

/// `edit`: replaces text in a UTF-8 file. On an error nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The file.
    pub path: WireString,
    /// The text to replace, not empty.
    pub old: String,
    /// The replacement.
    pub new: String,
    /// How often `old` must occur in the file, at least 1: any other number is an error.
    pub count: u64,
}

/// The agent's answer to `edit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditReply {
    /// The file.
    pub path: WireString,
    /// Number of replacements.
    pub replacements: u64,
}

/// `list`: the entries of a directory, in [`Page`]s before the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// The directory.
    pub path: WireString,
    /// The depth: 1 for the directory itself; null for `limits.list_depth`, which is also the
    /// maximum.
    pub max_depth: Option<u64>,
    /// The most entries; null for `limits.list_entries`, which is also the maximum. The first ones
    /// in order are returned.
    pub limit: Option<u64>,
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
}

/// The type of an entry. Links are never followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, wherever it points to.
    Symlink,
    /// A FIFO, a socket, a device.
    Other,
}

impl EntryKind {
    /// The type's name on the wire.
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

/// A timestamp of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timestamp {
    /// Seconds since 1970, UTC.
    pub seconds: i64,
    /// Additional nanoseconds.
    pub nanoseconds: u32,
}

/// The agent's answer to `list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListReply {
    /// The directory.
    pub path: WireString,
    /// Number of entries in the pages.
    pub entries: u64,
    /// Why the list is not complete; null if it is.
    pub cut: Option<Cut>,
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
    #[must_use]
    pub fn text(&self, limit: Option<u64>, limits: &Limits) -> String {
        let (most, depth) = (limits.list_entries, limits.list_depth);
        // No longer than a path, whoever sent it.
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
            CutBy::Entries => {
                let limit = limit.unwrap_or(most).min(most);
                format!("the limit of {limit} was reached at '{at}'")
            }
        }
    }
}

/// `glob`: the paths below a directory that match a pattern. A search goes as deep as paths may be, and
/// visits shallow directories before deep ones: what a limit leaves out is in the deep ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Glob {
    /// The directory. If it does not exist, nothing matches.
    pub path: WireString,
    /// The pattern of paths relative to it: `*` and `?` match within a name, `**` any directories,
    /// and there are `[a-z]`, `{a,b}` and `\`. With a slash at its end it matches directories alone.
    pub pattern: String,
    /// Which of them, as for [`Grep`]; one with a slash is matched with `prefix` and the path.
    pub globs: Vec<String>,
    /// The directory as the caller wrote it; empty for the working directory.
    pub prefix: WireString,
    /// Whether names that begin with a dot match where the pattern has no such name.
    pub hidden: bool,
    /// The most paths; null for `limits.list_entries`, which is also the maximum.
    pub limit: Option<u64>,
}

/// The agent's answer to `glob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlobReply {
    /// The directory.
    pub path: WireString,
    /// Paths relative to the directory, sorted component by component.
    pub names: Vec<WireString>,
    /// Why there may be more; null if these are all.
    pub cut: Option<Cut>,
}

/// `grep`: the lines of files that match a regular expression.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grep {
    /// A file, or a directory whose tree is searched.
    pub path: WireString,
    /// The regular expression, in the syntax of the crate `regex`.
    pub pattern: String,
    /// Which files of the tree: those that match a glob, and none that matches one which begins with
    /// `!`. Without a slash a glob is matched with names, those of directories included where it excludes;
    /// otherwise with relative paths.
    pub globs: Vec<String>,
    /// How many lines before and after a match are returned too.
    pub context: u64,
    /// Whether case is ignored.
    pub ignore_case: bool,
    /// Whether files and directories whose names begin with a dot are searched. Directories of version
    /// control, such as `.git`, are searched only where the search begins in one.
    pub hidden: bool,
    /// The most lines that match; null for `limits.list_entries`, which is also the maximum.
    pub limit: Option<u64>,
}

/// The agent's answer to `grep`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrepReply {
    /// The path where the search began.
    pub path: WireString,
    /// The lines, by file and number.
    pub lines: Vec<GrepLine>,
    /// The number of files that were searched.
    pub files: u64,
    /// Why there may be more; null if these are all.
    pub cut: Option<Cut>,
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

/// `mkdir`: creates a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mkdir {
    /// The directory.
    pub path: WireString,
    /// Whether missing parent directories are created.
    pub parents: bool,
}

/// The agent's answer to `mkdir`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MkdirReply {
    /// The directory.
    pub path: WireString,
    /// False if the directory existed.
    pub created: bool,
}

/// `remove`: removes a file, a symbolic link itself, or an empty directory; with `recursive` a
/// directory with all its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    /// The path to remove.
    pub path: WireString,
    /// Whether a directory that is not empty is removed.
    pub recursive: bool,
    /// Whether a path that does not exist is ignored.
    pub force: bool,
}

/// The agent's answer to `remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveReply {
    /// The path that was removed.
    pub path: WireString,
    /// False only if `force` is set and nothing existed.
    pub removed: bool,
    /// Number of entries removed, including the named one.
    pub entries: u64,
}

/// `exists`: whether a path exists, and its type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exists {
    /// The path.
    pub path: WireString,
}

/// The agent's answer to `exists`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExistsReply {
    /// The path.
    pub path: WireString,
    /// The type, or null if it does not exist. A dangling link exists, as a link.
    #[serde(rename = "type")]
    pub kind: Option<EntryKind>,
}

/// `stat`: the metadata of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stat {
    /// The path.
    pub path: WireString,
}

/// The agent's answer to `stat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatReply {
    /// The path.
    pub path: WireString,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// Its permissions: the lowest twelve bits of its mode.
    pub permissions: u32,
    /// The uid of its owner.
    pub uid: u32,
    /// The gid of its group.
    pub gid: u32,
    /// When its content was last modified.
    pub modified: Option<Timestamp>,
    /// When it was last read, as far as the file system records that.
    pub accessed: Option<Timestamp>,
    /// When it was created, if the file system records that.
    pub created: Option<Timestamp>,
}

/// `rename`: moves or renames within one mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// The old name.
    pub from: WireString,
    /// The new name.
    pub to: WireString,
    /// Whether an existing destination is replaced, as `rename(2)` does it.
    pub overwrite: bool,
}

/// The agent's answer to `rename`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenameReply {
    /// The old name.
    pub from: WireString,
    /// The new name.
    pub to: WireString,
}

/// `copy`: copies a file with its permissions, or with `recursive` a directory tree. Links are not
/// copied: they are an error, before anything is copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Copy {
    /// The source.
    pub from: WireString,
    /// The name of the copy; missing parents are created.
    pub to: WireString,
    /// Whether a directory is copied with its content.
    pub recursive: bool,
    /// Whether existing files are replaced, and a directory is copied into an existing one.
    pub overwrite: bool,
}

/// The agent's answer to `copy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyReply {
    /// The source.
    pub from: WireString,
    /// The copy.
    pub to: WireString,
    /// Number of files and directories copied.
    pub entries: u64,
    /// Number of bytes copied.
    pub bytes: u64,
}

/// The globs of a search: one that includes, or with `!` excludes, and others that exclude, with or
/// without `!`.
#[must_use]
pub fn globs(glob: Option<String>, exclude: Vec<String>) -> Vec<String> {
    let exclude = exclude.into_iter().map(|it| match it.starts_with('!') {
        true => it,
        false => format!("!{it}"),
    });
    glob.into_iter().chain(exclude).collect()
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
