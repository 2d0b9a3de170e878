//! Checks whether the agent can make connections for commands, by making one. A kernel without
//! listeners, a rule against access to other processes (Yama, a security module) and a filter
//! around the agent that refuses one of the calls cannot be distinguished from here.
#![expect(unsafe_code, reason = "a process that only connects is made by bare system calls")]

use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};

use super::listener::Listener;
use super::request;
use super::resolve::OwnFileSystems;
use crate::exec::Spawner;

/// Longer than it takes on any machine.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The exit code of the process if its call succeeded.
const CONNECTED: libc::c_int = 42;

/// Starts a process that connects its socket to no address, and makes that connection for it. The
/// process is a copy of the agent, but can be accessed as commands can.
///
/// # Errors
///
/// Why connections cannot be made.
pub fn connect_once(
    spawner: &Spawner,
    listener: &Listener,
    own: &OwnFileSystems,
) -> io::Result<()> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let fd = socket.as_raw_fd();
    let child = spawner.run(move || fork_and_connect(fd))?;
    let result = await_request(child, listener).and_then(|()| {
        let request = listener.receive().ok_or(Errno::INTR)?;
        // A datagram socket never has to wait.
        let result = request::perform(&request, listener, own).map(drop);
        listener.answer(request.id, result);
        result
    });
    if result.is_err() {
        _ = kill_process(child, Signal::KILL);
    }
    let ended = waitpid(Some(child), WaitOptions::empty())?;
    result?;
    match ended.and_then(|(_, status)| status.exit_status()) {
        Some(CONNECTED) => Ok(()),
        _ => Err(io::Error::other("a connection that was made did not reach its process")),
    }
}

/// Waits until it connects.
fn await_request(child: Pid, listener: &Listener) -> Result<(), Errno> {
    let ended = pidfd_open(child, PidfdFlags::empty())?;
    let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(&ended, PollFlags::IN)];
    poll(&mut fds, Timespec::try_from(PROBE_TIMEOUT).ok().as_ref())?;
    // If it exited instead, another listener answered it.
    if fds[0].revents().contains(PollFlags::IN) { Ok(()) } else { Err(Errno::NOSYS) }
}

/// Runs on the thread whose processes are supervised.
fn fork_and_connect(fd: RawFd) -> io::Result<Pid> {
    let address = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    let length = size_of::<libc::sockaddr>();
    // SAFETY: the child has a copy of this memory and only this thread. It only makes system calls
    // with numbers and with an address on its own stack, and exits.
    unsafe {
        let none = 0_usize;
        let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD as usize, none, none, none, none);
        if pid != 0 {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).filter(|_| pid > 0);
            return pid.ok_or_else(io::Error::last_os_error);
        }
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize, 0_usize);
        libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1_usize, 0_usize);
        let result = libc::syscall(libc::SYS_connect, fd, &raw const address, length);
        let code = if result == 0 { CONNECTED } else { 1 };
        loop {
            libc::syscall(libc::SYS_exit_group, code);
        }
    }
}
