//! Files by directory descriptors, for the agent and for the host's side alike: paths opened
//! beneath a directory, the identity of what was opened, directories of one user alone, and names
//! that nobody can guess.

#![forbid(unsafe_code)]

mod identity;
mod private_dir;
mod random;
mod resolve;

pub use identity::Identity;
pub use private_dir::create_private_dir;
pub use random::{hex, random_hex};
pub use resolve::{Directory, Resolver, Root, again, probe, retry, split};
