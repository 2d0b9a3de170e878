//! Executions of `run` and `exec`, here or on a service: followed to their ends, and shown.
//!
//! Whatever is shown is rendered from events and one document, so that both print the same.

mod follow;
mod local;
pub mod remarks;
pub mod remote;
mod render;
mod tail;

pub use self::local::Local;
pub use self::remote::Remote;
pub use self::render::{Console, Job, Program, StdoutState, View};
pub use self::tail::Tail;
