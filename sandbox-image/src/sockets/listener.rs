//! The kernel's side: commands that wait in `connect` or `setpriority`, by the seccomp listener
//! descriptor.
#![expect(unsafe_code, reason = "nothing safe speaks to a seccomp listener")]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::io::Errno;
use seccompiler::BpfProgram;

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP` (Linux 6.6): the two threads alternate on one CPU.
const SYNC_WAKE_UP: libc::c_ulong = 1;

/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`.
const CONTINUE: u32 = 1;

/// The listener that receives the supervised calls of commands.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// A thread of a command that waits in a call.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The kernel's id of the notification.
    pub id: u64,
    /// The thread.
    pub thread: u32,
    /// The call, by its number.
    pub call: libc::c_long,
    /// The arguments of the call.
    pub args: [u64; 6],
}

/// Installs the filter on this thread and on all that it starts, and returns its listener.
///
/// # Errors
///
/// OS errors, or that a filter with a listener is in force already.
pub fn install(filter: &BpfProgram) -> io::Result<Listener> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).expect("a filter is short"),
        // The two types are those of the kernel.
        filter: filter.as_ptr().cast_mut().cast(),
    };
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // If the kernel supports it (Linux 5.19), only a fatal signal withdraws a call that the agent
    // is handling: any other signal would make it restart, and be answered twice.
    let killable = listener | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let install = |flags: libc::c_ulong| {
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        // SAFETY: the filter lives during the call, which creates a descriptor or fails.
        let fd = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
        match i32::try_from(fd) {
            // SAFETY: it was just created, is closed on exec, and has no other owner.
            Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let fd = match install(killable) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => install(listener)?,
        installed => installed?,
    };
    // SAFETY: the argument is a number. It may fail on a kernel that does not support it.
    _ = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
    Ok(Listener(fd))
}

impl Listener {
    /// Receives the next call, once the descriptor is readable: then it does not wait, and returns
    /// none if the command has ended meanwhile or was interrupted by a signal. Only one thread may
    /// do this.
    pub fn receive(&self) -> Option<Request> {
        // SAFETY: all zeros are a valid value, and what the kernel requires.
        let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: it is our memory, and has the size that is encoded in the request's number.
        let received = unsafe {
            let fd = self.0.as_raw_fd();
            libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification)
        };
        let libc::seccomp_notif { id, pid, data, .. } = notification;
        let call = data.nr.into();
        (received == 0).then_some(Request { id, thread: pid, call, args: data.args })
    }

    /// Whether the call still waits. If so, its thread id has belonged to this thread since the
    /// call came.
    pub fn is_waiting(&self, id: u64) -> bool {
        // SAFETY: the kernel reads the number.
        let valid = unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id)
        };
        valid == 0
    }

    /// Ends the call with a result. Does nothing if the caller is gone.
    pub fn answer(&self, id: u64, result: Result<(), Errno>) {
        let error = result.err().map_or(0, |errno| -errno.raw_os_error());
        self.respond(libc::seccomp_notif_resp { id, val: 0, error, flags: 0 });
    }

    /// Makes the kernel perform the call, as the caller. Only for calls whose arguments are all
    /// numbers: they are in registers, and cannot change meanwhile.
    pub fn let_through(&self, id: u64) {
        self.respond(libc::seccomp_notif_resp { id, val: 0, error: 0, flags: CONTINUE });
    }

    fn respond(&self, response: libc::seccomp_notif_resp) {
        // SAFETY: the kernel reads it.
        _ = unsafe {
            let fd = self.0.as_raw_fd();
            libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response)
        };
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
