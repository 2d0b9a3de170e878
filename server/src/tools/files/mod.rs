//! The file tools. Each is one operation, which `sandbox_filesystem` also supports.
//!
//! If Loopstack's tools return less than the library reports, so does the data.

mod copy;
mod create_directory;
mod delete;
mod exists;
mod file_info;
mod filesystem;
mod glob;
mod grep;
mod list_directory;
pub(super) mod operation;
mod read_file;
#[cfg(test)]
mod tests;
mod write_file;

use super::table;

pub(super) use filesystem::Filesystem;

macro_rules! file_tools {
    ($($module:ident::$tool:ident,)+) => {
        /// The file tools, in the order of the documentation.
        pub(super) static TOOLS: &[table::Entry] = &[$(table::Entry::of::<$module::$tool>()),+];

        /// Their operations, in the same order.
        static OPERATIONS: &[filesystem::Entry] =
            &[$(filesystem::Entry::of::<$module::$tool>()),+];
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
