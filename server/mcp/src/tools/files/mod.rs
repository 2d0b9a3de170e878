//! The tools for files: the operations of [`Operation`](sandbox_api::Operation) under the names that
//! agents expect. What they take is what the operations take, and what they give is what the
//! operations give.

mod copy;
mod create_directory;
mod edit_file;
mod glob;
mod grep;
mod list_directory;
mod move_path;
mod operation;
mod read_file;
mod remove;
mod stat;
mod write_file;

pub(super) use copy::Copy;
pub(super) use create_directory::CreateDirectory;
pub(super) use edit_file::EditFile;
pub(super) use glob::Glob;
pub(super) use grep::Grep;
pub(super) use list_directory::ListDirectory;
pub(super) use move_path::Move;
pub(super) use read_file::ReadFile;
pub(super) use remove::Remove;
pub(super) use stat::Stat;
pub(super) use write_file::WriteFile;
