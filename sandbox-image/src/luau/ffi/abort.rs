//! What keeps a panic from Luau's frames.

/// Ends the process if it is dropped by a panic; see the documentation of [`super`]. A foreign
/// exception (an error of the VM) does not count as panicking.
pub(super) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
