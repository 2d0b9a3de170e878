//! Points of a sandbox's life at which a test can pause the controller, to inspect the state or to
//! kill it. Without the feature `failpoints`, which no release enables, they do nothing.

use crate::step::Step;

/// A point.
#[derive(Debug, Clone, Copy)]
#[expect(dead_code, reason = "they are read as parts of the name")]
pub(crate) enum Point {
    /// Before a call to the engine.
    Before(Step),
    /// After a successful call to the engine.
    After(Step),
    /// The controller has created its lock file.
    Registered,
    /// Io dir and inputs are open: created or spooled.
    Opened,
    /// The agent has answered `hello`, and its mounts are verified.
    Greeted,
    /// A sandbox was started ahead, and is unclaimed.
    Pooled,
    /// A run was requested.
    Requested,
    /// A run was answered.
    Answered,
    /// Artifacts are being copied.
    Copying,
    /// An io dir is being staged.
    Stage(&'static str),
    /// Changes are being committed to the io dir.
    Commit(&'static str),
    /// Everything is removed except the lock file.
    Closed,
}

/// As [`failpoint`], for a thread that may block, or until `is_cancelled`.
#[cfg(feature = "failpoints")]
pub(crate) fn hold(point: Point, is_cancelled: impl Fn() -> bool) {
    sandbox_engine::failpoint::hold(&format!("{point:?}"), is_cancelled);
}

/// Does nothing.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn hold(_: Point, _: impl Fn() -> bool) {}

/// Waits if this is the point at which a test [holds](sandbox_engine::failpoint::hold) this process.
#[cfg(feature = "failpoints")]
pub(crate) async fn failpoint(point: Point) {
    use sandbox_engine::failpoint::{POLL_INTERVAL, reached};
    if let Some(path) = reached(&format!("{point:?}")) {
        let go = path.with_extension("go");
        while !go.exists() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Does nothing.
#[cfg(not(feature = "failpoints"))]
pub(crate) async fn failpoint(_: Point) {}
