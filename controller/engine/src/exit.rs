//! How containers end, and what they used: as the engine saw it.

use std::time::Duration;

/// What the engine saw of a container's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExitEvidence {
    /// The exit code; `None` where the engine does not tell.
    pub code: Option<i64>,
    /// Whether the kernel killed something in it for want of memory.
    /// `None` where the engine does not tell.
    pub oom_killed: Option<bool>,
    /// Somebody else has removed it: nothing else is known.
    pub removed: bool,
}

/// What a container used in its whole life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Processor time of all that ran in it.
    pub cpu: Duration,
    /// The most memory that its cgroup had at one time, in bytes.
    pub peak_memory: u64,
}

/// 128 + SIGKILL.
pub const KILLED: i64 = 137;
