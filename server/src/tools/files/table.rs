//! The table of the file tools.

use super::super::entry::Entry;
use super::{
    copy, create_directory, delete, entry, exists, file_info, glob, grep, list_directory,
    read_file, write_file,
};

macro_rules! file_tools {
    ($($module:ident::$tool:ident,)+) => {
        /// The file tools, in the order of the documentation.
        pub(in crate::tools) static TOOLS: &[Entry] = &[$(Entry::of::<$module::$tool>()),+];

        /// Their operations, in the same order.
        pub(super) static OPERATIONS: &[entry::Entry] =
            &[$(entry::Entry::of::<$module::$tool>()),+];
    };
}

file_tools! {
    read_file::ReadFile,
    write_file::WriteFile,
    list_directory::ListDirectory,
    create_directory::CreateDirectory,
    delete::Delete,
    exists::Exists,
    file_info::FileInfo,
    glob::Glob,
    grep::Grep,
    copy::Copy,
}
