//! Restricts commands to UNIX sockets of the sandbox: they cannot connect to those in a mount.
//!
//! A bind mount carries more than files: a process on the host that listens on a socket in a
//! mounted directory can be connected to from inside, even through a read-only mount. If Landlock
//! has a right for that (ABI 9), the session's rules are sufficient. Otherwise the agent makes
//! every connection of every command itself: a filter hands each `connect` to it ([`listener`]),
//! and the command waits for the result.
//!
//! ```text
//! program ── connect(fd, address) ──> kernel ── notification ──> supervisor
//!                                                                   │ duplicate of the descriptor,
//!                                                                   │ copy of the address
//!                                                                   │ path -> descriptor (resolve)
//!                                                                   │ on the sandbox's own file system?
//!    result or errno <──────────────────────────────────────────── connect(duplicate, copy)
//! ```
//!
//! **Invariant:** no `connect` is ever continued in the command. The check and the connection use the
//! same copy of the address, the same duplicate of the descriptor and the same inode, so a command
//! gains nothing by swapping any of them meanwhile.
//!
//! A `setpriority` that names a process by its id comes here too, because only here it is known whose
//! id that is. It is continued where that is the caller's own: its arguments are numbers.
//!
//! One thread makes all connections and does not block on them: pending ones are tried again when
//! their socket is writable or after an interval, so that a server that connects before it accepts
//! gets its connection. It can only block on the file system that a path leads through: one that
//! hangs (a network file system in a mount) delays all connections meanwhile.
//!
//! A filter cannot read the address of a `sendmsg`, so UNIX datagram sockets are refused while the
//! agent connects for commands. `docs/src/security.md` describes what commands lose by that.

mod alarm;
mod connect;
mod listener;
mod paths;
mod probe;
mod request;
mod resolve;

use std::io;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sandbox_protocol::message::UnixSockets;

use crate::confine::seccomp::programs;
use crate::exec::Spawner;
use alarm::Alarm;
use connect::Connecting;
use listener::Listener;
pub use resolve::OwnFileSystems;

/// The most pending connections; one more gets `EAGAIN`. Each holds two descriptors of the agent,
/// which has 1024, and is checked twenty times a second.
const MAX_WAITING: usize = 64;
/// The deepest stack frame holds an address and a few paths.
const STACK_BYTES: usize = 128 << 10;

/// Starts the thread that starts commands. The agent makes their connections if `enforced`, what is
/// in force without that, protects less. Returns what is in force, and why if it allows only pairs.
///
/// # Errors
///
/// If a thread cannot be started.
pub fn start(
    enforced: UnixSockets,
    own: OwnFileSystems,
) -> io::Result<(Spawner, UnixSockets, Option<String>)> {
    let why = match enforced {
        UnixSockets::Pairs => match supervise(own) {
            Ok(spawner) => return Ok((spawner, UnixSockets::Supervised, None)),
            Err(error) => Some(format!("connections of programs cannot be supervised: {error}")),
        },
        _ => None,
    };
    Ok((Spawner::start()?, enforced, why))
}

/// The thread whose commands are supervised, after a probe has succeeded.
fn supervise(own: OwnFileSystems) -> io::Result<Spawner> {
    Alarm::keep_from_this_thread();
    let spawner = Spawner::start()?;
    let filter = programs::supervised();
    let listener = spawner.run(move || listener::install(&filter))?;
    probe::connect_once(&spawner, &listener, &own)?;
    let supervisor = Supervisor { listener, own, waiting: Vec::new() };
    crate::threads::start("connect", STACK_BYTES, move || supervisor.work())?;
    Ok(spawner)
}

/// Makes the connections, on one thread that does not block on any of them.
#[derive(Debug)]
struct Supervisor {
    listener: Listener,
    own: OwnFileSystems,
    waiting: Vec<Connecting>,
}

impl Supervisor {
    /// Runs until no process is left that could connect.
    fn work(mut self) {
        let alarm = Alarm::of_this_thread().ok();
        while let Some(news) = self.wait() {
            let mut act = || {
                self.look_after(&news.writable);
                if news.calls {
                    self.begin();
                }
            };
            match &alarm {
                Some(alarm) => alarm.during(act),
                None => act(),
            }
        }
    }

    /// Waits until a command makes a call, or a pending connection needs to be checked.
    fn wait(&self) -> Option<News> {
        let now = Instant::now();
        let next = self.waiting.iter().map(|connecting| connecting.next).min();
        let timeout = next.map(|next| next.saturating_duration_since(now));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
        let (ids, sockets): (Vec<u64>, Vec<_>) =
            self.waiting.iter().filter_map(|one| Some((one.id(), one.writable()?))).unzip();
        fds.extend(sockets.iter().map(|socket| PollFd::new(socket, PollFlags::OUT)));
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Some(News::default());
        }
        let listened = fds[0].revents();
        let calls = listened.contains(PollFlags::IN);
        if !calls && listened.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return None;
        }
        let ready = ids.iter().zip(&fds[1..]).filter(|(_, fd)| !fd.revents().is_empty());
        Some(News { calls, writable: ready.map(|(&id, _)| id).collect() })
    }

    fn begin(&mut self) {
        let Some(request) = self.listener.receive() else { return };
        if request.call == libc::SYS_setpriority {
            return request::set_priority(&request, &self.listener);
        }
        if self.waiting.len() == MAX_WAITING {
            self.waiting.retain(|connecting| self.listener.is_waiting(connecting.id()));
        }
        let result = match request::perform(&request, &self.listener, &self.own) {
            Ok(None) => Ok(()),
            Ok(Some(connecting)) if self.waiting.len() < MAX_WAITING => {
                self.waiting.push(connecting);
                return;
            }
            Ok(Some(_)) => Err(Errno::AGAIN),
            Err(errno) => Err(errno),
        };
        self.listener.answer(request.id, result);
    }

    /// Answers connections that are no longer pending.
    fn look_after(&mut self, writable: &[u64]) {
        let now = Instant::now();
        self.waiting.retain_mut(|connecting| {
            if connecting.next > now && !writable.contains(&connecting.id()) {
                return true;
            }
            let result = connecting.poll(&self.listener, now);
            if let Some(result) = result {
                self.listener.answer(connecting.id(), result);
            }
            result.is_none()
        });
    }
}

/// What needs to be done.
#[derive(Debug, Default)]
struct News {
    /// Whether a command waits in a call.
    calls: bool,
    /// Pending calls whose sockets have changed.
    writable: Vec<u64>,
}

#[cfg(test)]
mod tests;
