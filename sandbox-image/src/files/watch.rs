//! Stops a file operation early: by its timeout, or by a cancel of its caller.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox_protocol::ErrorKind;

use super::error::FileError;
use crate::stop::{StopFlag, StopReason};

/// Checked inside every walk and copy.
pub struct Watch {
    stop: Arc<StopFlag>,
    limit: Duration,
    deadline: Cell<Instant>,
}

impl Watch {
    /// The watch of an operation that starts now.
    pub fn new(stop: Arc<StopFlag>, limit: Duration) -> Self {
        let deadline = Cell::new(Instant::now() + limit);
        Self { stop, limit, deadline }
    }

    /// The flag that stops the operation.
    pub fn stop(&self) -> &StopFlag {
        &self.stop
    }

    /// # Errors
    ///
    /// `cancelled` or `timeout`, if the operation must end.
    pub fn check(&self) -> Result<(), FileError> {
        match self.stop.reason() {
            StopReason::None if Instant::now() < self.deadline.get() => Ok(()),
            StopReason::None | StopReason::Timeout => Err(self.timeout(b"")),
            StopReason::Cancelled => Err(FileError::rule(ErrorKind::Cancelled, "cancelled", b"")),
        }
    }

    /// The error of an operation whose time is over.
    pub(super) fn timeout(&self, path: &[u8]) -> FileError {
        let reason = format!("not done within {} ms", self.limit.as_millis());
        FileError::rule(ErrorKind::Timeout, reason, path)
    }

    /// The result of a part of a search; `None` if the time is over, which ends the search with what
    /// it has found.
    ///
    /// # Errors
    ///
    /// The other errors of the part.
    pub(super) fn in_time<T>(&self, part: Result<T, FileError>) -> Result<Option<T>, FileError> {
        match part {
            Err(error) if error == self.timeout(b"") => Ok(None),
            part => part.map(Some),
        }
    }

    /// Waits for the other side; that time does not count towards the timeout.
    pub fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let waited = wait();
        self.deadline.set(self.deadline.get() + began.elapsed());
        waited
    }
}
