//! Checks whether other processes of the sandbox can open the agent's descriptors, by which they
//! could answer in its name. Kernels refuse it for a process that is not dumpable, except gVisor,
//! and so does Landlock.
#![expect(unsafe_code, reason = "a process that only opens a file is made by bare system calls")]

use std::ffi::CString;
use std::io;

use rustix::process::{Pid, WaitOptions, getpid, waitpid};

/// The exit code of the process if it could open the descriptor.
const OPENED: libc::c_int = 42;

/// Starts a process that opens the agent's stdout. The agent must have one thread, and get SIGCHLD.
///
/// # Errors
///
/// If no process can be started.
pub fn are_open_to_others() -> io::Result<bool> {
    let path = CString::new(format!("/proc/{}/fd/1", getpid()))?;
    let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: the child has a copy of this memory. It only makes system calls, with numbers and
    // with a path that was made before, and exits.
    let child = unsafe {
        let signal = libc::SIGCHLD as usize;
        let pid = libc::syscall(libc::SYS_clone, signal, 0_usize, 0_usize, 0_usize, 0_usize);
        if pid == 0 {
            let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0_usize);
            loop {
                libc::syscall(libc::SYS_exit_group, if fd < 0 { 0 } else { OPENED });
            }
        }
        i32::try_from(pid).ok().and_then(Pid::from_raw).filter(|_| pid > 0)
    };
    let child = child.ok_or_else(io::Error::last_os_error)?;
    let ended = waitpid(Some(child), WaitOptions::empty())?;
    Ok(ended.and_then(|(_, status)| status.exit_status()) == Some(OPENED))
}
