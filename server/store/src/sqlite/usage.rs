//! What subjects have used: its SQL.

use rusqlite::{Connection, OptionalExtension, params};
use sandbox_api::service::{Subject, Time};

use super::SqliteStore;
use crate::error::StoreError;
use crate::integer::{signed, unsigned};
use crate::usage::{MAX, SUBJECTS, SubjectUsage, Usage, day};

impl SqliteStore {
    pub fn usage(&self, subject: &Subject) -> Result<Usage, StoreError> {
        self.usage_from(subject, i64::MIN)
    }

    pub fn usage_since(&self, subject: &Subject, since: Time) -> Result<Usage, StoreError> {
        self.usage_from(subject, day(since))
    }

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
        self.read(|connection| {
            let mut query =
                connection.prepare_cached("SELECT bytes FROM stored WHERE subject = ?1")?;
            let bytes = query.query_row([subject.as_str()], |row| row.get(0)).optional()?;
            Ok(bytes.map_or(0, unsigned))
        })
    }

    pub fn subjects(&self, day: i64, limit: i64) -> Result<Vec<SubjectUsage>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(SUBJECTS)?;
            let mut rows = query.query(params![day, limit])?;
            let mut subjects = Vec::new();
            while let Some(row) = rows.next()? {
                let figure = |column| Ok::<_, rusqlite::Error>(unsigned(row.get(column)?));
                subjects.push(SubjectUsage {
                    subject: Subject::new(row.get::<_, String>(0)?).map_err(StoreError::row)?,
                    queued: figure(1)?,
                    running: figure(2)?,
                    sandboxes: figure(3)?,
                    executions: figure(4)?,
                    cpu_ms: figure(5)?,
                    stored_bytes: figure(6)?,
                });
            }
            Ok(subjects)
        })
    }

    fn usage_from(&self, subject: &Subject, day: i64) -> Result<Usage, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT ifnull(sum(executions), 0), ifnull(sum(cpu_ms), 0), ifnull(sum(wall_ms), 0),
                    ifnull(sum(written_bytes), 0),
                    ifnull((SELECT bytes FROM stored WHERE subject = ?1), 0)
                 FROM usage WHERE subject = ?1 AND day >= ?2",
            )?;
            let usage = query.query_row(params![subject.as_str(), day], |row| {
                Ok(Usage {
                    executions: unsigned(row.get(0)?),
                    cpu_ms: unsigned(row.get(1)?),
                    wall_ms: unsigned(row.get(2)?),
                    written_bytes: unsigned(row.get(3)?),
                    stored_bytes: unsigned(row.get(4)?),
                })
            })?;
            Ok(usage)
        })
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
