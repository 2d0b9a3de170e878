//! API tokens. Of the secret part only a digest is stored.

use sandbox_api::service::{Subject, Time};

use crate::Store;
use crate::error::StoreError;

/// A token as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    /// Its id, which is not a secret.
    pub id: String,
    /// The digest of its secret.
    pub hash: [u8; 32],
    /// Who calls with it.
    pub subject: Subject,
    /// The names of its scopes.
    pub scopes: Vec<String>,
    /// When it was created.
    pub created_at: Time,
    /// When it stops to be valid.
    pub expires_at: Option<Time>,
    /// When it was revoked.
    pub revoked_at: Option<Time>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Time>,
}

/// What became of a token that another one was to replace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rotated {
    /// It is valid until the time that was given, and the new one is stored.
    Done,
    /// It is revoked, or its time is over.
    NotValid,
    /// It does not exist.
    Missing,
}

/// A use is recorded once in this time.
pub(crate) const USE_MS: i64 = 60_000;
impl Store {
    /// Stores a new token.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn create_token(&self, token: TokenRecord) -> Result<(), StoreError> {
        either!(self, store => store.create_token(token))
    }

    /// A token.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn token(&self, id: &str) -> Result<Option<TokenRecord>, StoreError> {
        either!(self, store => store.token(id))
    }

    /// All tokens, oldest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn tokens(&self) -> Result<Vec<TokenRecord>, StoreError> {
        either!(self, store => store.tokens())
    }

    /// Revokes a token. Whether there is one that was valid.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn revoke_token(&self, id: &str, at: Time) -> Result<bool, StoreError> {
        either!(self, store => store.revoke_token(id, at))
    }

    /// Revokes all tokens of a subject that were not. How many.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn revoke_tokens_of(&self, subject: &Subject, at: Time) -> Result<usize, StoreError> {
        either!(self, store => store.revoke_tokens_of(subject, at))
    }

    /// Replaces a token that is valid `now` by another one, in one change. It is valid until `until` at
    /// the latest, or else revoked.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn rotate_token(
        &self,
        id: &str,
        new: TokenRecord,
        now: Time,
        until: Option<Time>,
    ) -> Result<Rotated, StoreError> {
        either!(self, store => store.rotate_token(id, new, now, until))
    }

    /// Records a use of a token, at most once a minute.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn use_token(&self, id: &str, at: Time) -> Result<(), StoreError> {
        either!(self, store => store.use_token(id, at))
    }
}
