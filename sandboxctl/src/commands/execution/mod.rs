//! Executions of `run` and `exec`, here or on a service: followed to their ends, and shown.
//!
//! Whatever is shown is rendered from events and one document, so that both print the same.

mod follow;
mod local;
pub mod remote;
mod render;
mod tail;

pub use self::local::Local;
pub use self::remote::Remote;
pub use self::render::View;
pub use self::tail::Tail;
use crate::cli::exec::CommandLine;
use crate::input::ScriptSource;

/// A script or a command of a command line.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// Its position on the command line.
    pub index: usize,
    /// What runs.
    pub program: Program<'a>,
}

/// What runs.
#[derive(Clone, Copy)]
pub enum Program<'a> {
    /// A script.
    Script(&'a ScriptSource),
    /// A command.
    Command(&'a CommandLine),
}
