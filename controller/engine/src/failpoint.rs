//! Points at which a test can pause this process, to inspect the state or to kill it. Without the feature
//! `failpoints`, which no release enables, they do nothing.

/// How often to look whether to go on.
#[cfg(feature = "failpoints")]
pub const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(5);

/// Waits if the variable `SANDBOX_FAILPOINT` names this point: its value is the path of a file, which is
/// created then, and whose name is the point's, such as `Before(Create)`. It goes on when the test creates
/// a file of this name with `.go`, or when `is_cancelled`.
#[cfg(feature = "failpoints")]
pub fn hold(point: &str, is_cancelled: impl Fn() -> bool) {
    if let Some(path) = reached(point) {
        let go = path.with_extension("go");
        while !is_cancelled() && !go.exists() {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Does nothing.
#[cfg(not(feature = "failpoints"))]
pub fn hold(_: &str, _: impl Fn() -> bool) {}

/// The file of this point, now that it is reached, if the variable names it.
#[cfg(feature = "failpoints")]
pub fn reached(point: &str) -> Option<std::path::PathBuf> {
    let path = std::path::PathBuf::from(std::env::var_os("SANDBOX_FAILPOINT")?);
    if path.file_name()? != point {
        return None;
    }
    std::fs::write(&path, "").expect("the directory of a failpoint's file exists");
    Some(path)
}
