//! File operations: one table of their requests and replies.
//!
//! A request is the same struct in a library call, in the JSON of the API and on the wire. A path is
//! written as a script writes it: relative to the working directory, `~/…`, or absolute under a mount. A
//! reply contains the normalised guest path.
//!
//! Content is bytes and is sent on a stream, whose number is in the request's envelope. The controller
//! decides on its text encoding; only [`View`] and [`Edit`] require UTF-8 themselves.

mod results;

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

pub use self::results::{
    Cut, CutBy, Entry, EntryDetails, EntryKind, GrepLine, ImageContent, Page, TextWindow,
    TruncatedBy, ViewContent, WriteMode, permissions_text,
};
use crate::WireString;
pub use crate::limits::{MAX_METADATA_BYTES, MAX_METADATA_KEYS};
use crate::path::{MAX_PATH_BYTES, join_written, split_glob};
pub use crate::time::Timestamp;

/// The direction of the stream that an operation opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To the controller.
    Out,
    /// To the agent.
    In,
}

/// What the table says of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trait {
    /// It opens a stream to the controller.
    Out,
    /// It opens a stream to the agent.
    In,
    /// It changes files.
    Changes,
    /// It may make what is stored larger: a service refuses it where the quota or the disk has no room.
    Stores,
}

/// A path, and the second one that some operations have.
pub type Paths<'a> = (&'a WireString, Option<&'a WireString>);

/// A request that is performed on files.
pub trait FileOperation: Into<Operation> {
    /// Its name.
    const NAME: &'static str;
    /// The type of the agent's answer.
    type Reply: FileReply + Send + 'static;

    /// The paths that it names, as they are written.
    fn paths(&self) -> Paths<'_>;
}

/// An operation whose reply, once it is verified, is its result.
pub trait DirectOperation: FileOperation {}

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

/// How much operations read, wrote or touched, by their results: a result a row.
#[macro_export]
macro_rules! operation_stats {
    ($($result:ty: $($figure:ident = $holder:expr),*;)+) => {$(
        impl $crate::operation::OperationStats for $result {
            $(fn $figure(&self) -> Option<u64> {
                let figure: fn(&Self) -> u64 = $holder;
                Some(figure(self))
            })*
        }
    )+};
}

/// The reply to a file operation.
pub trait FileReply: OperationStats + Serialize + DeserializeOwned {
    /// The paths that it is about, normalised.
    fn paths(&self) -> Paths<'_>;
    /// Gives it these paths, one for each that it has.
    fn set_paths(&mut self, paths: &mut dyn Iterator<Item = WireString>);

    /// Whether its members agree with each other.
    fn is_consistent(&self) -> bool {
        true
    }
}

