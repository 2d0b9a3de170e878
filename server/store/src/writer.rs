//! The thread of a connection that writes.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

/// Hands changes to the thread that writes. Dropping it waits until what it was handed is written, and the thread
/// has ended.
pub(crate) struct Writer<C> {
    /// As many as there are callers: each waits for its own.
    changes: Option<Sender<C>>,
    thread: Option<JoinHandle<()>>,
}

impl<C: Send + 'static> Writer<C> {
    /// Starts a thread of that name, which makes changes until there will be none.
    pub fn start(
        name: &str,
        write_all: impl FnOnce(&Receiver<C>) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, receiver) = channel();
        let thread = Builder::new().name(name.to_owned()).spawn(move || write_all(&receiver))?;
        Ok(Self { changes: Some(sender), thread: Some(thread) })
    }

    /// Hands over a change. Its caller gets the result on the thread that writes, or nothing if that thread is gone.
    pub fn write(&self, change: C) {
        if let Some(changes) = &self.changes {
            _ = changes.send(change);
        }
    }
}

impl<C> Drop for Writer<C> {
    fn drop(&mut self) {
        self.changes = None;
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}
