//! The thread that begins all programs.
//!
//! What a process inherits is its parent thread's: the filter that hands its connections to the agent
//! ([`sockets`](crate::sockets)) is on this one and on none of the agent's others. It lives as long as
//! the agent does, because a program's death signal comes with the end of the thread that began it.

use std::io;
use std::sync::mpsc::{Sender, channel, sync_channel};

/// What is to be done there.
type Work = Box<dyn FnOnce() + Send>;

const STACK_BYTES: usize = 64 << 10;

/// The thread.
#[derive(Debug)]
pub struct Spawner(Sender<Work>);

impl Spawner {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// Where no thread can be had.
    pub fn start() -> io::Result<Self> {
        let (sender, work) = channel::<Work>();
        let thread = std::thread::Builder::new().name("spawner".to_owned());
        thread.stack_size(STACK_BYTES).spawn(move || {
            block_signals();
            work.into_iter().for_each(|work| work());
        })?;
        Ok(Self(sender))
    }

    /// Does this on the thread, and waits for what comes of it.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, result) = sync_channel(1);
        // Whoever waits has not gone.
        let work = Box::new(move || _ = sender.send(work()));
        self.0.send(work).expect("the thread ends with its owner");
        result.recv().expect("a panic ends the agent")
    }
}

/// So that no handler of the agent's ever runs in a child that has its memory still.
#[expect(unsafe_code, reason = "no safe interface blocks signals")]
fn block_signals() {
    // SAFETY: all zeros are a legal set, which is filled in before it is read.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}