/// An operation a row: its word, its request, its `Trait`s, and which members are paths; `DirectOperation` if
/// its verified reply is its result. The members of a request are first those that are required, then, after a
/// semicolon, those with a default: the value, and for serde the function that gives it, which an `Option` does not
/// need. A reply with a second name is public under that name. `has` is its `OperationStats`, and `holds` what is
/// true of it if its members agree.
macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        $word:literal $request:ident [$($trait:ident)*] ($path:ident $(, $to:ident)?) $($direct:ident)? {
            $($(#[$required_doc:meta])* $required:ident: $required_kind:ty),*;
            $($(#[$option_doc:meta])* $option:ident: $option_kind:ty = $value:expr $(=> $default:literal)?,)*
        }
        $reply:ident $(as $public:literal)? ($reply_path:ident $(, $reply_to:ident)?) {
            $($(#[$member_doc:meta])* $member:ident: $member_kind:ty,)*
        }
        $(has $($figure:ident = $holder:expr),+;)?
        $(holds $holds:expr;)?
    )+) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
            #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
            #[serde(deny_unknown_fields)]
            pub struct $request {
                $($(#[$required_doc])* pub $required: $required_kind,)*
                $($(#[$option_doc])* $(#[serde(default = $default)])? pub $option: $option_kind,)*
            }

            impl $request {
                /// With the defaults of what is not given.
                pub fn new($($required: impl Into<$required_kind>),*) -> Self {
                    Self { $($required: $required.into(),)* $($option: $value,)* }
                }
            }

            #[doc = concat!("The result of `", $word, "`.")]
            #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
            $(
                #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
                #[cfg_attr(feature = "schema", schemars(transform = crate::names::describe))]
                #[serde(rename = $public)]
            )?
            #[serde(deny_unknown_fields)]
            pub struct $reply {
                $($(#[$member_doc])* pub $member: $member_kind,)*
            }

            operation_stats! { $reply: $($($figure = $holder),+)?; }

            impl FileReply for $reply {
                fn paths(&self) -> Paths<'_> {
                    (&self.$reply_path, None$(.or(Some(&self.$reply_to)))?)
                }

                fn set_paths(&mut self, paths: &mut dyn Iterator<Item = WireString>) {
                    let named = [&mut self.$reply_path $(, &mut self.$reply_to)?];
                    named.into_iter().zip(paths).for_each(|(named, path)| *named = path);
                }

                $(
                    fn is_consistent(&self) -> bool {
                        let holds: fn(&Self) -> bool = $holds;
                        holds(self)
                    }
                )?
            }

            impl FileOperation for $request {
                const NAME: &'static str = $word;
                type Reply = $reply;

                fn paths(&self) -> Paths<'_> {
                    (&self.$path, None$(.or(Some(&self.$to)))?)
                }
            }

            $(impl $direct for $request {})?

            impl From<$request> for Operation {
                fn from(request: $request) -> Self { Self::$request(request) }
            }

            impl From<$reply> for OperationReply {
                fn from(reply: $reply) -> Self { Self::$request(reply) }
            }
        )+

        /// A file operation with all of its options.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(tag = "operation")]
        pub enum Operation {
            $($(#[$doc])* #[serde(rename = $word)] $request($request),)+
        }

        /// The reply to any of them.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        #[serde(untagged)]
        pub enum OperationReply {
            $(#[doc = concat!("To `", $word, "`.")] $request($reply),)+
        }

        impl OperationReply {
            /// Gives it these paths, one for each that it has.
            pub fn set_paths(&mut self, paths: &mut dyn Iterator<Item = WireString>) {
                match self { $(Self::$request(reply) => reply.set_paths(paths),)+ }
            }
        }

        $crate::words! {
            /// The name of a file operation.
            pub enum OperationName { $($(#[$doc])* $request = $word,)+ }
        }

        /// Reads an answer as the reply to each operation.
        #[cfg(any(test, fuzzing))]
        pub(crate) fn read_replies(raw: &RawValue) {
            $(crate::fuzz::reply::<$reply>(raw);)+
        }

        impl Operation {
            /// The names of all of them.
            pub const NAMES: &[&str] = &[$($word),+];

            /// Its name.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$request(_) => $word,)+ }
            }

            /// The paths that it names, as they are written.
            pub fn paths(&self) -> Paths<'_> {
                match self { $(Self::$request(request) => request.paths(),)+ }
            }

            const fn traits(&self) -> &'static [Trait] {
                match self { $(Self::$request(_) => &[$(Trait::$trait),*],)+ }
            }

            /// Reads the options of the operation with this name; `None` if no operation has it.
            ///
            /// # Errors
            ///
            /// If an option is missing, unknown or of another type.
            pub fn decode<'de, D: Deserializer<'de>>(
                name: &str,
                options: D,
            ) -> Option<Result<Self, D::Error>> {
                Some(match name {
                    $($word => $request::deserialize(options).map(Self::$request),)+
                    _ => return None,
                })
            }

            pub(crate) fn options(&self) -> Result<Box<RawValue>, serde_json::Error> {
                match self { $(Self::$request(request) => serde_json::value::to_raw_value(request),)+ }
            }
        }
    };
}

operations! {
    /// Reads a file, or a range of it, as text in an encoding.
    "read" Read [Out] (path) {
        /// The file.
        path: WireString;
        /// The offset of the first byte.
        offset: u64 = 0 => "u64::default",
        /// The maximum number of bytes.
        limit: Option<u64> = None,
    }
    ReadReply (path) {
        /// The file.
        path: WireString,
        /// Number of bytes sent. Less than was there at first only if the file has shrunk.
        bytes: u64,
        /// The size of the whole file when it was opened.
        size: u64,
    }

    /// Returns a range of a file for people and models.
    "view" View [Out] (path) {
        /// The file.
        path: WireString;
        /// The lines.
        lines: ViewLines = ViewLines::default() => "ViewLines::default",
    }
    ViewReply (path) {
        /// The file.
        path: WireString,
        /// The content. The bytes of an image were sent on the stream.
        content: ViewContent,
    }

    /// Writes a file completely, or not at all.
    "write" Write [In Changes Stores] (path) {
        /// The file.
        path: WireString;
        /// What happens to an existing file.
        mode: WriteMode = WriteMode::Overwrite => "overwrite",
        /// Whether to create missing parent directories.
        parents: bool = true => "yes",
        /// Whether every reader sees either the old file or the new one whole.
        atomic: bool = true => "yes",
        /// The permissions of a file that is created, such as 0o640; an existing one keeps its own.
        #[serde(skip_serializing_if = "Option::is_none")]
        permissions: Option<u32> = None,
    }
    WriteReply as "WriteData" (path) {
        /// The file.
        path: WireString,
        /// The size of the content in bytes.
        bytes_written: u64,
        /// Whether the file did not exist before.
        created: bool,
    }
    has bytes = |reply| reply.bytes_written;

    /// Replaces text that occurs in a file exactly `count` times.
    "edit" Edit [Changes Stores] (path) DirectOperation {
        /// The file.
        path: WireString,
        /// The text to replace.
        old: String,
        /// The replacement.
        new: String;
        /// The expected number of occurrences.
        count: NonZeroU64 = NonZeroU64::MIN => "once",
    }
    EditReply as "EditData" (path) {
        /// The file.
        path: WireString,
        /// The number of replacements.
        replacements: u64,
    }
    has items = |reply| reply.replacements;

    /// Lists a directory.
    "list" List [] (path) {
        /// The directory.
        #[serde(default = "here")]
        path: WireString;
        /// Whether to descend into subdirectories.
        recursive: bool = false => "bool::default",
        /// The maximum depth.
        max_depth: Option<u64> = None,
        /// The maximum number of entries.
        limit: Option<u64> = None,
        /// Whether each entry has the details that `stat` gives.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        details: bool = false => "bool::default",
    }
    ListReply (path) {
        /// The directory.
        path: WireString,
        /// Number of entries in the pages.
        entries: u64,
        /// Why the list is not complete; null if it is.
        cut: Option<Cut>,
    }

    /// Finds paths by a pattern.
    "glob" Glob [] (path) {
        /// The pattern, relative to the directory.
        pattern: String;
        /// The directory.
        path: WireString = here() => "here",
        /// Paths to leave out: globs of names, or with a slash of paths as they are returned, such as
        /// `node_modules` and `**/target/**`.
        exclude: Vec<String> = Vec::new() => "Vec::<String>::default",
        /// More globs: which of the paths, and after `!` which not.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[cfg_attr(feature = "schema", schemars(skip))]
        globs: Vec<String> = Vec::new() => "Vec::<String>::default",
        /// Whether names that begin with a dot match where the pattern has no such name.
        hidden: bool = false => "bool::default",
        /// The maximum number of paths.
        limit: Option<u64> = None,
    }
    GlobReply (path) {
        /// The directory where the search began.
        path: WireString,
        /// Paths relative to it, sorted component by component.
        names: Vec<WireString>,
        /// Why there may be more; null if these are all.
        cut: Option<Cut>,
    }

    /// Finds lines by a regular expression.
    "grep" Grep [] (path) {
        /// The regular expression.
        pattern: String;
        /// The file, or the directory whose files are searched.
        path: WireString = here() => "here",
        /// Only files whose path or name matches this glob; with `!` before it, all others.
        glob: Option<String> = None,
        /// Files and directories to leave out: globs of names, or with a slash of paths below the
        /// directory.
        exclude: Vec<String> = Vec::new() => "Vec::<String>::default",
        /// More globs: which of the files, and after `!` which not.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[cfg_attr(feature = "schema", schemars(skip))]
        globs: Vec<String> = Vec::new() => "Vec::<String>::default",
        /// The number of lines of context on each side of a match.
        context: u64 = 0 => "u64::default",
        /// Whether to ignore case.
        ignore_case: bool = false => "bool::default",
        /// Whether to search files and directories whose names begin with a dot, without those of version
        /// control.
        hidden: bool = false => "bool::default",
        /// The maximum number of matching lines.
        limit: Option<u64> = None,
    }
    GrepReply (path) {
        /// The path where the search began.
        path: WireString,
        /// The lines, by file and number.
        lines: Vec<GrepLine>,
        /// The number of files that were searched.
        files: u64,
        /// Why there may be more; null if these are all.
        cut: Option<Cut>,
    }

    /// Creates a directory.
    "mkdir" Mkdir [Changes] (path) DirectOperation {
        /// The directory.
        path: WireString;
        /// Whether to create missing parent directories.
        parents: bool = true => "yes",
    }
    MkdirReply as "MkdirData" (path) {
        /// The directory.
        path: WireString,
        /// Whether the directory was created; false if it existed.
        created: bool,
    }

    /// Creates an empty file if there is none, and sets when a file or a directory was last modified.
    "touch" Touch [Changes] (path) DirectOperation {
        /// The file or directory.
        path: WireString;
        /// When it was last modified, in RFC 3339; now if it is absent.
        #[serde(
            serialize_with = "crate::time::serialize_exactly",
            deserialize_with = "crate::time::deserialize"
        )]
        #[cfg_attr(feature = "schema", schemars(with = "Option<crate::time::Rfc3339>", !default))]
        mtime: Option<Timestamp> = None => "Option::<Timestamp>::default",
    }
    TouchReply as "TouchData" (path) {
        /// The file or directory.
        path: WireString,
        /// Whether the file was created; false if the path existed.
        created: bool,
    }

    /// Removes a file or a directory.
    "remove" Remove [Changes] (path) DirectOperation {
        /// The path to remove.
        path: WireString;
        /// Whether to remove a directory with its contents.
        recursive: bool = false => "bool::default",
        /// Whether to ignore a nonexistent path.
        force: bool = false => "bool::default",
    }
    RemoveReply as "RemoveData" (path) {
        /// The removed path.
        path: WireString,
        /// Whether something was removed; false only if `force` is set and nothing existed.
        removed: bool,
        /// The number of removed entries, including the given path itself.
        entries: u64,
    }
    has items = |reply| reply.entries;
    holds |reply| reply.removed == (reply.entries > 0);

    /// Tests whether a path exists.
    "exists" Exists [] (path) DirectOperation {
        /// The path.
        path: WireString;
    }
    ExistsReply as "ExistsData" (path) {
        /// The path.
        path: WireString,
        /// Whether the path exists. A dangling symbolic link exists, as a link.
        exists: bool,
        /// The kind of the entry, if it exists.
        #[serde(rename = "type")]
        kind: Option<EntryKind>,
    }
    holds |reply| reply.exists == reply.kind.is_some();

    /// Returns the metadata of a path.
    "stat" Stat [] (path) {
        /// The path.
        path: WireString;
        /// Whether to follow a link at its end, in a sandbox with `files: all`.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        follow: bool = false => "bool::default",
    }
    StatReply (path) {
        /// The path.
        path: WireString,
        /// Its type.
        #[serde(rename = "type")]
        kind: EntryKind,
        /// Its size in bytes.
        size: u64,
        /// Its permissions: the lowest twelve bits of its mode.
        permissions: u32,
        /// The uid of its owner.
        uid: u32,
        /// The gid of its group.
        gid: u32,
        /// When its content was last modified.
        modified: Option<Timestamp>,
        /// When it was last read, as far as the file system records that.
        accessed: Option<Timestamp>,
        /// When it was created, if the file system records that.
        created: Option<Timestamp>,
        /// The name of its owner in the sandbox, if that is looked up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
        /// The name of its group in the sandbox, if that is looked up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<String>,
        /// What it points to, if it is a link.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<WireString>,
        /// What [`SetMetadata`] has stored, by `NAMESPACE.KEY`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        metadata: BTreeMap<String, String>,
    }

    /// Moves or renames.
    "rename" Rename [Changes] (from, to) DirectOperation {
        /// The old path.
        from: WireString,
        /// The new path.
        to: WireString;
        /// Whether to replace an existing file or directory at the new path.
        overwrite: bool = false => "bool::default",
        /// Whether to create missing parent directories of the new path.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        parents: bool = false => "bool::default",
    }
    RenameReply as "RenameData" (from, to) {
        /// The old path.
        from: WireString,
        /// The new path.
        to: WireString,
    }

    /// Copies a file or a directory.
    "copy" Copy [Changes Stores] (from, to) DirectOperation {
        /// The source.
        from: WireString,
        /// The path of the copy.
        to: WireString;
        /// Whether to copy a directory with its contents.
        recursive: bool = false => "bool::default",
        /// Whether to replace existing files, and to copy a directory into an existing one.
        overwrite: bool = false => "bool::default",
    }
    CopyReply as "CopyData" (from, to) {
        /// The source.
        from: WireString,
        /// The copy.
        to: WireString,
        /// The number of copied files and directories.
        entries: u64,
        /// The number of copied bytes.
        bytes: u64,
    }
    has bytes = |reply| reply.bytes, items = |reply| reply.entries;

    /// Sets the permissions of a file or a directory.
    "chmod" Chmod [Changes] (path) DirectOperation {
        /// The file or directory.
        path: WireString,
        /// The lowest nine bits of its mode, such as 0o640; no others.
        permissions: u32;
        /// Whether to do so for all that is in a directory too, but for links.
        recursive: bool = false => "bool::default",
    }
    ChmodReply as "ChmodData" (path) {
        /// The file or directory.
        path: WireString,
        /// The number of files and directories, including the given path itself.
        entries: u64,
    }
    has items = |reply| reply.entries;

    /// Creates a symbolic link, in a sandbox with `files: all`.
    "symlink" Symlink [Changes] (path) DirectOperation {
        /// The path of the link.
        path: WireString,
        /// What it points to, as it is stored.
        target: WireString;
    }
    SymlinkReply as "SymlinkData" (path) {
        /// The path of the link.
        path: WireString,
    }

    /// Returns what a symbolic link points to, in a sandbox with `files: all`.
    "read_link" ReadLink [] (path) DirectOperation {
        /// The path of the link.
        path: WireString;
    }
    ReadLinkReply as "ReadLinkData" (path) {
        /// The path of the link.
        path: WireString,
        /// What it points to, as it is stored.
        target: WireString,
    }
    holds |reply| reply.target.as_bytes().len() <= MAX_PATH_BYTES;

    /// Replaces the metadata of a file or a directory, in a sandbox with `files: all`.
    "set_metadata" SetMetadata [Changes] (path) DirectOperation {
        /// The file or directory.
        path: WireString,
        /// Values by key: all that there are in the namespace from now on.
        metadata: BTreeMap<String, String>;
        /// The namespace: `sbx` or `e2b`.
        namespace: String = own_namespace() => "own_namespace",
    }
    SetMetadataReply as "SetMetadataData" (path) {
        /// The file or directory.
        path: WireString,
    }
}

/// The lines of a file that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ViewOptions"))]
#[serde(deny_unknown_fields, default)]
pub struct ViewLines {
    /// The first line, counted from 1.
    pub offset: u64,
    /// The maximum number of lines; by default that of a view (2,000 lines, 50 KiB).
    pub limit: Option<u64>,
}

impl Default for ViewLines {
    fn default() -> Self {
        Self { offset: 1, limit: None }
    }
}

const fn yes() -> bool {
    true
}

const fn once() -> NonZeroU64 {
    NonZeroU64::MIN
}

const fn overwrite() -> WriteMode {
    WriteMode::Overwrite
}

fn here() -> WireString {
    ".".into()
}

/// The namespaces of [`SetMetadata`].
pub const METADATA_NAMESPACES: [&str; 2] = ["sbx", "e2b"];

fn own_namespace() -> String {
    METADATA_NAMESPACES[0].to_owned()
}

impl Operation {
    /// The stream that it opens.
    pub fn stream(&self) -> Option<Way> {
        match self.traits() {
            traits if traits.contains(&Trait::Out) => Some(Way::Out),
            traits if traits.contains(&Trait::In) => Some(Way::In),
            _ => None,
        }
    }

    /// Whether it changes files.
    pub fn changes_files(&self) -> bool {
        self.traits().contains(&Trait::Changes)
    }

    /// Whether it may make what is stored larger.
    pub fn stores(&self) -> bool {
        self.traits().contains(&Trait::Stores)
    }
}

impl List {
    /// How deep it goes, where it says so.
    pub const fn depth(&self) -> Option<u64> {
        if self.recursive { self.max_depth } else { Some(1) }
    }
}

impl Glob {
    /// Where the search begins, as it is written; the directory that the pattern names; and the pattern
    /// below that.
    pub fn split(&self) -> (Vec<u8>, &str, &str) {
        let (directory, below) = split_glob(&self.pattern);
        let top = match (directory.as_bytes(), self.path.as_bytes()) {
            ([b'/', ..] | b"~" | [b'~', b'/', ..], _) | ([_, ..], b".") => directory.into(),
            (directory, path) => join_written(path, directory),
        };
        (top, directory, below)
    }

    /// Which of the paths are taken, and after `!` which not.
    pub fn selection(&self) -> Vec<String> {
        selection(&self.globs, None, &self.exclude)
    }
}

impl Grep {
    /// Which of the files are taken, and after `!` which not.
    pub fn selection(&self) -> Vec<String> {
        selection(&self.globs, self.glob.as_ref(), &self.exclude)
    }
}

/// What is excluded may be written with or without `!`.
fn selection(globs: &[String], glob: Option<&String>, exclude: &[String]) -> Vec<String> {
    let exclude = exclude.iter().map(|it| match it.starts_with('!') {
        true => it.clone(),
        false => format!("!{it}"),
    });
    glob.into_iter().chain(globs).cloned().chain(exclude).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_begins_where_its_pattern_has_the_first_special_character() {
        for (path, pattern, top, below) in [
            (".", "*.c", ".", "*.c"),
            (".", "a/b/*.c", "a/b/", "*.c"),
            ("d", "a/*.c", "d/a/", "*.c"),
            ("d", "/in/*", "/in/", "*"),
            ("d", "~/*", "~/", "*"),
            ("d", "~", "~", ""),
        ] {
            let glob = Glob { path: path.into(), ..Glob::new(pattern) };
            let (begin, _, rest) = glob.split();
            assert_eq!((&*String::from_utf8(begin).unwrap(), rest), (top, below), "{pattern}");
        }
    }

    #[test]
    fn what_is_excluded_needs_no_mark() {
        let grep = Grep {
            glob: Some("*.rs".to_owned()),
            exclude: vec!["a".to_owned(), "!b".to_owned()],
            ..Grep::new("x")
        };
        assert_eq!(grep.selection(), ["*.rs", "!a", "!b"]);
    }

    #[test]
    fn an_operation_says_what_it_does() {
        let said = |operation: Operation| {
            (operation.stream(), operation.changes_files(), operation.stores())
        };
        assert_eq!(said(Read::new("a").into()), (Some(Way::Out), false, false));
        assert_eq!(said(Write::new("a").into()), (Some(Way::In), true, true));
        assert_eq!(said(Edit::new("a", "b", "c").into()), (None, true, true));
        assert_eq!(said(Remove::new("a").into()), (None, true, false));
        let rename = Operation::from(Rename::new("a", "b"));
        assert_eq!(rename.paths(), (&"a".into(), Some(&"b".into())));
        assert_eq!(rename.name(), "rename");
    }
}
