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
mod operation;
mod read_file;
#[cfg(test)]
mod tests;
mod write_file;

pub(super) use copy::Copy;
pub(super) use create_directory::CreateDirectory;
pub(super) use delete::Delete;
pub(super) use exists::Exists;
pub(super) use file_info::FileInfo;
pub(super) use filesystem::Filesystem;
pub(super) use glob::Glob;
pub(super) use grep::Grep;
pub(super) use list_directory::ListDirectory;
pub(super) use read_file::ReadFile;
pub(super) use write_file::WriteFile;
