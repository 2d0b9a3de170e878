//! Executions that are not kept any longer: their SQL.

use rusqlite::Connection;
use sandbox_api::service::Time;

use super::SqliteStore;
use crate::error::StoreError;
use crate::integer::signed;
use crate::retention::BATCH;
use crate::row::Columns as _;

impl SqliteStore {
    pub fn expire(&self, before: Time, max_bytes: u64) -> Result<Vec<String>, StoreError> {
        let due = self.read(|connection| due(connection, before, signed(max_bytes)))?;
        if !due.is_empty() {
            self.write(move |connection| {
                let mut hide = connection
                    .prepare_cached("UPDATE executions SET is_expired = 1 WHERE seq = ?1")?;
                due.iter().try_for_each(|seq| hide.execute([seq]).map(drop))?;
                Ok(())
            })?;
        }
        let hidden = "SELECT id FROM executions WHERE is_expired ORDER BY seq LIMIT ?1";
        self.all(hidden, [BATCH], |row| row.column("id"))
    }

    pub fn forget(&self, ids: Vec<String>) -> Result<(), StoreError> {
        self.write(move |connection| {
            let mut delete =
                connection.prepare_cached("DELETE FROM executions WHERE id = ?1 AND is_expired")?;
            for id in &ids {
                delete.execute([id])?;
            }
            Ok(())
        })
    }

    pub fn oldest_end(&self) -> Result<Option<Time>, StoreError> {
        let oldest = "SELECT ended_at FROM executions WHERE ended_at IS NOT NULL AND NOT is_expired
            ORDER BY ended_at LIMIT 1";
        Ok(self.all(oldest, [], |row| row.time("ended_at"))?.pop())
    }
}

/// The oldest executions, as far as they ended before a time, or are more than `max_bytes` together
/// with all newer ones. No other one is looked at.
fn due(connection: &Connection, before: Time, max_bytes: i64) -> Result<Vec<i64>, StoreError> {
    let mut stored = connection.prepare_cached(
        "SELECT (SELECT ifnull(sum(bytes), 0) FROM stored)
            - (SELECT ifnull(sum(stored_bytes), 0) FROM executions WHERE is_expired)",
    )?;
    let mut kept: i64 = stored.query_row([], |row| row.get(0))?;
    let mut oldest = connection.prepare_cached(
        "SELECT seq, ended_at, stored_bytes FROM executions
         WHERE ended_at IS NOT NULL AND NOT is_expired ORDER BY ended_at, seq LIMIT ?1",
    )?;
    let (mut rows, mut due) = (oldest.query([BATCH])?, Vec::new());
    while let Some(row) = rows.next()?
        && (row.get::<_, i64>(1)? < before.unix_millis() || kept > max_bytes)
    {
        due.push(row.get(0)?);
        kept -= row.get::<_, i64>(2)?;
    }
    Ok(due)
}
