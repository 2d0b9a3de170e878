//! What a store has, in figures.

use sandbox_api::service::Time;
use serde::Serialize;

use crate::error::StoreError;
use crate::integer::unsigned;
use crate::row::Columns as _;
use crate::statement::value;
use crate::{Backend, Store, postgres, sqlite};

/// What a store has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StoreStatus {
    /// Whether a server has the store open.
    #[serde(rename = "running")]
    pub is_served: bool,
    /// Executions that wait.
    pub queued: u64,
    /// Executions that run, or ran when their server was killed.
    #[serde(rename = "executing")]
    pub running: u64,
    /// Executions that have ended and are kept.
    pub ended: u64,
    /// The bytes of their results and files.
    pub stored_bytes: u64,
    /// Kept sandboxes.
    pub sandboxes: u64,
    /// Tokens that are valid.
    #[serde(rename = "valid_tokens")]
    pub tokens: u64,
    /// The version of its tables.
    pub schema: u64,
    /// The bytes of its database, without what waits in its log.
    pub database_bytes: u64,
}

/// The figures of both databases but two; `$1` is the time.
const FIGURES: &str =
    "(SELECT count(*) FROM executions WHERE ended_at IS NULL AND status = 'queued') AS queued,
    (SELECT count(*) FROM executions WHERE ended_at IS NULL AND status <> 'queued') AS running,
    (SELECT count(*) FROM executions WHERE ended_at IS NOT NULL AND NOT is_expired) AS ended,
    (SELECT CAST(coalesce(sum(bytes), 0) AS bigint) FROM stored) AS stored_bytes,
    (SELECT count(*) FROM sandboxes) AS sandboxes,
    (SELECT count(*) FROM tokens
        WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1)) AS tokens";

impl Store {
    /// Its figures.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn status(&self, now: Time) -> Result<StoreStatus, StoreError> {
        let (schema, bytes, is_served) = match &self.0 {
            Backend::Sqlite(store) => (
                unsigned(sqlite::VERSION),
                "(SELECT page_count * page_size FROM pragma_page_count, pragma_page_size)",
                if store.is_attached() { "TRUE" } else { "FALSE" },
            ),
            Backend::Postgres(_) => (
                postgres::VERSION.into(),
                "pg_database_size(current_database())",
                "EXISTS (SELECT FROM sessions)",
            ),
        };
        let statement =
            format!("SELECT {FIGURES}, {bytes} AS database_bytes, {is_served} AS is_served");
        self.one(&statement, &[value(now.unix_millis())], |row| {
            Ok(StoreStatus {
                is_served: row.column("is_served")?,
                schema,
                database_bytes: row.count("database_bytes")?,
                queued: row.count("queued")?,
                running: row.count("running")?,
                ended: row.count("ended")?,
                stored_bytes: row.count("stored_bytes")?,
                sandboxes: row.count("sandboxes")?,
                tokens: row.count("tokens")?,
            })
        })
    }
}
