//! Kept sandboxes. A record outlives its container: the next use of the sandbox starts another one,
//! its next generation.

use std::time::Duration;

use sandbox_api::service::{IdleAction, KeptSpec, Subject, Time};
use serde_json::{Map, Value};

use crate::Store;
use crate::error::StoreError;

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

/// The member of the JSON of a spec, as it is stored, that says what happens to an idle sandbox, unless it is
/// stopped.
const IDLE: &str = "idle";

impl SandboxRecord {
    /// What is stored as its spec: that, and what happens when it is idle.
    pub(crate) fn spec_json(&self) -> Result<String, StoreError> {
        let mut json = serde_json::to_value(&self.spec).map_err(StoreError::row)?;
        if !self.idle_action.is_default() {
            json[IDLE] = serde_json::to_value(self.idle_action).map_err(StoreError::row)?;
        }
        Ok(json.to_string())
    }

    /// Reads what is stored as a spec.
    pub(crate) fn read_spec(json: &str) -> Result<(KeptSpec, IdleAction), StoreError> {
        let mut members: Map<String, Value> =
            serde_json::from_str(json).map_err(StoreError::row)?;
        let action = members.remove(IDLE).map(serde_json::from_value).transpose();
        let spec = serde_json::from_value(Value::Object(members)).map_err(StoreError::row)?;
        Ok((spec, action.map_err(StoreError::row)?.unwrap_or_default()))
    }
}

impl Store {
    /// Stores a new sandbox, unless the subject has one of its name. Whether it is stored.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn create_sandbox(&self, new: SandboxRecord) -> Result<bool, StoreError> {
        either!(self, store => store.create_sandbox(new))
    }

    /// Records a use of a sandbox: its generation and the time. Each only grows, in whichever order those who
    /// use it arrive.
    ///
    /// # Errors
    ///
    /// [`StoreError::State`] if it is not stored.
    pub fn update_sandbox(
        &self,
        id: &str,
        generation: u64,
        last_used_at: Time,
    ) -> Result<(), StoreError> {
        either!(self, store => store.update_sandbox(id, generation, last_used_at))
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

    /// All kept sandboxes, of all subjects, oldest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn sandboxes(&self) -> Result<Vec<SandboxRecord>, StoreError> {
        either!(self, store => store.sandboxes())
    }

    /// Forgets a sandbox. Whether it was stored.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn remove_sandbox(&self, id: &str) -> Result<bool, StoreError> {
        either!(self, store => store.remove_sandbox(id))
    }
}
