//! System calls that no safe interface has.

#![expect(unsafe_code, reason = "each call is wrapped here, and nowhere else")]

use std::ffi::{CString, c_char, c_int};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::UnshareFlags;

use crate::failpoint;

/// libc's constant is too narrow for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Which of the two processes this one is, after a [`clone`].
pub enum Side {
    /// The one that called it.
    Parent {
        /// The number of the other, which another process may have once it was waited for.
        pid: Pid,
        /// The other.
        pidfd: OwnedFd,
    },
    /// The new one. It has a copy of everything, and other namespaces.
    Child,
}

/// Makes a process in new namespaces, and in the given control group of version 2.
///
/// The child is a copy of this process, as by `fork`, which must have one thread.
pub fn clone(namespaces: UnshareFlags, group: Option<&OwnedFd>) -> io::Result<Side> {
    failpoint::call("clone3")?;
    let mut pidfd: c_int = -1;
    // SAFETY: a structure of numbers, for all of which 0 is a value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = u64::from(namespaces.bits()) | u64::from(libc::CLONE_PIDFD.cast_unsigned());
    args.pidfd = (&raw mut pidfd).addr() as u64;
    args.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    // What an older kernel does not know may be absent, not 0 alone.
    let mut length = std::mem::offset_of!(libc::clone_args, set_tid);
    if let Some(group) = group {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::from(group.as_raw_fd().cast_unsigned());
        length = size_of::<libc::clone_args>();
    }
    // SAFETY: without CLONE_VM and a stack of its own, the child goes on here on a copy of this stack.
    // There is one thread, so no lock is held by another that the child does not have.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const args, length) } {
        0 => Ok(Side::Child),
        pid if pid > 0 => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::RANGE)?;
            // SAFETY: the kernel has put a new descriptor there, which nothing else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Side::Parent { pid, pidfd })
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Becomes another program, by a descriptor: it needs no path. Gives the reason if it does not.
pub fn execute(program: BorrowedFd<'_>, args: &[CString], env: &[CString]) -> io::Error {
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: both lists end with a null pointer, and what they point at lives on.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            args.as_ptr(),
            env.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}

/// Whether this process has a real-time policy. `SCHED_DEADLINE` is not inherited.
pub fn is_real_time() -> Result<bool, Errno> {
    // SAFETY: the argument is a number.
    let policy = checked(unsafe { libc::sched_getscheduler(0) })?;
    Ok([libc::SCHED_FIFO, libc::SCHED_RR].map(i64::from).contains(&policy))
}

/// Takes the policy of ordinary processes.
pub fn schedule_normally() -> Result<(), Errno> {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure is read during the call.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const priority) };
    checked(set).map(|_| ())
}

const IOPRIO_WHO_PROCESS: c_int = 1;
const IOPRIO_CLASS_SHIFT: u32 = 13;
const IOPRIO_CLASS_RT: i64 = 1;

/// Whether this process has real-time I/O.
pub fn is_real_time_for_io() -> Result<bool, Errno> {
    // SAFETY: the arguments are numbers.
    let priority = checked(unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0) })?;
    Ok(priority >> IOPRIO_CLASS_SHIFT == IOPRIO_CLASS_RT)
}

/// Takes the I/O priority that follows from the nice value.
pub fn reset_io_priority() -> Result<(), Errno> {
    // SAFETY: the arguments are numbers.
    let set = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, 0) };
    checked(set).map(|_| ())
}

/// Joins a new session keyring, which is empty.
pub fn join_session_keyring() -> Result<(), Errno> {
    let name = std::ptr::null::<c_char>();
    // SAFETY: without a name, the kernel makes a new one.
    let joined =
        unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, name) };
    checked(joined).map(|_| ())
}

/// The real, effective and saved user, and group.
pub fn identity() -> io::Result<([u32; 3], [u32; 3])> {
    let (mut uids, mut gids) = ([0; 3], [0; 3]);
    let ([real, effective, saved], [real_gid, effective_gid, saved_gid]) = (&mut uids, &mut gids);
    // SAFETY: each call writes three numbers, to three places that are there for it.
    let known = unsafe {
        libc::getresuid(real, effective, saved) == 0
            && libc::getresgid(real_gid, effective_gid, saved_gid) == 0
    };
    if known { Ok((uids, gids)) } else { Err(io::Error::last_os_error()) }
}

/// Ignores a signal, or restores its default action.
pub fn set_disposition(signal: c_int, disposition: libc::sighandler_t) {
    // SAFETY: neither SIG_IGN nor SIG_DFL is a handler function.
    unsafe { libc::signal(signal, disposition) };
}

/// Ends this process, without anything that a copy of another process should not do.
pub fn exit(code: c_int) -> ! {
    // SAFETY: it does nothing but end it.
    unsafe { libc::_exit(code) }
}

/// What a call returned that is -1 if it failed.
fn checked(returned: impl Into<i64>) -> Result<i64, Errno> {
    let returned: i64 = returned.into();
    match returned {
        -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(returned),
    }
}

/// A text as the kernel takes it.
pub fn c_strings(texts: &[String]) -> io::Result<Vec<CString>> {
    texts.iter().map(|text| Ok(CString::new(text.as_str())?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, WaitOptions};
    use std::path::Path;

    #[test]
    fn session_keyring_that_is_joined_is_a_new_one() {
        let session = || {
            let special = libc::KEY_SPEC_SESSION_KEYRING;
            // SAFETY: the arguments are numbers.
            unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_GET_KEYRING_ID, special, 0) }
        };
        // Where another container's filter refuses the calls, there is nothing to see.
        if session() == -1 {
            return;
        }
        // A thread's own: the other tests keep theirs.
        let joined = std::thread::spawn(move || {
            let before = session();
            join_session_keyring().unwrap();
            (before, session())
        });
        let (before, after) = joined.join().unwrap();
        assert!(after > 0 && after != before, "{before} {after}");
    }

    #[test]
    fn a_process_is_created_in_its_group_of_version_2() {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let point = mounts.lines().find(|line| line.contains(" - cgroup2 "));
        let Some(point) = point.and_then(|line| line.split(' ').nth(4)) else { return };
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let name = format!("sandboxctl-test-{}", std::process::id());
        let group = Path::new(point).join(&name);
        std::fs::create_dir(&group).unwrap();
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let opened = rustix::fs::open(&group, flags, rustix::fs::Mode::empty()).unwrap();
        let made = clone(UnshareFlags::NEWPID, Some(&opened));
        let Ok(Side::Parent { pid, pidfd }) = made else {
            // The child, or no child.
            made.map(|_| rustix::event::pause()).unwrap();
            exit(1)
        };
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        rustix::process::pidfd_send_signal(&pidfd, Signal::KILL).unwrap();
        rustix::process::waitpid(Some(pid), WaitOptions::empty()).unwrap();
        std::fs::remove_dir(&group).unwrap();
        assert!(groups.lines().any(|line| line == format!("0::/{name}")), "{groups}");
    }
}
