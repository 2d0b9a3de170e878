//! The thread that starts all commands.
//!
//! A process inherits the filters of its parent thread: the filter that hands `connect` to the
//! agent ([`sockets`](crate::sockets)) is on this thread and on no other thread of the agent. It
//! lives as long as the agent, because a command's parent-death signal is sent when the thread that
//! started it ends.

use std::io;
use std::sync::mpsc::{Sender, channel, sync_channel};

/// A task for the thread.
type ThreadJob = Box<dyn FnOnce() + Send>;

const STACK_BYTES: usize = 64 << 10;

/// The thread.
#[derive(Debug)]
pub struct Spawner(Sender<ThreadJob>);

impl Spawner {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let (sender, work) = channel::<ThreadJob>();
        crate::threads::start("spawner", STACK_BYTES, move || {
            block_signals();
            work.into_iter().for_each(|work| work());
        })?;
        Ok(Self(sender))
    }

    /// Runs this on the thread, and waits for the result.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, result) = sync_channel(1);
        // The receiver is still waiting.
        let work = Box::new(move || _ = sender.send(work()));
        self.0.send(work).expect("the thread ends with its owner");
        result.recv().expect("a panic ends the agent")
    }
}

/// Blocks all signals, so that no handler of the agent runs in a child that still shares its
/// memory.
#[expect(unsafe_code, reason = "no safe interface blocks signals")]
fn block_signals() {
    // SAFETY: all zeros are a valid set, which is filled in before it is read.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}
