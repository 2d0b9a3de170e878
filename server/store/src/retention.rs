//! Executions that are not kept any longer: first they are hidden, then their files are removed,
//! then they are forgotten. An interruption leaves nothing that the next call does not find.

use sandbox_api::service::Time;

use crate::Store;
use crate::error::StoreError;

/// The most executions that one call expires.
pub(crate) const BATCH: i64 = 500;

impl Store {
    /// Hides executions that ended before a time, and the oldest of those whose bytes together are
    /// above `max_bytes`. Returns the ids of hidden ones, whose files are to be removed before they
    /// are [forgotten](Self::forget); there may be more.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn expire(&self, before: Time, max_bytes: u64) -> Result<Vec<String>, StoreError> {
        either!(self, store => store.expire(before, max_bytes))
    }

    /// Removes executions that are hidden, with their events and keys.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn forget(&self, ids: Vec<String>) -> Result<(), StoreError> {
        either!(self, store => store.forget(ids))
    }

    /// When the oldest execution that is not hidden ended.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn oldest_end(&self) -> Result<Option<Time>, StoreError> {
        either!(self, store => store.oldest_end())
    }
}
