//! What a sandbox uses now.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::service::Time;

/// What a kept sandbox uses now. Without a container it uses no processor and no memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxStats {
    /// Its processors.
    pub cpu_count: f64,
    /// The share of these that it used since this was last asked for, 0 to 1.
    pub cpu_used_ratio: f64,
    /// Its memory in bytes, without the cache.
    pub memory_bytes: u64,
    /// The most that it may have.
    pub memory_limit: u64,
    /// The cache of files, in bytes.
    pub cache_bytes: u64,
    /// The bytes of its files.
    pub disk_bytes: u64,
    /// The most bytes that one of its commands may write.
    pub disk_limit: u64,
    /// When this was.
    pub at: Time,
}
