//! What subjects have used.

use sandbox_api::service::{Subject, Time};

use crate::Store;
use crate::error::StoreError;
use crate::row::Columns;

const DAY_MS: i64 = 24 * 3600 * 1000;
/// The most of anything in a day: 30,000 years of milliseconds, a PiB. Some figures are those of a
/// guest, and no sum of them may be more than a database can add.
pub(crate) const MAX: i64 = 1 << 50;

/// What a subject has used: all that ended, and what is stored now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Executions that ended.
    pub executions: u64,
    /// Their processor time in milliseconds.
    pub cpu_ms: u64,
    /// Their time in milliseconds.
    pub wall_ms: u64,
    /// The bytes that they wrote.
    pub written_bytes: u64,
    /// The bytes of results and files that are stored now, for any period.
    pub stored_bytes: u64,
}

impl Store {
    /// What a subject has used ever.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn usage(&self, subject: &Subject) -> Result<Usage, StoreError> {
        either!(self, store => store.usage_from(subject, i64::MIN))
    }

    /// What a subject has used since the beginning of the UTC day of `since`.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn usage_since(&self, subject: &Subject, since: Time) -> Result<Usage, StoreError> {
        either!(self, store => store.usage_from(subject, day(since)))
    }
}

of_either! {
    /// Adds something that ended and is no execution of the store to what its subject has used.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn add_usage(
        &self, subject: &Subject, ended_at: Time, used: sandbox_api::Usage
    ) -> Result<(), StoreError>;

    /// The bytes of results and files that are stored of a subject now.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn stored_bytes(&self, subject: &Subject) -> Result<u64, StoreError>;
}

/// The columns of both databases that [`Usage`] has.
pub(crate) fn usage(row: &impl Columns) -> Result<Usage, StoreError> {
    Ok(Usage {
        executions: row.count("executions")?,
        cpu_ms: row.count("cpu_ms")?,
        wall_ms: row.count("wall_ms")?,
        written_bytes: row.count("written_bytes")?,
        stored_bytes: row.count("stored_bytes")?,
    })
}

/// The UTC day of a time, counted from that of the Unix epoch.
pub(crate) fn day(time: Time) -> i64 {
    time.unix_millis().div_euclid(DAY_MS)
}
