//! What bounds the disk space of an io dir.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What bounds the disk space that the programs of a sandbox take in its io dir.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// What enforces it.
    pub bound: DiskBound,
    /// What the io dir is.
    pub backend: DiskBackend,
    /// The bytes that fit in it, or that it may grow by.
    pub bytes: u64,
    /// The same of files and directories.
    pub entries: u64,
    /// Why a private or staged io dir is watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What enforces a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DiskBound {
    /// The kernel, exactly: a write beyond it fails, as on a full disk.
    Kernel,
    /// The controller, which measures the io dir, and ends a command that exceeds it.
    Watched,
}

/// What an io dir is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DiskBackend {
    /// A file system in memory.
    Tmpfs,
    /// An image of a file system on the host's disk.
    Ext4,
    /// A directory of the host.
    Directory,
}
