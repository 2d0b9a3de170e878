//! What a store has, in figures: their SQL.

use sandbox_api::service::Time;

use super::parameters::one;
use super::schema::VERSION;
use super::{PostgresStore, bind};
use crate::error::StoreError;
use crate::integer::unsigned;
use crate::status::StoreStatus;

impl PostgresStore {
    pub fn status(&self, now: Time) -> Result<StoreStatus, StoreError> {
        let rows = self.database.query(
            "SELECT pg_database_size(current_database()),
                (SELECT count(*) FROM executions WHERE ended_at IS NULL AND status = 'queued'),
                (SELECT count(*) FROM executions WHERE ended_at IS NULL AND status <> 'queued'),
                (SELECT count(*) FROM executions WHERE ended_at IS NOT NULL AND NOT is_expired),
                (SELECT coalesce(sum(bytes), 0)::bigint FROM stored),
                (SELECT count(*) FROM sandboxes),
                (SELECT count(*) FROM tokens
                    WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1)),
                EXISTS (SELECT FROM sessions)",
            &[bind(&now.unix_millis())],
        )?;
        let row = one(&rows)?;
        let figure = |column: usize| Ok::<_, StoreError>(unsigned(row.try_get(column)?));
        Ok(StoreStatus {
            is_served: row.try_get(7)?,
            schema: VERSION.into(),
            database_bytes: figure(0)?,
            queued: figure(1)?,
            running: figure(2)?,
            ended: figure(3)?,
            stored_bytes: figure(4)?,
            sandboxes: figure(5)?,
            tokens: figure(6)?,
        })
    }
}
