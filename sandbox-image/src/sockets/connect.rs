//! Connects a socket for a command, for as long as the command would wait and exists.
#![expect(unsafe_code, reason = "an address goes to the kernel as the program gave it")]

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketType};

use super::listener::{Listener, Request};
use super::paths::{last_error, proc_of};

/// Interval at which a pending connection of a command is checked.
const SLICE: Duration = Duration::from_millis(50);

/// `SIGQUIT` and similar signals, by number, as bits of a mask: they end a process, but do not
/// interrupt a wait that only fatal signals end.
const DUMPING: u64 = {
    use libc::*;
    let signals =
        [SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGFPE, SIGSEGV, SIGBUS, SIGSYS, SIGXCPU, SIGXFSZ];
    let (mut mask, mut at) = (0, 0);
    while at < signals.len() {
        mask |= 1 << (signals[at] - 1);
        at += 1;
    }
    mask
};

/// A socket address, as the kernel takes it.
#[derive(Debug, Clone)]
pub struct Address(Vec<u8>);

impl Address {
    /// `sizeof(struct sockaddr_storage)`.
    const LONGEST: usize = size_of::<libc::sockaddr_storage>();
    /// Offset of the path.
    const PATH: usize = std::mem::offset_of!(libc::sockaddr_un, sun_path);

    /// An address of this length.
    ///
    /// # Errors
    ///
    /// `EINVAL` if no address is that long.
    pub fn new(length: usize) -> Result<Self, Errno> {
        if length > Self::LONGEST {
            return Err(Errno::INVAL);
        }
        Ok(Self(vec![0; length]))
    }

    /// The address of a socket that is held open, independent of its path.
    pub fn of_descriptor(fd: &OwnedFd) -> Self {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let family = u16::try_from(libc::AF_UNIX).expect("families are small");
        Self([&family.to_ne_bytes()[..], path.as_bytes()].concat())
    }

    /// To be filled in.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// The path that a UNIX socket would connect to: none for an abstract address, or one that the
    /// kernel refuses.
    pub fn path(&self) -> Option<&[u8]> {
        let family = u16::from_ne_bytes(*self.0.first_chunk()?);
        let path = &self.0[Self::PATH..];
        let is_path = i32::from(family) == libc::AF_UNIX
            && path.first().is_some_and(|&first| first != 0)
            && self.0.len() <= size_of::<libc::sockaddr_un>();
        is_path.then(|| path.split(|&byte| byte == 0).next().unwrap_or_default())
    }
}

/// A pending connection of a command that blocks in its call.
#[derive(Debug)]
pub struct Connecting {
    request: Request,
    socket: OwnedFd,
    family: AddressFamily,
    address: Address,
    /// The descriptor of the target, if the address refers to one.
    _named: Option<OwnedFd>,
    /// The error that the command gets when its timeout expires.
    first: Errno,
    /// The socket's own timeout.
    ends: Option<Instant>,
    /// When it is checked next, at the latest.
    pub next: Instant,
    /// Whether it was writable and still not connected: a socket that was shut down stays so.
    is_always_writable: bool,
}

/// Connects the command's socket; the address refers to `named` if that is given. Returns a pending
/// connection if it has to wait.
///
/// # Errors
///
/// The errors of `connect`.
pub fn connect(
    request: &Request,
    socket: OwnedFd,
    address: Address,
    named: Option<OwnedFd>,
) -> Result<Option<Connecting>, Errno> {
    let is_blocking = !fcntl_getfl(&socket)?.contains(OFlags::NONBLOCK);
    let may_wait = [SocketType::STREAM, SocketType::SEQPACKET];
    if !is_blocking || !may_wait.contains(&sockopt::socket_type(&socket)?) {
        return connect_once(&socket, &address).map(|()| None);
    }
    let started = Instant::now();
    let family = sockopt::socket_domain(&socket)?;
    let Some(first) = attempt(&socket, family, &address)? else {
        return Ok(None);
    };
    let limit = sockopt::socket_timeout(&socket, Timeout::Send)?;
    let request = *request;
    let ends = limit.and_then(|limit| started.checked_add(limit));
    let mut connecting = Connecting {
        request,
        socket,
        family,
        address,
        _named: named,
        first,
        ends,
        next: started,
        is_always_writable: false,
    };
    connecting.look_later(started);
    Ok(Some(connecting))
}

impl Connecting {
    /// The waiting call.
    pub const fn id(&self) -> u64 {
        self.request.id
    }

