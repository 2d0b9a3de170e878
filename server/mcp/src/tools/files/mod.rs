//! The tools for files: the operations of [`Operation`](sandbox_api::Operation) under the names that
//! agents expect. What they take is what the operations take, and what they give is what the
//! operations give.

mod operation;
mod read_file;

use sandbox_api::Encoding;
use sandbox_api::files::{GlobData, GrepData, ListData, StatData};
use sandbox_api::operation::{
    CopyReply, EditReply, MkdirReply, RemoveReply, RenameReply, TouchReply, WriteReply,
};

use self::operation::FileTool;
pub(super) use self::read_file::ReadFile;
use super::tool::{Entry, Hints};
use crate::paths::name_of;

/// A tool a row: its name, its name for people, its operation and what that gives; what a client may
/// assume of it, and whether it changes which files there are; its description, and what else it has.
macro_rules! file_tools {
    ($(
        $tool:ident $name:literal $title:literal $operation:literal $data:ident
        $hints:expr, $changes_list:literal, $description:literal
        $({ $($more:item)* })?
    )+) => {
        /// In the order of their list.
        pub(super) const TOOLS: &[Entry] = &[$(Entry::of::<$tool>()),+];

        $(
            #[derive(Debug)]
            pub(super) struct $tool;

            impl FileTool for $tool {
                const NAME: &'static str = $name;
                const TITLE: &'static str = $title;
                const DESCRIPTION: &'static str = $description;
                const OPERATION: &'static str = $operation;
                const HINTS: Hints = $hints;
                const CHANGES_LIST: bool = $changes_list;
                type Data = $data;
                $($($more)*)?
            }
        )+
    };
}

file_tools! {
    WriteFile "write_file" "Write a file" "write" WriteReply
        Hints::DESTRUCTIVE, true,
        "Write a whole file: readers see the old content or the new. Missing directories are \
         created. `mode` append adds to its end, create_new refuses an existing file."
    EditFile "edit_file" "Edit a file" "edit" EditReply
        Hints::DESTRUCTIVE, false,
        "Replace text in a file. `old` must occur exactly `count` times (1 by default), or nothing \
         is changed: give enough of its surroundings."
        {
            fn encoding_hint(encoding: Encoding) -> Option<String> {
                Some(format!(
                    "{}, and edit_file takes UTF-8 alone: read_file and write_file with \
                     `encoding: \"{encoding}\"` take all of it",
                    name_of(encoding)
                ))
            }
        }
    ListDirectory "list_directory" "List a directory" "list" ListData
        Hints::READ_ONLY, false,
        "List the entries of a directory, sorted, with types, sizes and times."
    CreateDirectory "create_directory" "Create a directory" "mkdir" MkdirReply
        Hints { is_destructive: false, is_idempotent: true, ..Hints::DESTRUCTIVE }, false,
        "Create a directory, and its missing parents. An existing one is not an error."
    Touch "touch" "Touch a file" "touch" TouchReply
        Hints { is_destructive: false, is_idempotent: true, ..Hints::DESTRUCTIVE }, true,
        "Create an empty file if there is none, and set when a file or directory was last modified."
    Remove "remove" "Remove a file or directory" "remove" RemoveReply
        Hints::DESTRUCTIVE, true,
        "Remove a file, or a directory: an empty one, or with `recursive` one with all that is in it."
    Move "move" "Move or rename" "rename" RenameReply
        Hints::DESTRUCTIVE, true,
        "Move or rename a file or a directory. An existing target is refused without `overwrite`."
    Copy "copy" "Copy" "copy" CopyReply
        Hints::DESTRUCTIVE, true,
        "Copy a file, or with `recursive` a directory. Existing files are refused without \
         `overwrite`."
        {
            const DIRECTORY_HINT: &'static str =
                "`recursive: true` copies a directory with all that is in it";
        }
    Stat "stat" "File information" "stat" StatData
        Hints::READ_ONLY, false,
        "The type, size, permissions, owner and times of a path."
    Glob "glob" "Find files by name" "glob" GlobData
        Hints::READ_ONLY, false,
        "Find paths by a pattern: `*` and `?` match within a name, `**` any directories, and there \
         are [a-z] and {a,b}."
    Grep "grep" "Search in files" "grep" GrepData
        Hints::READ_ONLY, false,
        "Find the lines of files that match a regular expression (Rust's syntax)."
}
