//! What a command line runs.

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
