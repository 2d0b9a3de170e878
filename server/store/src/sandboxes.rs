//! Kept sandboxes. A record outlives its container: the next use of the sandbox starts another one,
//! its next generation.

use std::time::Duration;

use sandbox_api::millis;
use sandbox_api::service::{IdleAction, KeptSpec, Subject, Time};
use serde_json::{Map, Value};

use crate::Store;
use crate::error::StoreError;
use crate::integer::{signed, unsigned};
use crate::row::Columns;
use crate::statement::{self, value};

/// A kept sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRecord {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub subject: Subject,
    /// The name that its creator gave it, which none of the subject's others has.
    pub name: Option<String>,
    /// The number of containers that it has had.
    pub generation: u64,
    /// What it is.
    pub spec: KeptSpec,
    /// What its creator said about it.
    pub metadata: Map<String, Value>,
    /// When it was created.
    pub created_at: Time,
    /// When it was last used.
    pub last_used_at: Time,
    /// When it is removed.
    pub expires_at: Time,
    /// The latest that it can be extended to.
    pub max_expires_at: Time,
    /// The time without a use after which its container ends.
    pub idle: Option<Duration>,
    /// What happens then.
    pub idle_action: IdleAction,
}

/// What of a sandbox is stored.
pub(crate) const COLUMNS: &str = "id, subject, name, generation, spec, metadata, created_at, \
                                  last_used_at, expires_at, max_expires_at, idle_ms";

/// The member of the JSON of a spec, as it is stored, that says what happens to an idle sandbox, unless it is
/// stopped.
const IDLE: &str = "idle";

impl SandboxRecord {
    /// The values of these [`COLUMNS`]. What happens when it is idle is stored with its spec.
    pub(crate) fn values(self) -> Result<Vec<statement::Value>, StoreError> {
        let mut spec = serde_json::to_value(&self.spec).map_err(StoreError::row)?;
        if self.idle_action != IdleAction::default() {
            spec[IDLE] = serde_json::to_value(self.idle_action).map_err(StoreError::row)?;
        }
        Ok(vec![
            value(self.id),
            value(self.subject.as_str().to_owned()),
            value(self.name),
            value(signed(self.generation)),
            value(spec.to_string()),
            value(Value::Object(self.metadata).to_string()),
            value(self.created_at.unix_millis()),
            value(self.last_used_at.unix_millis()),
            value(self.expires_at.unix_millis()),
            value(self.max_expires_at.unix_millis()),
            value(self.idle.map(|idle| signed(millis(idle)))),
        ])
    }

    /// The one that a row with these [`COLUMNS`] is.
    pub(crate) fn read(row: &impl Columns) -> Result<Self, StoreError> {
        let mut members: Map<String, Value> = row.json("spec")?;
        let action = members.remove(IDLE).map(serde_json::from_value).transpose();
        let idle = row.column::<Option<i64>>("idle_ms")?.map(unsigned).map(Duration::from_millis);
        Ok(Self {
            id: row.column("id")?,
            subject: row.subject()?,
            name: row.column("name")?,
            generation: row.count("generation")?,
            spec: serde_json::from_value(Value::Object(members)).map_err(StoreError::row)?,
            metadata: row.json("metadata")?,
            created_at: row.time("created_at")?,
            last_used_at: row.time("last_used_at")?,
            expires_at: row.time("expires_at")?,
            max_expires_at: row.time("max_expires_at")?,
            idle,
            idle_action: action.map_err(StoreError::row)?.unwrap_or_default(),
        })
    }
}

of_either! {
    /// Stores a new sandbox, unless the subject has one of its name. Whether it is stored.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn create_sandbox(&self, new: SandboxRecord) -> Result<bool, StoreError>;

    /// Records a use of a sandbox: its generation and the time. Each only grows, in whichever order those who
    /// use it arrive.
    ///
    /// # Errors
    ///
    /// [`StoreError::State`] if it is not stored.
    fn update_sandbox(
        &self, id: &str, generation: u64, last_used_at: Time
    ) -> Result<(), StoreError>;

    /// All kept sandboxes, of all subjects, oldest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn sandboxes(&self) -> Result<Vec<SandboxRecord>, StoreError>;
}

impl Store {
    /// Forgets a sandbox. Whether it was stored.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn remove_sandbox(&self, id: &str) -> Result<bool, StoreError> {
        let statement = "DELETE FROM sandboxes WHERE id = $1 RETURNING 1";
        Ok(self.change(id, statement, vec![value(id.to_owned())])? > 0)
    }

    /// Changes the expiry of a sandbox, never past its maximum, and its metadata: those that are given.
    ///
    /// # Errors
    ///
    /// [`StoreError::State`] if it is not stored.
    pub fn change_sandbox(
        &self,
        id: &str,
        expires_at: Option<Time>,
        metadata: Option<Map<String, Value>>,
    ) -> Result<(), StoreError> {
        let expires_at = expires_at.map(Time::unix_millis);
        let metadata = metadata.map(|metadata| Value::Object(metadata).to_string());
        either!(self, store => store.change_sandbox(id, expires_at, metadata))
    }
}