    /// The descriptor that becomes writable on progress. A UNIX socket does not report free space
    /// in its queue.
    pub fn writable(&self) -> Option<BorrowedFd<'_>> {
        let reports_writable = self.family != AddressFamily::UNIX && !self.is_always_writable;
        reports_writable.then(|| self.socket.as_fd())
    }

    /// Checks it: returns the result of the call if it is complete.
    pub fn poll(&mut self, listener: &Listener, now: Instant) -> Option<Result<(), Errno>> {
        // If the caller is gone, no connection is made.
        if !listener.is_waiting(self.request.id) {
            return Some(Err(Errno::INTR));
        }
        match attempt(&self.socket, self.family, &self.address) {
            Ok(Some(_)) if self.ends.is_some_and(|ends| now >= ends) => Some(Err(self.first)),
            Ok(Some(_)) if is_signalled(self.request.thread) => Some(Err(Errno::INTR)),
            Ok(Some(_)) => {
                self.is_always_writable |= now < self.next;
                self.look_later(now);
                None
            }
            // Another call that waits for the same connection was answered first.
            Err(Errno::ISCONN) if self.family != AddressFamily::UNIX => Some(Ok(())),
            done => Some(done.map(drop)),
        }
    }

    fn look_later(&mut self, now: Instant) {
        let next = now + SLICE;
        self.next = self.ends.map_or(next, |ends| ends.min(next));
    }
}

/// Connects without waiting, or reports what the kernel would wait for.
///
/// No system call does that with a blocking socket, and O_NONBLOCK belongs to the open file
/// description, which the command shares. So it is set only during one call that never waits, and
/// only the one thread that makes connections does this: no other attempt ever sees it, and it does
/// not stay set, however the command ends. `SO_SNDTIMEO` would be shared as well, and would have to
/// be set to at least one clock tick.
fn attempt(
    socket: &OwnedFd,
    family: AddressFamily,
    address: &Address,
) -> Result<Option<Errno>, Errno> {
    // If the command made the socket non-blocking while it waited, it stays so.
    let blocks = !fcntl_getfl(socket)?.contains(OFlags::NONBLOCK);
    if blocks {
        ioctl_fionbio(socket, true)?;
    }
    let result = match connect_once(socket, address) {
        // On loopback the result is available by now.
        Err(Errno::INPROGRESS) => match connect_once(socket, address) {
            Err(Errno::ALREADY) => Err(Errno::INPROGRESS),
            done => done,
        },
        done => done,
    };
    if blocks {
        ioctl_fionbio(socket, false)?;
    }
    match result {
        Ok(()) => Ok(None),
        Err(errno @ (Errno::INPROGRESS | Errno::ALREADY)) => Ok(Some(errno)),
        Err(errno @ Errno::AGAIN) if family == AddressFamily::UNIX => Ok(Some(errno)),
        Err(errno) => Err(errno),
    }
}

fn connect_once(socket: &OwnedFd, address: &Address) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(address.0.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: the address has this length, and is only read.
    let result = unsafe { libc::connect(socket.as_raw_fd(), address.0.as_ptr().cast(), length) };
    if result == 0 {
        return Ok(());
    }
    Err(last_error())
}

/// Whether a signal is pending that would interrupt the thread's call.
fn is_signalled(thread: u32) -> bool {
    // A thread's name may contain any bytes.
    let status = std::fs::read(proc_of(thread, "status")).unwrap_or_default();
    interrupts(&String::from_utf8_lossy(&status))
}

fn interrupts(status: &str) -> bool {
    let mask = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    let pending = mask("SigPnd:") | mask("ShdPnd:");
    pending & !mask("SigBlk:") & !mask("SigIgn:") & (mask("SigCgt:") | DUMPING) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(family: libc::c_int, path: &[u8]) -> Address {
        let mut address = Address::new(2 + path.len()).unwrap();
        address.bytes_mut()[..2].copy_from_slice(&u16::try_from(family).unwrap().to_ne_bytes());
        address.bytes_mut()[2..].copy_from_slice(path);
        address
    }

    #[test]
    fn an_address_has_a_path_where_the_kernel_would_look_one_up() {
        assert_eq!(address(libc::AF_UNIX, b"/a/b").path(), Some(&b"/a/b"[..]));
        assert_eq!(address(libc::AF_UNIX, b"/a\0rest").path(), Some(&b"/a"[..]));
        assert_eq!(address(libc::AF_UNIX, &[b'x'; 108]).path(), Some(&[b'x'; 108][..]));
        for none in [
            address(libc::AF_UNIX, b"\0abstract"),
            address(libc::AF_UNIX, b""),
            address(libc::AF_UNSPEC, b"/a"),
            address(libc::AF_INET, b"/a"),
            address(libc::AF_UNIX, &[b'x'; 109]),
            Address::new(1).unwrap(),
            Address::new(0).unwrap(),
        ] {
            assert_eq!(none.path(), None, "{none:?}");
        }
        assert_eq!(Address::new(129).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn only_a_signal_that_the_program_would_notice_interrupts_it() {
        let status = |pending, shared, blocked, ignored, caught| {
            format!(
                "Name:\tx\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n\
                 SigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
            )
        };
        let (alarm, quit, stop) = (1 << 13, 1 << 2, 1 << 18);
        assert!(interrupts(&status(alarm, 0, 0, 0, alarm)));
        assert!(interrupts(&status(0, alarm, 0, 0, alarm)));
        assert!(interrupts(&status(0, quit, 0, 0, 0)));
        assert!(!interrupts(&status(alarm, 0, alarm, 0, alarm)));
        assert!(!interrupts(&status(0, quit, 0, quit, 0)));
        assert!(!interrupts(&status(0, stop, 0, 0, 0)));
        assert!(!interrupts(""));
    }
}
