//! Sandboxes that are kept: each has a name or an id, files that outlive its processes, and a
//! generation, which is the number of its container.
//!
//! A use starts a container if it is missing, thaws it if it is paused, and renews the idle limit when it
//! begins and when it ends. Every request in progress is one, and so is a process that was started and has
//! not ended, unless an idle sandbox is frozen with its processes. Reading the state of a sandbox is not a
//! use. Each sandbox has a lock: uses that need a container wait for one launch.

pub(crate) mod lifecycle;
mod observe;
mod operations;
mod owners;
mod ports;
pub(crate) mod prepared;
mod preparing;
pub(crate) mod processes;
pub(crate) mod registry;
mod requests;
mod start_keys;
mod watching;

pub use operations::{FileContent, InSandbox, KeptWriter};
pub use ports::PortStream;
pub use processes::ProcessFilter;
pub use requests::{CreatedSandbox, SandboxQuery};
pub use watching::FileWatch;
