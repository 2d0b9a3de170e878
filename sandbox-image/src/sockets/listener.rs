//! The kernel's side: programs that wait in `connect`, by descriptor.
#![expect(unsafe_code, reason = "nothing safe speaks to a seccomp listener")]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::io::Errno;
use seccompiler::BpfProgram;

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP` (Linux 6.6): the two threads take turns on one processor.
const SYNC_WAKE_UP: libc::c_ulong = 1;

/// Where the `connect` calls of programs arrive.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// A program that waits in `connect`.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Which of them, to the kernel.
    pub id: u64,
    /// The thread.
    pub thread: u32,
    /// The arguments of its call.
    pub args: [u64; 6],
}

/// Puts the filter on this thread and all that it begins, and gives what listens to it.
///
/// # Errors
///
/// What the kernel says, or a filter that is in force already.
pub fn install(filter: &BpfProgram) -> io::Result<Listener> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).expect("a filter is short"),
        // The two types are the kernel's.
        filter: filter.as_ptr().cast_mut().cast(),
    };
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // Where the kernel can (Linux 5.19), only what ends the program takes a call back that the agent is
    // at: any other signal would have it made twice, with another answer.
    let killable = listener | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let install = |flags: libc::c_ulong| {
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        // SAFETY: the filter lives on during the call, which makes a descriptor or fails.
        let fd = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
        match i32::try_from(fd) {
            // SAFETY: it was made just now, closed on exec, and nobody else has it.
            Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let fd = match install(killable) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => install(listener)?,
        installed => installed?,
    };
    // SAFETY: the argument is a number. A kernel that does not know it is as good.
    _ = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
    Ok(Listener(fd))
}

impl Listener {
    /// The next one, once the descriptor is readable: it does not wait then, and is none where the program
    /// has ended meanwhile or took a signal. One thread alone may do this.
    pub fn receive(&self) -> Option<Request> {
        // SAFETY: all zeros are a legal one, and what the kernel asks for.
        let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: it is ours to write to, and of the size that is in the request's number.
        let received = unsafe {
            let fd = self.0.as_raw_fd();
            libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification)
        };
        let libc::seccomp_notif { id, pid, data, .. } = notification;
        (received == 0).then_some(Request { id, thread: pid, args: data.args })
    }

    /// Whether the call still waits: then its thread's number has been its own ever since it came.
    pub fn is_waiting(&self, id: u64) -> bool {
        // SAFETY: the kernel reads the number.
        let valid = unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id)
        };
        valid == 0
    }

    /// Ends the call. Whoever is gone is not told.
    pub fn answer(&self, id: u64, result: Result<(), Errno>) {
        let error = result.err().map_or(0, |errno| -errno.raw_os_error());
        let response = libc::seccomp_notif_resp { id, val: 0, error, flags: 0 };
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
