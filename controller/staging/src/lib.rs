//! Io dirs on the host: the directories that are [created] for them, [fresh] ones that end with their
//! sandboxes, and how one changes whole or not at all.
//!
//! A [`Stage`] is a private copy of an io dir, or the upper layer of an overlay of it, beside it on the
//! same filesystem. A run works on that. Then [`Stage::compare`] compares the two, and [`Stage::commit`] moves what changed into the
//! io dir: by a journal, so that a commit that was interrupted is completed by [`Records::recover`], and one
//! that was not begun leaves no trace. Nothing is believed of the run itself: the host compares, by
//! descriptors, and follows no link.

#![forbid(unsafe_code)]

mod changed;
mod commit;
mod compare;
mod copy;
pub mod created;
mod diff;
mod error;
pub mod fresh;
mod journal;
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
