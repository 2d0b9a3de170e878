//! What a store has, in figures: their SQL.

use sandbox_api::service::Time;

use super::{SqliteStore, schema};
use crate::error::StoreError;
use crate::integer::unsigned;
use crate::status::{FIGURES, StoreStatus, status};

impl SqliteStore {
    pub fn status(&self, now: Time) -> Result<StoreStatus, StoreError> {
        self.one(
            &format!(
                "SELECT (SELECT page_count * page_size FROM pragma_page_count, pragma_page_size)
                    AS database_bytes, {FIGURES}"
            ),
            [now.unix_millis()],
            |row| status(row, unsigned(schema::VERSION), self.0.lock.is_none()),
        )
    }
}
