//! What a store has, in figures.

use sandbox_api::service::Time;

use crate::Store;
use crate::error::StoreError;

/// What a store has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreStatus {
    /// Whether a server has the store open.
    pub is_served: bool,
    /// The version of its tables.
    pub schema: u64,
    /// The bytes of its database, without what waits in its log.
    pub database_bytes: u64,
    /// Executions that wait.
    pub queued: u64,
    /// Executions that run, or ran when their server was killed.
    pub running: u64,
    /// Executions that have ended and are kept.
    pub ended: u64,
    /// The bytes of their results and files.
    pub stored_bytes: u64,
    /// Kept sandboxes.
    pub sandboxes: u64,
    /// Tokens that are valid.
    pub tokens: u64,
}

impl Store {
    /// Its figures.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn status(&self, now: Time) -> Result<StoreStatus, StoreError> {
        either!(self, store => store.status(now))
    }
}
