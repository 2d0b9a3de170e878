//! The file tools. Each is one operation, which `sandbox_filesystem` also supports.
//!
//! If Loopstack's tools return less than the library reports, so does the data.

mod copy;
mod create_directory;
mod delete;
mod entry;
mod exists;
mod file_info;
mod filesystem;
mod glob;
mod grep;
mod list_directory;
pub(super) mod operation;
mod read_file;
mod table;
#[cfg(test)]
mod tests;
mod write_file;

pub(super) use filesystem::Filesystem;
pub(super) use table::TOOLS;
