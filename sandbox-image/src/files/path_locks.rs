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
pub(super) struct PathLocks {
    locked: Mutex<HashSet<GuestPath>>,
    unlocked: Condvar,
}

/// Ends when it is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct PathLock<'a> {
    path_locks: &'a PathLocks,
    path: GuestPath,
}

impl PathLocks {
    /// Waits until no other operation changes the file.
    pub fn lock(&self, path: &GuestPath, watch: &Watch) -> Result<PathLock<'_>, FileError> {
        let mut locked = self.locked.lock().unwrap();
        while !locked.insert(path.clone()) {
            watch.check()?;
            (locked, _) = self.unlocked.wait_timeout(locked, POLL_INTERVAL).unwrap();
        }
        Ok(PathLock { path_locks: self, path: path.clone() })
    }
}

impl Drop for PathLock<'_> {
    fn drop(&mut self) {
        self.path_locks.locked.lock().unwrap().remove(&self.path);
        self.path_locks.unlocked.notify_all();
    }
}
