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

/// How often to look whether to go on.
#[cfg(feature = "failpoints")]
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(5);

/// As [`failpoint`], for a thread that may block, or until `is_cancelled`.
#[cfg(feature = "failpoints")]
pub(crate) fn hold(point: Point, is_cancelled: impl Fn() -> bool) {
    if let Some(path) = file_of(point) {
        std::fs::write(&path, "").expect("the directory of a failpoint's file exists");
        let go = path.with_extension("go");
        while !is_cancelled() && !go.exists() {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Does nothing.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn hold(_: Point, _: impl Fn() -> bool) {}

/// Waits if the variable `SANDBOX_FAILPOINT` names this point: its value is the path of a file, which is
/// created then, and whose name is the point's, such as `Before(Create)`. It goes on when the test
/// creates a file of this name with `.go`.
#[cfg(feature = "failpoints")]
pub(crate) async fn failpoint(point: Point) {
    if let Some(path) = file_of(point) {
        std::fs::write(&path, "").expect("the directory of a failpoint's file exists");
        while !path.with_extension("go").exists() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// The file that the variable names, if it names this point.
#[cfg(feature = "failpoints")]
fn file_of(point: Point) -> Option<std::path::PathBuf> {
    let path = std::path::PathBuf::from(std::env::var_os("SANDBOX_FAILPOINT")?);
    let is_named = path.file_name().is_some_and(|name| *name == *format!("{point:?}"));
    is_named.then_some(path)
}

/// Does nothing.
#[cfg(not(feature = "failpoints"))]
pub(crate) async fn failpoint(_: Point) {}
