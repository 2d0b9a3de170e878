//! Points of a sandbox's life at which a test can hold the controller, to look at what there is
//! then, and to kill it. Without the feature `failpoints`, which no release has, there are none.

use crate::step::Step;

/// A point.
#[derive(Debug, Clone, Copy)]
#[expect(dead_code, reason = "the step is read as a part of the name")]
pub(crate) enum Point {
    /// Before a call to the engine.
    Before(Step),
    /// After a call to the engine that went well.
    After(Step),
    /// The controller has its lock file.
    Registered,
    /// Io dir and inputs are open: made, and spooled.
    Opened,
    /// The agent has greeted, and its mounts are proved.
    Greeted,
    /// A run was asked for.
    Asked,
    /// A run was answered.
    Answered,
    /// Everything is removed but the lock file.
    Closed,
}

/// Waits for ever where the variable `SANDBOX_FAILPOINT` names this point: it is the path of a
/// file, which is made then, and its name the point's, such as `Before(Create)`.
#[cfg(feature = "failpoints")]
pub(crate) async fn failpoint(point: Point) {
    let Some(path) = std::env::var_os("SANDBOX_FAILPOINT").map(std::path::PathBuf::from) else {
        return;
    };
    if path.file_name().is_some_and(|name| *name == *format!("{point:?}")) {
        std::fs::write(&path, "").expect("whoever names a point has a place for its file");
        std::future::pending::<()>().await;
    }
}

/// Does nothing.
#[cfg(not(feature = "failpoints"))]
pub(crate) async fn failpoint(_: Point) {}
