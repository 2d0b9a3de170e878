//! The tools for files, one operation each, which `sandbox_filesystem` has too.
//!
//! Where Loopstack's tools say less than the library knows, so does the data.

mod create_directory;
mod delete;
mod exists;
mod file_info;
mod filesystem;
mod list_directory;
mod operation;
mod read_file;
#[cfg(test)]
mod tests;
mod write_file;

pub(super) use create_directory::CreateDirectory;
pub(super) use delete::Delete;
pub(super) use exists::Exists;
pub(super) use file_info::FileInfo;
pub(super) use filesystem::Filesystem;
pub(super) use list_directory::ListDirectory;
pub(super) use read_file::ReadFile;
pub(super) use write_file::WriteFile;
