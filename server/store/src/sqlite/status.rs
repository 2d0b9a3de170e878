//! What a store has, in figures: their SQL.

use rusqlite::params;
use sandbox_api::service::Time;

use super::{SqliteStore, schema};
use crate::error::StoreError;
use crate::integer::unsigned;
use crate::status::StoreStatus;

impl SqliteStore {
    pub fn status(&self, now: Time) -> Result<StoreStatus, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare(
                "SELECT (SELECT page_count * page_size FROM pragma_page_count, pragma_page_size),
                    (SELECT count(*) FROM executions WHERE ended_at IS NULL AND status = 'queued'),
                    (SELECT count(*) FROM executions WHERE ended_at IS NULL AND status <> 'queued'),
                    (SELECT count(*) FROM executions WHERE ended_at IS NOT NULL AND NOT is_expired),
                    (SELECT ifnull(sum(bytes), 0) FROM stored),
                    (SELECT count(*) FROM sandboxes),
                    (SELECT count(*) FROM tokens
                        WHERE revoked_at IS NULL AND ifnull(expires_at > ?1, TRUE))",
            )?;
            Ok(query.query_row(params![now.unix_millis()], |row| {
                let figure = |column| Ok::<_, rusqlite::Error>(unsigned(row.get(column)?));
                Ok(StoreStatus {
                    is_served: self.0.lock.is_none(),
                    schema: unsigned(schema::VERSION),
                    database_bytes: figure(0)?,
                    queued: figure(1)?,
                    running: figure(2)?,
                    ended: figure(3)?,
                    stored_bytes: figure(4)?,
                    sandboxes: figure(5)?,
                    tokens: figure(6)?,
                })
            })?)
        })
    }
}
