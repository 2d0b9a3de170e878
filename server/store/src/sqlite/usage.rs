//! What subjects have used: its SQL.

use rusqlite::{Connection, params};
use sandbox_api::service::{Subject, SubjectStatus, Time};

use super::SqliteStore;
use crate::error::StoreError;
use crate::integer::signed;
use crate::row::Columns as _;
use crate::usage::{MAX, SUBJECTS, Usage, day, subject_status, usage};

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

    pub fn stored_bytes(&self, subject: &Subject) -> Result<u64, StoreError> {
        let statement = "SELECT bytes FROM stored WHERE subject = ?1";
        let bytes = self.first(statement, [subject.as_str()], |row| row.count("bytes"))?;
        Ok(bytes.unwrap_or(0))
    }

    pub fn subjects(&self, day: i64, limit: i64) -> Result<Vec<SubjectStatus>, StoreError> {
        self.all(SUBJECTS, params![day, limit], |row| subject_status(row))
    }

    /// What a subject has used from a day on.
    pub fn usage_from(&self, subject: &Subject, day: i64) -> Result<Usage, StoreError> {
        self.one(
            "SELECT ifnull(sum(executions), 0) AS executions, ifnull(sum(cpu_ms), 0) AS cpu_ms,
                ifnull(sum(wall_ms), 0) AS wall_ms, ifnull(sum(written_bytes), 0) AS written_bytes,
                ifnull((SELECT bytes FROM stored WHERE subject = ?1), 0) AS stored_bytes
             FROM usage WHERE subject = ?1 AND day >= ?2",
            params![subject.as_str(), day],
            |row| usage(row),
        )
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
