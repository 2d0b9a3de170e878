//! At which node things are: the files and the runs of executions, kept sandboxes, what agents have.

use sandbox_api::service::{SandboxStatus, Subject};
use tokio_postgres::Row;

use super::Cluster;
use super::parameters::{Parameters, bind, one, own};
use crate::cluster::{Place, SandboxElsewhere, Target};
use crate::error::StoreError;
use crate::row::Columns as _;
use crate::sandboxes::{COLUMNS, SandboxRecord};

impl Cluster {
    fn find_place(&self, found: &str, parameters: Parameters<'_>) -> Result<Place, StoreError> {
        let statement = format!(
            "SELECT found.node, s.id FROM ({found}) found \
             LEFT JOIN LATERAL (SELECT id FROM sessions WHERE node = found.node ORDER BY id DESC LIMIT 1) s \
             ON true"
        );
        let place = self.database.first(&statement, parameters, |row| {
            Ok(Place::Node { node: row.try_get(0)?, session: row.try_get(1)? })
        })?;
        Ok(place.unwrap_or(Place::Nowhere))
    }

    /// Where the target of a request of a subject is. What an agent has is at this node, if it is at none yet.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn place(
        &self,
        subject: &Subject,
        target: &Target,
        node: &str,
    ) -> Result<Place, StoreError> {
        let (found, id) = match target {
            Target::Here => return Ok(Place::Nowhere),
            Target::Workspace => return self.place_of_workspace(subject, node),
            Target::Execution(id) => (
                "SELECT node FROM executions \
                 WHERE id = $1 AND subject = $2 AND session IS NOT NULL AND ended_at IS NULL",
                id,
            ),
            Target::Files(id) => (
                "SELECT node FROM executions WHERE id = $1 AND subject = $2 AND node IS NOT NULL \
                 AND (ended_at IS NULL OR stored_bytes > octet_length(document))",
                id,
            ),
            Target::Sandbox(id) => {
                ("SELECT node FROM sandboxes WHERE id = $1 AND subject = $2", id)
            }
            Target::SandboxNamed(name) => {
                ("SELECT node FROM sandboxes WHERE name = $1 AND subject = $2", name)
            }
        };
        self.find_place(found, &[bind(id), bind(&subject.as_str())])
    }

    fn place_of_workspace(&self, subject: &Subject, node: &str) -> Result<Place, StoreError> {
        let found = "SELECT node FROM workspaces WHERE subject = $1";
        let of = subject.as_str();
        let parameters: Parameters<'_> = &[bind(&of)];
        let place = self.find_place(found, parameters)?;
        if place != Place::Nowhere {
            return Ok(place);
        }
        let new = vec![own(subject.as_str().to_owned()), own(node.to_owned())];
        let statement =
            "INSERT INTO workspaces (subject, node) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        let writer = self.database.writer_of(subject.as_str());
        self.database.change(writer, statement, new, |_| Ok(()))?;
        self.find_place(found, parameters)
    }

    /// The kept sandboxes of a subject at other nodes than this one, the latest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn sandboxes_elsewhere(
        &self,
        subject: &Subject,
        node: &str,
    ) -> Result<Vec<SandboxElsewhere>, StoreError> {
        let statement = format!(
            "SELECT {COLUMNS}, is_ready, is_paused, \
             EXISTS (SELECT FROM sessions s WHERE s.node = sandboxes.node) AS is_there \
             FROM sandboxes WHERE subject = $1 AND node <> $2 ORDER BY created_at DESC, id"
        );
        self.database.all(&statement, &[bind(&subject.as_str()), bind(&node)], |row| {
            Ok(SandboxElsewhere {
                record: SandboxRecord::read(row)?,
                status: match (row.try_get("is_ready")?, row.try_get("is_paused")?) {
                    (false, _) => SandboxStatus::Stopped,
                    (true, false) => SandboxStatus::Ready,
                    (true, true) => SandboxStatus::Paused,
                },
                is_there: row.try_get("is_there")?,
            })
        })
    }

    /// Whose a kept sandbox is, unless its time is over.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn owner_of_sandbox(&self, id: &str) -> Result<Option<Subject>, StoreError> {
        let now = self.database.now().unix_millis();
        let statement = "SELECT subject FROM sandboxes WHERE id = $1 AND expires_at > $2";
        self.database.first(statement, &[bind(&id), bind(&now)], Row::subject)
    }

    /// The kept sandboxes at other nodes than this one whose time is not over, and whose they are.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn owners_elsewhere(&self, node: &str) -> Result<Vec<(String, Subject)>, StoreError> {
        let now = self.database.now().unix_millis();
        let statement =
            "SELECT id, subject FROM sandboxes WHERE node <> $1 AND expires_at > $2 ORDER BY id";
        self.database.all(statement, &[bind(&node), bind(&now)], |row| {
            Ok((row.try_get("id")?, row.subject()?))
        })
    }

    /// Records the state of a kept sandbox, for the lists of other nodes.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn set_status(&self, id: &str, status: SandboxStatus) -> Result<(), StoreError> {
        let is_paused = status == SandboxStatus::Paused;
        let is_ready = is_paused || status == SandboxStatus::Ready;
        let parameters = vec![own(id.to_owned()), own(is_ready), own(is_paused)];
        let statement = "UPDATE sandboxes SET is_ready = $2, is_paused = $3 WHERE id = $1";
        self.database.change(self.database.writer_of(id), statement, parameters, |_| Ok(()))
    }

    /// Forgets a kept sandbox whose node is not there; its executions find out when they are begun. Whether it did.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn remove_away_sandbox(&self, subject: &Subject, id: &str) -> Result<bool, StoreError> {
        let parameters = vec![own(subject.as_str().to_owned()), own(id.to_owned())];
        let statement = "WITH gone AS (DELETE FROM sandboxes WHERE subject = $1 AND id = $2 \
                 AND NOT EXISTS (SELECT FROM sessions s WHERE s.node = sandboxes.node) RETURNING id), \
             freed AS (UPDATE queue q SET lane = '' FROM executions e, gone \
                 WHERE e.seq = q.execution AND e.sandbox = gone.id AND q.lane NOT LIKE '#%') \
             SELECT count(*) > 0 FROM gone";
        self.database.change(self.database.writer_of(id), statement, parameters, |rows| {
            Ok(one(rows)?.try_get(0)?)
        })
    }
}
