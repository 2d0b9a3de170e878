//! Executions that wait for any node, are held by a session, or were by one that has ended.

use std::time::Duration;

use sandbox_api::service::Subject;
use tokio_postgres::Row;

use super::Cluster;
use super::parameters::{Parameter, bind, one, own};
use super::writer::Change;
use crate::cluster::{Claimed, Claims, Holdings, OrphanedExecution, Progress, SubjectCounts};
use crate::error::StoreError;
use crate::executions::{RECOVERED, RecoveredExecution, recovered, wait};
use crate::row::Columns as _;

impl Cluster {
    /// Takes up to so many executions that wait: of the subjects that run less than their limit, in turns. None if
    /// the session has ended, or its node drains.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; some may have been [claimed](Self::holdings) then.
    pub fn claim(
        &self,
        session: i64,
        slots: u32,
        subject_limit: u64,
    ) -> Result<Claims, StoreError> {
        let slots = i32::try_from(slots).unwrap_or(i32::MAX);
        let limit = i64::try_from(subject_limit).unwrap_or(i64::MAX);
        let rows = self.database.coordinate(
            self.wait(),
            &format!("SELECT {RECOVERED}, coalesce(request, '') AS text FROM claim($1, $2, $3)"),
            &[bind(&session), bind(&slots), bind(&limit)],
        )?;
        let claimed: Vec<_> = rows.iter().map(claimed).collect::<Result<_, _>>()?;
        // Without a slot left it is of no use to know: a node that has one again looks again.
        let is_full = usize::try_from(slots).is_ok_and(|slots| claimed.len() >= slots);
        let has_more = is_full || {
            let waits = "SELECT EXISTS (SELECT FROM queue)";
            one(&self.database.coordinate(self.wait(), waits, &[])?)?.try_get(0)?
        };
        Ok(Claims { claimed, has_more })
    }

