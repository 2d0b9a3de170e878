//! The sessions of nodes: begun, renewed, ended.

use std::time::Duration;

use sandbox_api::millis;
use sandbox_api::service::{NodeState, NodeStatus, Time};
use tokio_postgres::Row;

use super::Cluster;
use super::parameters::{bind, one};
use crate::cluster::{Beat, Drain, NewSession, NodeSession};
use crate::error::StoreError;
use crate::row::Columns as _;

/// How long a node waits for an answer about a session at most.
const MAX_WAIT: Duration = Duration::from_secs(10);

const SESSIONS: &str = "SELECT s.id, s.node, n.name, s.address, s.certificate, s.version, s.slots, s.running, \
     s.sandboxes, s.config_digest, n.draining, \
     (extract(epoch FROM clock_timestamp() - s.beat_at) * 1000)::bigint AS age \
     FROM sessions s JOIN nodes n ON n.id = s.node ORDER BY n.name, s.id";

impl Cluster {
    /// How long a beat or a claim waits for its answer: several fit into a lease.
    pub(super) fn wait(&self) -> Duration {
        (self.identity().lease * 2 / 5).min(MAX_WAIT)
    }

    /// Begins a session of a node, and ends those of its earlier processes. What the store changes from now on is
    /// of this session.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] if another process became this node after it had a session.
    pub fn begin_session(&self, new: &NewSession) -> Result<i64, StoreError> {
        let slots = i32::try_from(new.slots).unwrap_or(i32::MAX);
        let is_first = self.database.session() == 0;
        let rows = self.database.coordinate(
            MAX_WAIT,
            "SELECT begin_session($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            &[
                bind(&new.node),
                bind(&new.name),
                bind(&self.process),
                bind(&new.address),
                bind(&new.certificate.as_slice()),
                bind(&new.version),
                bind(&slots),
                bind(&new.config_digest),
                bind(&is_first),
            ],
        )?;
        let session: Option<i64> = one(&rows)?.try_get(0)?;
        let session = session.ok_or_else(|| {
            StoreError::refused(
                format!("another process is the node {} now", new.node),
                "its data directory was copied: stop one of the two, and remove node-id from its copy",
            )
        })?;
        self.database.set_session(&new.node, session);
        Ok(session)
    }

    /// Ends a session of this node.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn end_session(&self, session: i64) -> Result<(), StoreError> {
        let statement = "SELECT end_session($1, NULL)";
        self.database.coordinate(MAX_WAIT, statement, &[bind(&session)])?;
        Ok(())
    }

    /// Ends the session of a node that is gone, if it was not renewed since this beat. Whether it did.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn declare_dead(&self, session: i64, beat: i64) -> Result<bool, StoreError> {
        let rows = self.database.coordinate(
            self.wait(),
            "SELECT end_session($1, $2)",
            &[bind(&session), bind(&beat)],
        )?;
        Ok(one(&rows)?.try_get(0)?)
    }

    /// Renews a session of this node.
    ///
    /// # Errors
    ///
    /// [`StoreError::SessionLost`] if it has ended.
    pub fn beat(&self, session: i64, running: u32, sandboxes: u32) -> Result<Beat, StoreError> {
        let [running, sandboxes] =
            [running, sandboxes].map(|it| i32::try_from(it).unwrap_or(i32::MAX));
        let rows = self.database.coordinate(
            self.wait(),
            "SELECT * FROM beat($1, $2, $3)",
            &[bind(&session), bind(&running), bind(&sandboxes)],
        )?;
        let row = rows.first().ok_or(StoreError::SessionLost)?;
        self.database.set_clock(row.time("clock")?);
        let others: Vec<i64> = row.try_get("others")?;
        let beats: Vec<i64> = row.try_get("beats")?;
        Ok(Beat {
            drain: drain(row.try_get("draining")?),
            cancel_asked: row.try_get("cancel_asked")?,
            others: others.into_iter().zip(beats).collect(),
            waiting: row.count("waiting")?,
            oldest: row.try_get::<_, Option<i64>>("oldest")?.map(Time::from_unix_millis),
        })
    }

    /// The sessions that are alive, by the names of their nodes.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn sessions(&self) -> Result<Vec<NodeSession>, StoreError> {
        self.database.all(SESSIONS, &[], session)
    }

    /// All nodes, by their names.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn nodes(&self) -> Result<Vec<NodeStatus>, StoreError> {
        let sessions = self.sessions()?;
        let statement = "SELECT id, name, \
             coalesce((SELECT (extract(epoch FROM max(beat_at)) * 1000)::bigint FROM sessions \
                WHERE node = nodes.id), last_seen) AS last_seen, \
             (SELECT count(*) FROM sandboxes WHERE node = nodes.id) AS sandboxes \
             FROM nodes ORDER BY name, id";
        self.database.all(statement, &[], |row| {
            let (node, sandboxes): (String, _) = (row.try_get("id")?, row.count("sandboxes")?);
            let session = sessions.iter().rfind(|session| session.node == node);
            Ok(NodeStatus {
                node,
                name: row.try_get("name")?,
                state: session.map_or(NodeState::Away, |it| it.state(sandboxes)),
                address: session.map(|it| it.address.clone()),
                version: session.map(|it| it.version.clone()),
                running: session.map(|it| it.running),
                slots: session.map(|it| it.slots),
                sandboxes,
                config_digest: session.map(|it| it.config_digest.clone()),
                beat_age_ms: session.map(|it| millis(it.beat_age)),
                last_seen: row.time("last_seen")?,
            })
        })
    }

    /// Lets a node take new work, or none. Whether there is one.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn set_draining(&self, node: &str, drain: Drain) -> Result<bool, StoreError> {
        let drain = match drain {
            Drain::No => 0_i16,
            Drain::Yes => 1,
            Drain::Evict => 2,
        };
        let rows = self.database.coordinate(
            MAX_WAIT,
            "UPDATE nodes SET draining = $2 WHERE id = $1 RETURNING 1",
            &[bind(&node), bind(&drain)],
        )?;
        Ok(!rows.is_empty())
    }

    /// Forgets a node that does not come back, with its kept sandboxes. Whether it did: not one that is there.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn forget(&self, node: &str) -> Result<bool, StoreError> {
        let rows = self.database.coordinate(MAX_WAIT, "SELECT forget($1)", &[bind(&node)])?;
        Ok(one(&rows)?.try_get(0)?)
    }
}

fn session(row: &Row) -> Result<NodeSession, StoreError> {
    let figure = |column| -> Result<u32, StoreError> {
        Ok(u32::try_from(row.try_get::<_, i32>(column)?).unwrap_or_default())
    };
    let certificate: Vec<u8> = row.try_get("certificate")?;
    Ok(NodeSession {
        id: row.try_get("id")?,
        node: row.try_get("node")?,
        name: row.try_get("name")?,
        address: row.try_get("address")?,
        certificate: certificate.try_into().map_err(|_| StoreError::row("a certificate"))?,
        version: row.try_get("version")?,
        slots: figure("slots")?,
        running: figure("running")?,
        sandboxes: figure("sandboxes")?,
        config_digest: row.try_get("config_digest")?,
        is_draining: drain(row.try_get("draining")?) != Drain::No,
        beat_age: Duration::from_millis(row.count("age")?),
    })
}

const fn drain(stored: i16) -> Drain {
    match stored {
        0 => Drain::No,
        2 => Drain::Evict,
        _ => Drain::Yes,
    }
}
