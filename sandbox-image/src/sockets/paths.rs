//! Paths as the supervisor opens them, and the error of a system call.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// The directory of a thread in `/proc`. The thread id stays valid while its request waits.
pub(super) fn proc_of(thread: u32, name: &str) -> String {
    format!("/proc/{thread}/{name}")
}

/// Opens a path without read access (O_PATH).
pub(super) fn open_path(path: &str) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// The error of the last system call of this thread.
pub(super) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
