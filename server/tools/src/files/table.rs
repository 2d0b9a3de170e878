//! The table of the file tools.

use sandbox_api::files::{EntryKind, time_text};
use sandbox_api::operation::{self, List, Mkdir, Read, Remove, Stat, Write};
use sandbox_controller::{Error, Sandbox};
use sandbox_protocol::WireString;
use sandbox_protocol::names::describe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::entry;
use super::operation::{ContentEncoding, EntryType, FileTool, OperationOutput};
use crate::args::yes;
use crate::entry::Entry;
use crate::tool::arguments;

/// A tool a row: its name, its operation's name, whether it changes files, its description; its arguments,
/// beginning with the path; its data; what else it has; and how it is performed.
macro_rules! file_tools {
    ($(
        $tool:ident $name:literal $operation:literal $changes:literal $description:literal
        $args:ident($path:literal $(= $default:literal)?) {
            $($(#[$attribute:meta])* $argument:ident: $type:ty,)*
        }
        $data:ident { $($(#[$meta:meta])* $member:ident: $kind:ty,)+ }
        $({ $($more:item)+ })?
        |$sandbox:ident, $given:ident| $perform:block
    )+) => {
        $(
            pub(crate) struct $tool;

            #[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
            #[serde(rename_all = "camelCase", deny_unknown_fields)]
            pub(crate) struct $args {
                /// The sandbox, by the name that sandbox_init gave it
                pub container_id: String,
                #[doc = $path]
                $(#[serde(default = $default)])?
                #[schemars(schema_with = "super::operation::path_schema")]
                pub path: WireString,
                $($(#[$attribute])* pub $argument: $type,)*
            }

            arguments!($args);

            #[derive(Debug, Serialize, JsonSchema)]
            #[serde(rename_all = "camelCase", deny_unknown_fields)]
            #[schemars(transform = describe)]
            pub(crate) struct $data { $($(#[$meta])* pub $member: $kind,)+ }

            impl FileTool for $tool {
                const NAME: &'static str = $name;
                const DESCRIPTION: &'static str = $description;
                const OPERATION: &'static str = $operation;
                const CHANGES_FILES: bool = $changes;
                type Args = $args;
                type Data = $data;

                fn path(args: &$args) -> &[u8] {
                    args.path.as_bytes()
                }

                $($($more)+)?

                async fn perform(
                    $sandbox: &Sandbox,
                    $given: $args,
                ) -> Result<OperationOutput<$data>, Error> $perform
            }
        )+

        /// The file tools, in the order of the documentation.
        pub(crate) static TOOLS: &[Entry] = &[$(Entry::of::<$tool>()),+];

        /// Their operations, in the same order.
        pub(super) static OPERATIONS: &[entry::Entry] = &[$(entry::Entry::of::<$tool>()),+];
    };
}

file_tools! {
    ReadFile "sandbox_read_file" "read" false
        "Read a file, as text or as base64."
    ReadFileArgs("The file, absolute or relative to the mounted directory") {
        /// How the content is given
        #[serde(default)]
        #[schemars(schema_with = "super::operation::given_encoding")]
        encoding: ContentEncoding,
        /// Bytes to leave out at the start
        #[serde(default)]
        offset: u64,
        /// Bytes to read at most; the whole file by default
        #[serde(default)]
        limit: Option<u64>,
    }
    ReadFileData {
        /// The content, with nothing added and nothing left out
        content: String,
        /// How it is given
        encoding: ContentEncoding,
    }
    {
        fn data_bytes(args: &ReadFileArgs, max_file_size: u64) -> Option<u64> {
            Some(args.limit.map_or(max_file_size, |limit| limit.min(max_file_size)))
        }
    }
    |sandbox, args| {
        let ReadFileArgs { path, encoding, offset, limit, .. } = args;
        let read = sandbox.read(Read { path, offset, limit }, Some(encoding.into())).await?;
        Ok(ReadFileData { content: read.content, encoding }.into())
    }

    WriteFile "sandbox_write_file" "write" true
        "Write a whole file. Concurrent readers see the old content or the new one."
    WriteFileArgs("The file, absolute or relative to the mounted directory; it is overwritten as a whole") {
        /// The content
        content: String,
        /// How the content is given
        #[serde(default)]
        #[schemars(schema_with = "super::operation::given_encoding")]
        encoding: ContentEncoding,
        /// Make the directories above it that are missing
        #[serde(default = "yes")]
        create_parent_dirs: bool,
    }
    WriteFileData {
        /// The file, absolute
        path: WireString,
        /// Its bytes
        bytes_written: u64,
    }
    |sandbox, args| {
        let write = Write { parents: args.create_parent_dirs, ..Write::new(args.path) };
        let written = sandbox.write_text(write, &args.content, Some(args.encoding.into())).await?;
        let bytes_written = written.bytes_written;
        let data = WriteFileData { path: written.path, bytes_written };
        Ok(OperationOutput { bytes_written: Some(bytes_written), ..data.into() })
    }

    ListDirectory "sandbox_list_directory" "list" false
        "List a directory, sorted by path."
    ListDirectoryArgs("The directory, absolute or relative to the mounted one") {
        /// List what is in its directories too
        #[serde(default)]
        recursive: bool,
        /// Entries to list at most; 10,000 by default
        #[serde(default)]
        limit: Option<u64>,
        /// Levels to list at most where it is recursive; 10 by default
        #[serde(default)]
        max_depth: Option<u64>,
    }
    ListDirectoryData {
        /// The directory, absolute
        path: WireString,
        /// What is in it, sorted by path; `truncated` in the metadata says whether there is more
        entries: Vec<EntryData>,
    }
    |sandbox, args| {
        let ListDirectoryArgs { path, recursive, limit, max_depth, .. } = args;
        let list = List { recursive, max_depth, limit, ..List::new(path) };
        let list = sandbox.list(list).await?;
        let items = list.entries.len() as u64;
        let entries = list.entries.into_iter().map(|entry| EntryData {
            name: entry.name,
            r#type: entry.kind.into(),
            size: entry.size,
            path: entry.path,
        });
        let data = ListDirectoryData { path: list.path, entries: entries.collect() };
        let (truncated, note) = (Some(list.truncated), list.note);
        Ok(OperationOutput { truncated, items: Some(items), note, ..data.into() })
    }

    CreateDirectory "sandbox_create_directory" "createDir" true
        "Create a directory; an existing one is not an error."
    CreateDirectoryArgs("The directory, absolute or relative to the mounted one") {
        /// Make the directories above it that are missing
        #[serde(default = "yes")]
        recursive: bool,
    }
    CreateDirectoryData {
        /// The directory, absolute
        path: WireString,
        /// The directory is there now; false only where it was there before and recursive was false
        created: bool,
    }
    |sandbox, args| {
        let parents = args.recursive;
        let made = sandbox.call(Mkdir { path: args.path, parents }).await?;
        // As `mkdir -p` does.
        Ok(CreateDirectoryData { path: made.path, created: made.created || parents }.into())
    }

    Delete "sandbox_delete" "delete" true
        "Delete a file or a directory."
    DeleteArgs("The file or directory, absolute or relative to the mounted directory") {
        /// Delete a directory with all that is in it
        #[serde(default)]
        recursive: bool,
        /// Succeed where nothing is there
        #[serde(default)]
        force: bool,
    }
    DeleteData {
        /// The path, absolute
        path: WireString,
        /// Nothing is there now; with force also where nothing was there before
        deleted: bool,
    }
    |sandbox, args| {
        let DeleteArgs { path, recursive, force, .. } = args;
        let removed = sandbox.call(Remove { path, recursive, force }).await?;
        // Like `rm -f`; a path that does not exist is an error without force.
        let data = DeleteData { path: removed.path, deleted: true };
        Ok(OperationOutput { items: Some(removed.entries), ..data.into() })
    }

    Exists "sandbox_exists" "exists" false
        "Say whether something is at a path, and what it is."
    ExistsArgs("The path, absolute or relative to the mounted directory") {}
    ExistsData {
        /// The path, absolute
        path: WireString,
        /// Something is there
        exists: bool,
        /// What it is; null where nothing is there
        r#type: Option<EntryType>,
    }
    |sandbox, args| {
        let found = sandbox.call(operation::Exists { path: args.path }).await?;
        let r#type = found.kind.map(EntryType::from);
        Ok(ExistsData { path: found.path, exists: found.exists, r#type }.into())
    }

    FileInfo "sandbox_file_info" "info" false
        "Describe a file or a directory: size, permissions, owner, times."
    FileInfoArgs("The file or directory, absolute or relative to the mounted directory") {}
    FileInfoData {
        /// The path, absolute
        path: WireString,
        /// Its last part
        name: WireString,
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
    |sandbox, args| {
        let stat = sandbox.stat(Stat::new(args.path)).await?;
        // The last component of a normalised path.
        let name = stat.path.as_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        Ok(FileInfoData {
            name: name.into(),
            path: stat.path,
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

    Glob "sandbox_glob" "glob" false
        "Find files and directories by a pattern of their paths."
    GlobArgs("The directory, absolute or relative to the mounted one, which is the default" = "super::operation::here") {
        /// What paths below it match: *.csv, src/**/*.rs, {a,b}/[0-9]?; * and ? match within a name, **
        /// any directories. It may be absolute
        pattern: String,
        /// Paths to leave out: patterns of names, or with a slash of paths as the pattern begins, such as
        /// node_modules and **/target/**
        #[serde(default)]
        exclude: Vec<String>,
        /// Match names that begin with a dot too
        #[serde(default)]
        hidden: bool,
        /// Paths to return at most; 10,000 by default
        #[serde(default)]
        limit: Option<u64>,
    }
    GlobData {
        /// The paths, sorted; `truncated` in the metadata says whether there is more
        matches: Vec<MatchData>,
    }
    {
        fn used_path(args: &GlobArgs) -> &[u8] {
            // An absolute pattern has a directory of its own: the mounted one contains it.
            if args.pattern.starts_with(['/', '~']) { b"." } else { Self::path(args) }
        }
    }
    |sandbox, args| {
        let GlobArgs { path, pattern, exclude, hidden, limit, .. } = args;
        let glob =
            operation::Glob { path, exclude, hidden, limit, ..operation::Glob::new(pattern) };
        let found = sandbox.glob(glob).await?;
        let (items, truncated) = (Some(found.matches.len() as u64), Some(found.truncated));
        let matches =
            found.matches.into_iter().map(|found| MatchData { path: found.path }).collect();
        let note = found.note;
        Ok(OperationOutput { truncated, items, note, ..GlobData { matches }.into() })
    }

    Grep "sandbox_grep" "grep" false
        "Find lines in files by a regular expression."
    GrepArgs("The file or directory, absolute or relative to the mounted directory, which is the default" = "super::operation::here") {
        /// The regular expression that lines match, without look-around and back-references
        pattern: String,
        /// Only files whose name matches this, such as *.rs; with a slash, whose path below the directory
        /// does; with ! before it, all others
        #[serde(default)]
        glob: Option<String>,
        /// Files and directories to leave out: patterns of names, or with a slash of paths below the
        /// directory, such as node_modules and **/target/**
        #[serde(default)]
        exclude: Vec<String>,
        /// Lines of context on each side of a match, at most 100
        #[serde(default)]
        context: u64,
        /// Ignore case
        #[serde(default)]
        ignore_case: bool,
        /// Search files and directories whose names begin with a dot too, without those of version control
        #[serde(default)]
        hidden: bool,
        /// Matching lines to return at most; 10,000 by default
        #[serde(default)]
        limit: Option<u64>,
    }
    GrepData {
        /// The lines, by file and number; `truncated` in the metadata says whether there is more
        lines: Vec<LineData>,
        /// The number of lines that match
        matches: u64,
        /// The number of files that were searched; what is not text is searched up to its first NUL
        files: u64,
    }
    |sandbox, args| {
        let grep = operation::Grep {
            path: args.path,
            glob: args.glob,
            exclude: args.exclude,
            context: args.context,
            ignore_case: args.ignore_case,
            hidden: args.hidden,
            limit: args.limit,
            ..operation::Grep::new(args.pattern)
        };
        let found = sandbox.grep(grep).await?;
        let (items, truncated) = (Some(found.matches), Some(found.truncated));
        let lines = found.lines.into_iter().map(|line| LineData {
            path: line.path,
            line: line.line,
            text: line.text,
            context: line.context,
        });
        let data = GrepData { lines: lines.collect(), matches: found.matches, files: found.files };
        Ok(OperationOutput { truncated, items, note: found.note, ..data.into() })
    }

    Copy "sandbox_copy" "copy" true
        "Copy a file, or a directory with recursive."
    CopyArgs("The file or directory to copy, absolute or relative to the mounted directory") {
        /// The path of the copy, absolute or relative to the mounted directory
        #[schemars(schema_with = "super::operation::path_schema")]
        destination: WireString,
        /// Copy a directory with all that is in it
        #[serde(default)]
        recursive: bool,
        /// Replace existing files, and copy a directory into an existing one
        #[serde(default)]
        overwrite: bool,
    }
    CopyData {
        /// The source, absolute
        path: WireString,
        /// The copy, absolute
        destination: WireString,
        /// The number of files and directories that were copied
        entries: u64,
        /// The number of bytes that were copied
        bytes: u64,
    }
    {
        fn used_path(_args: &CopyArgs) -> &[u8] {
            // The mounted directory contains the source and the copy.
            b"."
        }
    }
    |sandbox, args| {
        let CopyArgs { path: from, destination: to, recursive, overwrite, .. } = args;
        let copied = sandbox.call(operation::Copy { from, to, recursive, overwrite }).await?;
        let (entries, bytes) = (copied.entries, copied.bytes);
        let data = CopyData { path: copied.from, destination: copied.to, entries, bytes };
        Ok(OperationOutput { bytes_written: Some(bytes), items: Some(entries), ..data.into() })
    }
}

/// An entry of a directory
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline, transform = describe)]
pub(crate) struct EntryData {
    /// The last part of its path
    name: WireString,
    /// What it is
    r#type: EntryType,
    /// Its size in bytes
    size: u64,
    /// Its path, absolute
    path: WireString,
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

/// A path that matches
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline, transform = describe)]
pub(crate) struct MatchData {
    /// The path, absolute
    path: WireString,
}

/// A line of a file
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline, transform = describe)]
pub(crate) struct LineData {
    /// The file, absolute
    path: WireString,
    /// Its number, from 1
    line: u64,
    /// Its text, without the line end; at most 2 KiB
    text: String,
    /// It does not match: it is near a line that does
    context: bool,
}
