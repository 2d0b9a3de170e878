//! The file tools. Each is one operation, which `sandbox_filesystem` also supports.
//!
//! If Loopstack's tools return less than the library reports, so does the data.

mod entry;
mod filesystem;
pub(super) mod operation;
mod table;
#[cfg(test)]
mod tests;

pub(super) use filesystem::Filesystem;
pub(super) use table::TOOLS;
