//! Sandboxes that are kept: each has a name or an id, files that outlive its processes, and a
//! generation, which is the number of its container.
//!
//! A use starts a container if it is missing, and renews the idle limit when it begins and when it
//! ends. Reading the state of a sandbox is not a use. Each sandbox has a lock: uses that need a
//! container wait for one launch.

pub(crate) mod lifecycle;
mod operations;
pub(crate) mod registry;
mod requests;

pub use operations::{InSandbox, KeptReader, KeptWriter};
pub use requests::CreatedSandbox;
