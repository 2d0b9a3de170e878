//! One change of a file's content at a time, as far as operations go: an edit that was read from the
//! old content must not undo a write that came between.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use sandbox_protocol::path::GuestPath;

use super::{FileError, Watch};

/// How long somebody waits before it looks whether it is stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The files whose content is being changed.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<HashSet<GuestPath>>,
    given_back: Condvar,
}

/// Ends with its value.
#[derive(Debug)]
#[must_use]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    path: GuestPath,
}

impl Turns {
    /// Waits until nobody else changes the file.
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
