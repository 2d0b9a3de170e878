//! Why a launch failed: the step, on which path, and what the kernel said.

use std::fmt::Display;
use std::io;

use rustix::io::Errno;

/// What the launcher needs of a kernel: `mount_setattr` is the newest of its system calls.
const OLDEST_KERNEL: &str = "5.12";

/// One sentence for the engine.
#[derive(Debug)]
pub struct Failed(pub String);

impl Display for Failed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Names the step that a result belongs to.
pub trait Step<T> {
    /// `step` completes "cannot …".
    fn step(self, step: &str) -> Result<T, Failed>;
    /// The same, followed by a path.
    fn step_at(self, step: &str, path: impl Display) -> Result<T, Failed>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: &str) -> Result<T, Failed> {
        self.map_err(|error| {
            let error = error.into();
            let hint = match error.raw_os_error() {
                Some(errno) if errno == Errno::NOSYS.raw_os_error() => {
                    format!("; the embedded engine needs Linux {OLDEST_KERNEL} or newer")
                }
                _ => String::new(),
            };
            Failed(format!("cannot {step}: {error}{hint}"))
        })
    }

    fn step_at(self, step: &str, path: impl Display) -> Result<T, Failed> {
        self.map_err(Into::into)
            .or_else(|error: io::Error| Err(error).step(&format!("{step} {path}")))
    }
}
