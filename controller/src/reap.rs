//! Second line of defence against leaks: finding and removing what dead controllers left.

use std::time::SystemTime;

use serde::Serialize;

use crate::image::unix_seconds;

/// What is known of a sandbox's container and its controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// Its controller lives.
    Running,
    /// Its controller is dead, or its longest life is over: to be removed.
    Leftover,
    /// Whether its controller lives cannot be told: another user's, or of another machine.
    Unknown,
}

/// A sandbox's container, as `ps` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SandboxSummary {
    /// The sandbox's id.
    pub id: String,
    /// The engine's id of its container.
    pub container: String,
    /// The controller that made it.
    pub instance: String,
    /// What is known of it.
    pub state: SandboxState,
    /// When it was made, in seconds since 1970.
    #[serde(serialize_with = "unix_seconds")]
    pub created: SystemTime,
    /// When its longest possible life ends, in seconds since 1970.
    #[serde(serialize_with = "unix_seconds")]
    pub expires: SystemTime,
}

/// How `gc` works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GcOptions {
    /// Whether anything is removed.
    pub mode: GcMode,
    /// What is removed.
    pub force: Force,
}

/// Whether anything is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GcMode {
    /// Only say what would be.
    DryRun,
    /// Remove.
    #[default]
    Remove,
}

/// What is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Force {
    /// Leftovers.
    #[default]
    No,
    /// Leftovers and what is unknown.
    Yes,
}

/// What `gc` did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct GcReport {
    /// What was removed, or would be.
    pub removed: Vec<SandboxSummary>,
    /// What was left alone.
    pub kept: Vec<SandboxSummary>,
    /// What could not be removed, and why.
    pub failed: Vec<GcFailure>,
}

/// A leftover that could not be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GcFailure {
    /// Which.
    pub sandbox: SandboxSummary,
    /// Why.
    pub reason: String,
}
