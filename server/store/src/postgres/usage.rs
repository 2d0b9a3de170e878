//! What subjects have used: its SQL.

use sandbox_api::service::{Subject, SubjectStatus, Time};

use super::parameters::one;
use super::{PostgresStore, bind, own};
use crate::error::StoreError;
use crate::integer::{signed, unsigned};
use crate::usage::{MAX, SUBJECTS, Usage, day, subject_status, usage};

impl PostgresStore {
    pub fn add_usage(
        &self,
        subject: &Subject,
        ended_at: Time,
        used: sandbox_api::Usage,
    ) -> Result<(), StoreError> {
        let writer = self.database.writer_of(subject.as_str());
        let parameters = vec![
            own(subject.as_str().to_owned()),
            own(day(ended_at)),
            own(self.database.node().to_owned()),
            own(writer as i16),
            own(signed(used.cpu_ms.unwrap_or(0))),
            own(signed(used.wall_ms)),
            own(signed(used.written_bytes.unwrap_or(0))),
            own(MAX),
        ];
        let statement = "SELECT add_usage($1, $2, $3, $4, $5, $6, $7, $8)";
        self.database.change(writer, statement, parameters, |_| Ok(()))
    }

    pub fn stored_bytes(&self, subject: &Subject) -> Result<u64, StoreError> {
        let statement = "SELECT coalesce(sum(bytes), 0)::bigint FROM stored WHERE subject = $1";
        let rows = self.database.query(statement, &[bind(&subject.as_str())])?;
        Ok(unsigned(one(&rows)?.try_get(0)?))
    }

    pub fn subjects(&self, day: i64, limit: i64) -> Result<Vec<SubjectStatus>, StoreError> {
        let rows = self.database.query(SUBJECTS, &[bind(&day), bind(&limit)])?;
        rows.iter().map(subject_status).collect()
    }

    /// What a subject has used from a day on.
    pub fn usage_from(&self, subject: &Subject, day: i64) -> Result<Usage, StoreError> {
        // Sums of integers are numerics.
        let rows = self.database.query(
            "SELECT coalesce(sum(executions), 0)::bigint AS executions,
                coalesce(sum(cpu_ms), 0)::bigint AS cpu_ms, coalesce(sum(wall_ms), 0)::bigint AS wall_ms,
                coalesce(sum(written_bytes), 0)::bigint AS written_bytes,
                (SELECT coalesce(sum(bytes), 0)::bigint FROM stored WHERE subject = $1) AS stored_bytes
             FROM usage WHERE subject = $1 AND day >= $2",
            &[bind(&subject.as_str()), bind(&day)],
        )?;
        usage(one(&rows)?)
    }
}
