//! Execution of scripts and commands in a sandbox: their supervision and their outcomes.

pub(crate) mod command;
pub(crate) mod driver;
pub(crate) mod judge;
pub(crate) mod script;
pub(crate) mod supervisor;
