//! File access by directory descriptors, for the agent and for the host: opening paths beneath a
//! directory, the identity of files, private directories, and random names.

#![forbid(unsafe_code)]

mod identity;
mod private_dir;
mod random;
mod remove_tree;
mod resolve;

pub use identity::Identity;
pub use private_dir::create_private_dir;
pub use random::{hex, random_hex};
pub use remove_tree::remove_tree;
pub use resolve::{Directory, Resolver, Root, again, probe, retry, split};