    /// What a session holds.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn holdings(&self, session: i64) -> Result<Holdings, StoreError> {
        let rows = self.database.query(
            "SELECT id, status <> 'queued' AS has_begun, true AS is_held FROM executions \
             WHERE session = $1 AND ended_at IS NULL \
             UNION ALL SELECT e.id, false, false FROM queue q JOIN executions e ON e.seq = q.execution \
             WHERE q.lane = '#' || $1",
            &[bind(&session)],
        )?;
        let mut holdings = Holdings::default();
        for row in &rows {
            match row.try_get("is_held")? {
                true => holdings.held.push((row.try_get("id")?, row.try_get("has_begun")?)),
                false => holdings.waiting.push(row.try_get("id")?),
            }
        }
        Ok(holdings)
    }

    /// Those of these executions that a session holds.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn held_by(&self, session: i64, ids: &[String]) -> Result<Vec<Claimed>, StoreError> {
        let statement = format!(
            "SELECT {RECOVERED}, coalesce(request, '') AS text FROM executions \
             WHERE session = $1 AND ended_at IS NULL AND id = ANY ($2)"
        );
        self.database.all(&statement, &[bind(&session), bind(&ids)], claimed)
    }

    /// Executions whose session has ended without them.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn orphans(&self) -> Result<Vec<OrphanedExecution>, StoreError> {
        // Two joins. With an `OR` there would be none, but a look for the session of each execution.
        let statement = format!(
            "SELECT {RECOVERED}, session, claims, cancel_asked FROM executions \
             WHERE ended_at IS NULL AND seq IN (\
                 SELECT e.seq FROM executions e \
                 WHERE e.ended_at IS NULL AND e.session IS NOT NULL \
                     AND NOT EXISTS (SELECT FROM sessions s WHERE s.id = e.session) \
                 UNION ALL SELECT e.seq FROM queue q JOIN executions e ON e.seq = q.execution \
                 WHERE e.session IS NULL AND q.lane LIKE '#%' \
                     AND NOT EXISTS (SELECT FROM sessions s WHERE '#' || s.id = q.lane)) \
             ORDER BY seq"
        );
        self.database.all(&statement, &[], |row| {
            Ok(OrphanedExecution {
                execution: recovered(row)?,
                session: row.try_get("session")?,
                claims: u32::try_from(row.try_get::<_, i32>("claims")?).unwrap_or_default(),
                is_cancelled: row.try_get("cancel_asked")?,
            })
        })
    }

    /// Puts an execution that a session had claimed and not begun back to its place in the queue. Whether it did.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn requeue(&self, subject: &Subject, id: &str, session: i64) -> Result<bool, StoreError> {
        let parameters = vec![own(id.to_owned()), own(session)];
        self.change_share(subject, "SELECT requeue($1, $2)", parameters, |row| Ok(row.try_get(0)?))
    }

    /// Makes a change of the share of a subject.
    fn change_share<T: Send + 'static>(
        &self,
        subject: &Subject,
        statement: &'static str,
        parameters: Vec<Parameter>,
        read: impl FnOnce(&Row) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        wait(|then| {
            let read = move |rows: &[Row]| read(one(rows)?);
            let change = Change::new(statement, parameters, read, then).with_share(subject);
            self.database.write(self.database.writer_of(subject.as_str()), change);
        })
    }

    /// An execution of a subject, if it waits and no session holds it.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn waiting(
        &self,
        subject: &Subject,
        id: &str,
    ) -> Result<Option<RecoveredExecution>, StoreError> {
        let statement = format!(
            "SELECT {RECOVERED} FROM executions \
             WHERE id = $1 AND subject = $2 AND session IS NULL AND ended_at IS NULL"
        );
        self.database.first(&statement, &[bind(&id), bind(&subject.as_str())], recovered)
    }

    /// Asks the session that holds an execution to cancel it. Whether one does.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn ask_cancel(&self, subject: &Subject, id: &str) -> Result<bool, StoreError> {
        let parameters = vec![own(id.to_owned()), own(subject.as_str().to_owned())];
        let statement = "UPDATE executions SET cancel_asked = true \
             WHERE id = $1 AND subject = $2 AND session IS NOT NULL AND ended_at IS NULL RETURNING 1";
        let writer = self.database.writer_of(id);
        self.database.change(writer, statement, parameters, |rows| Ok(!rows.is_empty()))
    }

    /// How far executions are. Those that do not exist are left out.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn progress(&self, ids: &[String]) -> Result<Vec<(String, Progress)>, StoreError> {
        let statement = "SELECT id, last_event, started_at IS NOT NULL AS has_begun, \
             ended_at IS NOT NULL AS has_ended FROM executions WHERE id = ANY ($1)";
        self.database.all(statement, &[bind(&ids)], |row| {
            let progress = Progress {
                last_event: row.count("last_event")?,
                has_begun: row.try_get("has_begun")?,
                has_ended: row.try_get("has_ended")?,
            };
            Ok((row.try_get("id")?, progress))
        })
    }

    /// What there is of a subject, at all nodes.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn counts_of(&self, subject: &Subject) -> Result<SubjectCounts, StoreError> {
        let rows = self.database.query(
            "SELECT (SELECT count(*) FROM queue WHERE subject = $1) AS queued, held($1) AS running, \
             (SELECT count(*) FROM sandboxes WHERE subject = $1) AS sandboxes",
            &[bind(&subject.as_str())],
        )?;
        let row = one(&rows)?;
        Ok(SubjectCounts {
            queued: row.count("queued")?,
            running: row.count("running")?,
            sandboxes: row.count("sandboxes")?,
        })
    }

    /// Counts a request of a subject that may make so many in a minute. If there were too many: when the next one may
    /// come.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn take_rate(
        &self,
        subject: &Subject,
        per_minute: u32,
    ) -> Result<Option<Duration>, StoreError> {
        let parameters = vec![own(subject.as_str().to_owned()), own(f64::from(per_minute))];
        let wait: f64 =
            self.change_share(subject, "SELECT take_rate($1, $2)", parameters, |row| {
                Ok(row.try_get(0)?)
            })?;
        Ok((wait > 0.0).then(|| Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX)))
    }
}

fn claimed(row: &Row) -> Result<Claimed, StoreError> {
    Ok(Claimed { execution: recovered(row)?, request: row.try_get("text")? })
}
