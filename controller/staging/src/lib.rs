//! Io dirs on the host: [created] ones, [fresh] ones that are removed with their sandboxes, [bounded]
//! ones whose size the kernel enforces, [kept] ones that outlive their sandboxes, and atomic changes of one.
//!
//! A [`Stage`] is a private copy of an io dir, or the upper layer of an overlay of it, next to it
//! on the same filesystem. A run works on the stage. Then [`Stage::compare`] compares the two, and
//! [`Stage::commit`] moves the changes into the io dir. A commit has a journal:
//! [`Records::recover`] completes an interrupted one, and one that did not start leaves no trace.
//! The run itself is not trusted: the host compares, by descriptors, and follows no link.

#![deny(unsafe_code)]

pub mod bounded;
mod changed;
mod commit;
mod compare;
mod copy;
pub mod created;
mod diff;
mod error;
pub mod fresh;
mod journal;
pub mod kept;
mod location;
mod manifest;
mod overlay;
mod records;
pub mod snapshot;
mod stage;
mod tree;

pub use commit::Commit;
pub use compare::Comparison;
pub use copy::{CopyBounds, NewDirectory, copy_out};
pub use error::StageError;
pub use records::{ConflictLog, Records};
pub use stage::{Method, Stage};

#[cfg(test)]
mod tests;
