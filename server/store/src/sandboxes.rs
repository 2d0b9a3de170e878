//! Kept sandboxes. A record outlives its container: the next use of the sandbox starts another one,
//! its next generation.

use std::time::Duration;

use sandbox_api::service::{KeptSpec, Subject, Time};
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

    /// Records what changes of a sandbox: its generation, its last use, its expiry. Each only grows,
    /// in whichever order those who change them arrive.
    ///
    /// # Errors
    ///
    /// [`StoreError::State`] if it is not stored.
    pub fn update_sandbox(
        &self,
        id: &str,
        generation: u64,
        last_used_at: Time,
        expires_at: Time,
    ) -> Result<(), StoreError> {
        either!(self, store => store.update_sandbox(id, generation, last_used_at, expires_at))
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
