//! What a store has, in figures.

use rusqlite::params;
use sandbox_api::service::Time;

use crate::error::StoreError;
use crate::integer::unsigned;
use crate::{Store, schema};

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
