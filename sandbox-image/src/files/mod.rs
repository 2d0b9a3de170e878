//! The files of a sandbox: all file access in the agent goes through here.
//!
//! A path passes four checks: the pure rules ([`sandbox_protocol::path`]), the mount it belongs to
//! ([`mounts`]), the owner's policy ([`policy`]) and the kernel, beneath the mount's descriptor and
//! never through a link ([`sandbox_dirfd`]). Operations that may go anywhere in the container resolve
//! a path's links before that ([`follow`]). No operation resolves a path twice: the file that was
//! opened is the one that is checked and used.
//!
//! Hard links are treated like other files: anyone who can create one could have read or written
//! the file.

mod access;
mod breadth;
mod calls;
mod copy;
mod details;
mod edit;
mod entries;
mod error;
mod expression;
mod follow;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod handle;
mod list;
mod modes;
mod mounts;
mod names;
mod open;
mod open_mode;
mod path_locks;
mod pattern;
mod policy;
mod quota;
mod read;
mod remove;
mod search;
mod selection;
mod temporary;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod top;
mod touched;
mod view;
mod watch;
mod watches;
mod write;

pub use access::{Files, Flush};
pub use error::FileError;
pub use follow::LastLink;
pub use mounts::{MountError, Mounts};
pub use open::Absent;
pub use open_mode::OpenMode;
pub use policy::PathPolicy;
pub use quota::Lifetime;
pub use read::Reading;
pub use temporary::remove_all as remove_temporaries;
pub use view::Viewed;
pub use watch::Watch;
pub use watches::Watches;
