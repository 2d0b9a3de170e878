//! What subjects have used.

use sandbox_api::service::{Subject, SubjectStatus, Time, UsageTotals};

use crate::Store;
use crate::error::StoreError;
use crate::integer::signed;
use crate::row::Columns;
use crate::statement::value;

const DAY_MS: i64 = 24 * 3600 * 1000;
/// The most of anything in a day: 30,000 years of milliseconds, a PiB. Some figures are those of a
/// guest, and no sum of them may be more than a database can add.
pub(crate) const MAX: i64 = 1 << 50;

/// The columns of [`SubjectStatus`], for a day and at most so many subjects. What is under way and kept is bounded by
/// the service, and an index has what was used on a day.
const SUBJECTS: &str = "
    WITH each AS (
        SELECT subject, count(CASE WHEN status = 'queued' THEN 1 END) AS queued,
            count(CASE WHEN status <> 'queued' THEN 1 END) AS running,
            0 AS sandboxes, 0 AS executions, 0 AS cpu_ms
        FROM executions WHERE ended_at IS NULL GROUP BY subject
        UNION ALL SELECT subject, 0, 0, count(*), 0, 0 FROM sandboxes GROUP BY subject
        UNION ALL SELECT subject, 0, 0, 0, sum(executions), sum(cpu_ms)
        FROM usage WHERE day = $1 GROUP BY subject
    ), found AS (
        SELECT subject, sum(queued) AS queued, sum(running) AS running, sum(sandboxes) AS sandboxes,
            sum(executions) AS executions, sum(cpu_ms) AS cpu_ms
        FROM each GROUP BY subject
        ORDER BY sum(queued) + sum(running) DESC, sum(cpu_ms) DESC, subject LIMIT $2
    )
    SELECT subject, CAST(queued AS bigint) AS queued, CAST(running AS bigint) AS running,
        CAST(sandboxes AS bigint) AS sandboxes, CAST(executions AS bigint) AS executions,
        CAST(cpu_ms AS bigint) AS cpu_ms,
        CAST((SELECT coalesce(sum(bytes), 0) FROM stored WHERE stored.subject = found.subject) AS bigint)
            AS stored_bytes
    FROM found ORDER BY found.queued + found.running DESC, found.cpu_ms DESC, found.subject";

/// The columns of [`SUBJECTS`].
fn subject_status(row: &impl Columns) -> Result<SubjectStatus, StoreError> {
    Ok(SubjectStatus {
        subject: row.subject()?,
        queued: row.count("queued")?,
        running: row.count("running")?,
        sandboxes: row.count("sandboxes")?,
        executions_today: row.count("executions")?,
        cpu_ms_today: row.count("cpu_ms")?,
        stored_bytes: row.count("stored_bytes")?,
    })
}

impl Store {
    /// Up to `limit` subjects of which something waits, runs, is kept, or has ended on the UTC day of `now`; those of
    /// which most is under way first.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn subjects(&self, now: Time, limit: usize) -> Result<Vec<SubjectStatus>, StoreError> {
        let values = [value(day(now)), value(signed(limit as u64))];
        self.all(SUBJECTS, &values, |row| subject_status(row))
    }

    /// What a subject has used ever, and what of it is stored now.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn usage(&self, subject: &Subject) -> Result<UsageTotals, StoreError> {
        self.usage_from(subject, i64::MIN)
    }

    /// What a subject has used since the beginning of the UTC day of `since`.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn usage_since(&self, subject: &Subject, since: Time) -> Result<UsageTotals, StoreError> {
        self.usage_from(subject, day(since))
    }

    /// What a subject has used from a day on, and what is stored now, for any period.
    fn usage_from(&self, subject: &Subject, day: i64) -> Result<UsageTotals, StoreError> {
        // Sums of integers are numerics in PostgreSQL.
        self.one(
            "SELECT CAST(coalesce(sum(executions), 0) AS bigint) AS executions,
                CAST(coalesce(sum(cpu_ms), 0) AS bigint) AS cpu_ms,
                CAST(coalesce(sum(wall_ms), 0) AS bigint) AS wall_ms,
                CAST(coalesce(sum(written_bytes), 0) AS bigint) AS written_bytes,
                (SELECT CAST(coalesce(sum(bytes), 0) AS bigint) FROM stored WHERE subject = $1)
                    AS stored_bytes
             FROM usage WHERE subject = $1 AND day >= $2",
            &[value(subject.as_str().to_owned()), value(day)],
            |row| {
                Ok(UsageTotals {
                    executions: row.count("executions")?,
                    cpu_ms: row.count("cpu_ms")?,
                    wall_ms: row.count("wall_ms")?,
                    written_bytes: row.count("written_bytes")?,
                    stored_bytes: row.count("stored_bytes")?,
                    ..UsageTotals::default()
                })
            },
        )
    }

    /// The bytes of results and files that are stored of a subject now.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn stored_bytes(&self, subject: &Subject) -> Result<u64, StoreError> {
        let statement = "SELECT CAST(coalesce(sum(bytes), 0) AS bigint) AS bytes FROM stored
             WHERE subject = $1";
        self.one(statement, &[value(subject.as_str().to_owned())], |row| row.count("bytes"))
    }
}

of_either! {
    /// Adds something that ended and is no execution of the store to what its subject has used.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn add_usage(
        &self, subject: &Subject, ended_at: Time, used: sandbox_api::Usage
    ) -> Result<(), StoreError>;
}

/// The UTC day of a time, counted from that of the Unix epoch.
pub(crate) fn day(time: Time) -> i64 {
    time.unix_millis().div_euclid(DAY_MS)
}
