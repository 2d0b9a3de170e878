//! Serializes the operations that change a file's content: an edit based on the old content must
//! not undo a write in between.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use sandbox_protocol::path::GuestPath;

use super::error::FileError;
use super::watch::Watch;

/// How long a waiter waits before it checks whether it was stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The files whose content is being changed.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<HashSet<GuestPath>>,
    given_back: Condvar,
}

/// Ends when it is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    path: GuestPath,
}

impl Turns {
    /// Waits until no other operation changes the file.
    pub fn take(&self, path: &GuestPath, watch: &Watch) -> Result<Turn<'_>, FileError> {
        let mut taken = self.taken.lock().unwrap();
        while !taken.insert(path.clone()) {
            watch.check()?;
            (taken, _) = self.given_back.wait_timeout(taken, POLL_INTERVAL).unwrap();
        }
        Ok(Turn { turns: self, path: path.clone() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken.lock().unwrap().remove(&self.path);
        self.turns.given_back.notify_all();
    }
}
