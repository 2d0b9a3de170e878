//! What a store has, in figures: their SQL.

use sandbox_api::service::Time;

use super::parameters::one;
use super::schema::VERSION;
use super::{PostgresStore, bind};
use crate::error::StoreError;
use crate::status::{FIGURES, StoreStatus, status};

impl PostgresStore {
    pub fn status(&self, now: Time) -> Result<StoreStatus, StoreError> {
        let statement = format!(
            "SELECT pg_database_size(current_database()) AS database_bytes, {FIGURES},
                EXISTS (SELECT FROM sessions) AS is_served"
        );
        let rows = self.database.query(&statement, &[bind(&now.unix_millis())])?;
        let row = one(&rows)?;
        status(row, VERSION.into(), row.try_get("is_served")?)
    }
}
