//! What runs in a sandbox: scripts and commands, what ends them, and how they ended.

pub(crate) mod command;
pub(crate) mod judge;
pub(crate) mod script;
pub(crate) mod supervisor;
