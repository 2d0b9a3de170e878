//! Which UNIX sockets programs connect to: those of the sandbox, and none that a mount shows.
//!
//! A bind mount carries more than files: whoever listens on a socket in a directory of the host can be
//! connected to from inside, through a read-only mount too. Where Landlock has a right for that
//! (ABI 9) the session's rules are all that is needed. Elsewhere the agent makes every connection of
//! every program itself: a filter hands each `connect` to it ([`listener`]), and the program waits for
//! the answer.
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
//! **Invariant:** no call is ever continued in the program. What is checked and what is used are the
//! same copy of the address, the same duplicate of the descriptor and the same inode, so that a
//! program which swaps any of them meanwhile gains nothing.
//!
//! One thread makes all connections and waits for none: what has to wait is tried again, when its socket
//! is writable or after a while, so that a server which connects before it accepts gets its
//! connection. What it does wait for is the file system that a path leads through: one that hangs
//! (a network's, shown by a mount) holds up all connections as long as it does.
//!
//! No filter sees the address of a `sendmsg`, so UNIX datagram sockets are refused as long as the agent
//! connects for programs. What a program loses by that is in `docs/src/security.md`.

mod alarm;
mod connect;
mod listener;
mod probe;
mod request;
mod resolve;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sandbox_protocol::message::UnixSockets;

use crate::confine::seccomp::programs::notify_connects;
use crate::exec::Spawner;
use alarm::Alarm;
use connect::Connecting;
use listener::Listener;
pub use resolve::OwnFileSystems;

/// So many connections may wait at one time; one more is `EAGAIN`. Each holds two descriptors of the
/// agent's, which has 1024, and is looked after twenty times a second.
const MAX_WAITING: usize = 64;
/// The deepest frame holds an address and a few paths.
const STACK_BYTES: usize = 128 << 10;

/// Starts the thread that begins programs, and has their connections made by the agent where
/// `enforced`, what holds without that, is less than this. Says what is in force, and why it is no
/// more than pairs.
///
/// # Errors
///
/// Where no thread can be had.
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

/// The thread whose programs are supervised, once that was seen to work.
fn supervise(own: OwnFileSystems) -> io::Result<Spawner> {
    Alarm::keep_from_this_thread();
    let spawner = Spawner::start()?;
    let filter = notify_connects();
    let listener = spawner.run(move || listener::install(&filter))?;
    probe::connect_once(&spawner, &listener, &own)?;
    let supervisor = Supervisor { listener, own, waiting: Vec::new() };
    let thread = std::thread::Builder::new().name("connect".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(move || supervisor.work())?;
    Ok(spawner)
}

/// Makes the connections, on one thread that waits for none of them.
#[derive(Debug)]
struct Supervisor {
    listener: Listener,
    own: OwnFileSystems,
    waiting: Vec<Connecting>,
}

impl Supervisor {
    /// Until nothing is left that could connect.
    fn work(mut self) {
        let alarm = Alarm::of_this_thread().ok();
        while let Some(news) = self.wait() {
            let mut act = || {
                self.look_after(&news.writable);
                if news.connects {
                    self.begin();
                }
            };
            match &alarm {
                Some(alarm) => alarm.during(act),
                None => act(),
            }
        }
    }

    /// Waits for a program to connect, or until there is something to do for one that waits.
    fn wait(&self) -> Option<News> {
        let now = Instant::now();
        let next = self.waiting.iter().map(Connecting::next).min();
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
        let connects = listened.contains(PollFlags::IN);
        if !connects && listened.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return None;
        }
        let ready = ids.iter().zip(&fds[1..]).filter(|(_, fd)| !fd.revents().is_empty());
        Some(News { connects, writable: ready.map(|(&id, _)| id).collect() })
    }

    fn begin(&mut self) {
        let Some(request) = self.listener.receive() else { return };
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

    /// Answers those that wait no longer.
    fn look_after(&mut self, writable: &[u64]) {
        let now = Instant::now();
        self.waiting.retain_mut(|connecting| {
            if connecting.next() > now && !writable.contains(&connecting.id()) {
                return true;
            }
            let result = connecting.look(&self.listener, now);
            if let Some(result) = result {
                self.listener.answer(connecting.id(), result);
            }
            result.is_none()
        });
    }
}

/// What there is to do.
#[derive(Debug, Default)]
struct News {
    /// Whether a program connects.
    connects: bool,
    /// Calls that wait, whose sockets have changed.
    writable: Vec<u64>,
}

/// The directory of a thread in `/proc`, whose number is its own as long as its request waits.
fn proc_of(thread: u32, name: &str) -> String {
    format!("/proc/{thread}/{name}")
}

/// Opens a place without reading from it.
fn open_path(path: &str) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests;
