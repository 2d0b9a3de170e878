//! What subjects have used: its SQL.

use rusqlite::{Connection, params};
use sandbox_api::service::{Subject, Time};

use super::SqliteStore;
use crate::error::StoreError;
use crate::integer::signed;
use crate::usage::{MAX, day};

impl SqliteStore {
    pub fn add_usage(
        &self,
        subject: &Subject,
        ended_at: Time,
        used: sandbox_api::Usage,
    ) -> Result<(), StoreError> {
        let subject = subject.clone();
        self.write(move |connection| add(connection, subject.as_str(), ended_at, &used))
    }
}

/// Adds an execution that ended.
pub(crate) fn add(
    connection: &Connection,
    subject: &str,
    ended_at: Time,
    used: &sandbox_api::Usage,
) -> Result<(), StoreError> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO usage VALUES (?1, ?2, 1, ?3, ?4, ?5)
         ON CONFLICT (subject, day) DO UPDATE SET executions = executions + 1,
            cpu_ms = min(cpu_ms + excluded.cpu_ms, ?6),
            wall_ms = min(wall_ms + excluded.wall_ms, ?6),
            written_bytes = min(written_bytes + excluded.written_bytes, ?6)",
    )?;
    let (cpu, written) = (used.cpu_ms.unwrap_or(0), used.written_bytes.unwrap_or(0));
    let [cpu, wall, written] = [cpu, used.wall_ms, written].map(|figure| signed(figure).min(MAX));
    insert.execute(params![subject, day(ended_at), cpu, wall, written, MAX])?;
    Ok(())
}
