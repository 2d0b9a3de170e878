//! API tokens: their SQL.

use rusqlite::params;
use sandbox_api::service::Time;

use super::SqliteStore;
use crate::error::StoreError;
use crate::statement::{in_sqlite, of_sqlite};
use crate::tokens::{INSERT, Rotated, TokenRecord};

impl SqliteStore {
    pub fn rotate_token(
        &self,
        id: &str,
        new: TokenRecord,
        now: Time,
        until: Option<Time>,
    ) -> Result<Rotated, StoreError> {
        let id = id.to_owned();
        self.write(move |connection| {
            let (now, until) = (now.unix_millis(), until.map(Time::unix_millis));
            let changed = connection.execute(
                "UPDATE tokens SET revoked_at = iif(?3 IS NULL, ?2, NULL),
                    expires_at = iif(?3 IS NULL, expires_at, min(ifnull(expires_at, ?3), ?3))
                 WHERE id = ?1 AND revoked_at IS NULL AND ifnull(expires_at > ?2, TRUE)",
                params![id, now, until],
            )?;
            if changed > 0 {
                connection.execute(&of_sqlite(INSERT), in_sqlite(&new.values()))?;
                return Ok(Rotated::Done);
            }
            let mut known = connection.prepare_cached("SELECT 1 FROM tokens WHERE id = ?1")?;
            Ok(if known.exists([id])? { Rotated::NotValid } else { Rotated::Missing })
        })
    }
}
