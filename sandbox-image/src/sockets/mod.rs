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
//! No filter sees the address of a `sendmsg`, so UNIX datagram sockets are refused as long as the agent
//! connects for programs. What a program loses by that is in `docs/src/security.md`.

mod connect;
mod listener;
mod probe;
mod request;
mod resolve;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sandbox_protocol::message::UnixSockets;

use crate::confine::seccomp::programs::notify_connects;
use crate::exec::Spawner;
use listener::Listener;
pub use resolve::OwnFileSystems;

/// So many connections may wait at one time; more wait for one of these. Each costs a thread of the
/// sandbox's `limits.pids`, which is there only as long as it is needed.
const MAX_WORKERS: usize = 8;
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
    let spawner = Spawner::start()?;
    let filter = notify_connects();
    let listener = spawner.run(move || listener::install(&filter))?;
    probe::connect_once(&spawner, &listener, &own)?;
    let (workers, idle) = (AtomicUsize::new(0), AtomicUsize::new(0));
    Arc::new(Supervisor { listener, own, workers, idle }).add_worker()?;
    Ok(spawner)
}

/// Makes the connections.
#[derive(Debug)]
struct Supervisor {
    listener: Listener,
    own: OwnFileSystems,
    /// Threads that there are.
    workers: AtomicUsize,
    /// Those of them that wait for a program to connect.
    idle: AtomicUsize,
}

impl Supervisor {
    /// One more thread that waits for programs to connect, unless there are enough.
    fn add_worker(self: &Arc<Self>) -> io::Result<()> {
        if self.workers.fetch_add(1, Ordering::SeqCst) >= MAX_WORKERS {
            self.workers.fetch_sub(1, Ordering::SeqCst);
            return Ok(());
        }
        self.idle.fetch_add(1, Ordering::SeqCst);
        let own = self.clone();
        let thread = std::thread::Builder::new().name("connect".to_owned()).stack_size(STACK_BYTES);
        let started = thread.spawn(move || own.work());
        if started.is_err() {
            self.idle.fetch_sub(1, Ordering::SeqCst);
            self.workers.fetch_sub(1, Ordering::SeqCst);
        }
        started.map(drop)
    }

    fn work(self: &Arc<Self>) {
        loop {
            let request = self.listener.receive();
            self.idle.fetch_sub(1, Ordering::SeqCst);
            let result = request::perform(&request, &self.listener, &self.own, || {
                // Nobody is left for other programs. Where no thread can be had, they wait.
                if self.idle.load(Ordering::SeqCst) == 0 {
                    _ = self.add_worker();
                }
            });
            self.listener.answer(request.id, result);
            if self.idle.fetch_add(1, Ordering::SeqCst) > 0 {
                // There was more than one because this one was busy.
                self.idle.fetch_sub(1, Ordering::SeqCst);
                self.workers.fetch_sub(1, Ordering::SeqCst);
                return;
            }
        }
    }
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
