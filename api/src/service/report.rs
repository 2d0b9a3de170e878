//! Files of executions, usage, health, and the end of a service.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::time::Time;
use crate::named::named;

named! {
    /// A file or directory that an execution left.
    pub struct FileEntry {
        /// Relative to the io dir; lossy where it is not UTF-8.
        path / path_b64: "The path's bytes, where they are not UTF-8.",
        /// What it is.
        [serde(rename = "type")]
        kind: FileKind,
        /// The size of a file; 0 for anything else.
        bytes: u64,
        /// When it was last modified; null where that is unknown.
        modified: Option<Time>,
    }
}

/// What a [`FileEntry`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A regular file: the only one that can be read.
    File,
    /// A directory.
    Directory,
    /// A symbolic link. It is never followed.
    Symlink,
    /// A FIFO, a socket or a device.
    Other,
}

/// The files that an execution left, sorted by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileList {
    /// The files and directories.
    pub files: Vec<FileEntry>,
    /// There are more than are listed.
    pub truncated: bool,
}

/// What a subject has used so far, and what it has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UsageTotals {
    /// Executions that ended, ever.
    pub executions: u64,
    /// Their processor time in milliseconds.
    pub cpu_ms: u64,
    /// Their time in milliseconds.
    pub wall_ms: u64,
    /// The bytes that they wrote.
    pub written_bytes: u64,
    /// The bytes of results and files that are kept now.
    pub stored_bytes: u64,
    /// Executions that wait now.
    pub queued: u64,
    /// Executions that run now.
    pub running: u64,
    /// Kept sandboxes that exist now.
    pub sandboxes: u64,
}

/// Whether a service can do its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// Whether all checks pass, and it accepts requests.
    pub ready: bool,
    /// The checks.
    pub checks: Vec<HealthCheck>,
}

/// A part of [`Health`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {
    /// Its name: `accepting`, `engine`, `pool`, `store`.
    pub name: String,
    /// Whether it passes.
    pub ok: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What became of the work of a service that was shut down.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShutdownReport {
    /// Executions that ended before the deadline.
    pub finished: Vec<String>,
    /// Executions that were cancelled at the deadline.
    pub cancelled: Vec<String>,
    /// Executions that wait, and run after the next start.
    pub queued: Vec<String>,
    /// Sandboxes that could not be removed, and why.
    pub left: Vec<String>,
}
