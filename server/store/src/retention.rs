//! Executions that are not kept any longer: first they are hidden, then their files are removed,
//! then they are forgotten. An interruption leaves nothing that the next call does not find.

use sandbox_api::service::Time;

use crate::Store;
use crate::error::StoreError;

/// The most executions that one call expires.
pub(crate) const BATCH: i64 = 500;

of_either! {
    /// Hides executions that ended before a time, and the oldest of those whose bytes together are
    /// above `max_bytes`. Returns the ids of hidden ones, whose files are to be removed before they
    /// are [forgotten](Self::forget); there may be more.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn expire(&self, before: Time, max_bytes: u64) -> Result<Vec<String>, StoreError>;

    /// Removes executions that are hidden, with their events and keys.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn forget(&self, ids: Vec<String>) -> Result<(), StoreError>;

    /// When the oldest execution that is not hidden ended.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn oldest_end(&self) -> Result<Option<Time>, StoreError>;
}
