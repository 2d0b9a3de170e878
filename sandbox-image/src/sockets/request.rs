//! Handles one call of a command: a `connect` by copying its arguments, checking them, and connecting;
//! a `setpriority` by comparing the process that it names with the caller.
#![expect(unsafe_code, reason = "nothing safe reads another process's memory")]

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::connect::{Address, Connecting, connect};
use super::listener::{Listener, Request};
use super::paths::{last_error, open_path, proc_of};
use super::resolve::{OwnFileSystems, resolve};

/// `PIDFD_THREAD` (Linux 6.9): for a thread that is not the main thread of its process.
const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL.unsigned_abs());

/// The families of sockets. One of netlink only has the kernel to talk to.
const FAMILIES: [AddressFamily; 4] =
    [AddressFamily::UNIX, AddressFamily::INET, AddressFamily::INET6, AddressFamily::NETLINK];

/// Makes the connection. Returns a pending one if it has to wait.
///
/// # Errors
///
/// The error that the command gets.
pub fn perform(
    request: &Request,
    listener: &Listener,
    own: &OwnFileSystems,
) -> Result<Option<Connecting>, Errno> {
    let &Request { id, thread, args: [fd, address, length, ..], .. } = request;
    let socket = descriptor(thread, fd)?;
    let family = sockopt::socket_domain(&socket)?;
    let address = read_address(thread, address, length)?;
    let path = (family == AddressFamily::UNIX).then(|| address.path()).flatten();
    let places = match path {
        // Its root directory: no command can change it, but the check costs nothing.
        Some(path) => {
            let start = if path.starts_with(b"/") { "root" } else { "cwd" };
            let open = |name| open_path(&proc_of(thread, name)).map_err(|_| Errno::ACCESS);
            Some((path, open("root")?, open(start)?))
        }
        None => None,
    };
    // If the call still waits, all of that belonged to this thread and not to a later one with the
    // same id.
    if !listener.is_waiting(id) {
        return Err(Errno::INTR);
    }
    let (address, named) = match (family, places) {
        (AddressFamily::UNIX, Some((path, root, start))) => {
            let found = resolve(&root, start, path)?;
            if !own.has(&found)? {
                return Err(Errno::ACCESS);
            }
            (Address::of_descriptor(&found), Some(found))
        }
        (family, None) if FAMILIES.contains(&family) => (address, None),
        // There are no others.
        _ => return Err(Errno::ACCESS),
    };
    connect(request, socket, address, named)
}

/// Answers a `setpriority` of a process that is named by its id. A thread changes its own, or that of
/// its process, as it would by 0; any other id is answered with success, and nothing changes: the
/// agent's threads have ids too.
pub fn set_priority(request: &Request, listener: &Listener) {
    let &Request { id, thread, args: [_, who, ..], .. } = request;
    // The kernel uses the lower half.
    let who = who as u32;
    // If the thread is gone, and its id is another's, nothing waits for an answer.
    if who == thread || process_of(thread) == Ok(who) {
        listener.let_through(id);
    } else {
        listener.answer(id, Ok(()));
    }
}

/// Duplicates the command's descriptor.
fn descriptor(thread: u32, fd: u64) -> Result<OwnedFd, Errno> {
    // The kernel uses the lower half.
    let fd = fd as u32 as i32;
    let pid = |number: u32| Pid::from_raw(number as i32).ok_or(Errno::INTR);
    let process = match pidfd_open(pid(thread)?, THREAD) {
        // An older kernel: the threads of a process normally share its descriptors.
        Err(Errno::INVAL) => pidfd_open(pid(process_of(thread)?)?, PidfdFlags::empty()),
        opened => opened,
    };
    pidfd_getfd(process.map_err(gone)?, fd, PidfdGetfdFlags::empty()).map_err(gone)
}

/// The process of a thread.
fn process_of(thread: u32) -> Result<u32, Errno> {
    // Its name may contain any bytes.
    let status = std::fs::read(proc_of(thread, "status")).map_err(|_| Errno::INTR)?;
    let status = String::from_utf8_lossy(&status);
    let number = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    number.and_then(|number| number.trim().parse().ok()).ok_or(Errno::INTR)
}

/// A copy of the address: the command may change the original, which is not read again.
fn read_address(thread: u32, address: u64, length: u64) -> Result<Address, Errno> {
    // To the kernel it is a signed number.
    let length = usize::try_from(length as u32 as i32).map_err(|_| Errno::INVAL)?;
    let mut read = Address::new(length)?;
    let bytes = read.bytes_mut();
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length };
    // SAFETY: the local memory is ours to write to; the remote memory is the command's, and only
    // read.
    let count = unsafe {
        libc::process_vm_readv(thread as i32, &raw const local, 1, &raw const remote, 1, 0)
    };
    match usize::try_from(count) {
        Ok(count) if count == length => Ok(read),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => Err(gone(last_error())),
    }
}

/// The error that the command gets if the agent cannot access its process.
const fn gone(errno: Errno) -> Errno {
    match errno {
        Errno::SRCH => Errno::INTR,
        Errno::PERM => Errno::ACCESS,
        other => other,
    }
}
