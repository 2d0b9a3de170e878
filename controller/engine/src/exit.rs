//! Exit evidence of containers, as reported by the engine.

/// The engine's evidence of a container's exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExitEvidence {
    /// The exit code; `None` if the engine does not report it.
    pub code: Option<i64>,
    /// Whether the kernel killed a process in it because memory ran out. `None` if the engine does
    /// not report it.
    pub oom_killed: Option<bool>,
    /// The engine has killed it, because it saw its processes use more than its memory.
    pub over_memory: bool,
    /// Someone else has removed the container: nothing else is known.
    pub removed: bool,
}

/// 128 + SIGKILL.
pub const KILLED: i64 = 137;
