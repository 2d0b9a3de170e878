//! API tokens. Of the secret part only a digest is stored.

use sandbox_api::service::{Subject, Time};

use crate::Store;
use crate::error::StoreError;
use crate::row::Columns;
use crate::statement::{Value, value};

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

/// What of a token is stored.
pub(crate) const COLUMNS: &str =
    "id, hash, subject, scopes, created_at, expires_at, revoked_at, last_used_at";

impl TokenRecord {
    /// The one that a row with these [`COLUMNS`] is.
    pub(crate) fn read(row: &impl Columns) -> Result<Self, StoreError> {
        let hash: Vec<u8> = row.column("hash")?;
        Ok(Self {
            id: row.column("id")?,
            hash: hash
                .try_into()
                .map_err(|_| StoreError::row("the digest of a token is not of 32 bytes"))?,
            subject: row.subject()?,
            scopes: row.column::<String>("scopes")?.split_whitespace().map(str::to_owned).collect(),
            created_at: row.time("created_at")?,
            expires_at: row.time_if_any("expires_at")?,
            revoked_at: row.time_if_any("revoked_at")?,
            last_used_at: row.time_if_any("last_used_at")?,
        })
    }

    /// The values of these [`COLUMNS`].
    pub(crate) fn values(self) -> Vec<Value> {
        let millis = |time: Option<Time>| value(time.map(Time::unix_millis));
        vec![
            value(self.id),
            value(self.hash.to_vec()),
            value(self.subject.as_str().to_owned()),
            value(self.scopes.join(" ")),
            value(self.created_at.unix_millis()),
            millis(self.expires_at),
            millis(self.revoked_at),
            millis(self.last_used_at),
        ]
    }
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

/// Stores a token with these [values](TokenRecord::values).
pub(crate) const INSERT: &str = "INSERT INTO tokens VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";

impl Store {
    /// Stores a new token.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn create_token(&self, token: TokenRecord) -> Result<(), StoreError> {
        self.change(&token.id.clone(), INSERT, token.values()).map(drop)
    }

    /// A token.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn token(&self, id: &str) -> Result<Option<TokenRecord>, StoreError> {
        let statement = format!("SELECT {COLUMNS} FROM tokens WHERE id = $1");
        self.first(&statement, &[value(id.to_owned())], |row| TokenRecord::read(row))
    }

    /// All tokens, oldest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn tokens(&self) -> Result<Vec<TokenRecord>, StoreError> {
        let statement = format!("SELECT {COLUMNS} FROM tokens ORDER BY created_at, id");
        self.all(&statement, &[], |row| TokenRecord::read(row))
    }

    /// Revokes a token. Whether there is one that was valid.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn revoke_token(&self, id: &str, at: Time) -> Result<bool, StoreError> {
        let statement =
            "UPDATE tokens SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL RETURNING 1";
        let values = vec![value(id.to_owned()), value(at.unix_millis())];
        Ok(self.change(id, statement, values)? > 0)
    }

    /// Revokes all tokens of a subject that were not. How many.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn revoke_tokens_of(&self, subject: &Subject, at: Time) -> Result<usize, StoreError> {
        let statement = "UPDATE tokens SET revoked_at = $2 WHERE subject = $1 AND revoked_at IS NULL RETURNING 1";
        let values = vec![value(subject.as_str().to_owned()), value(at.unix_millis())];
        self.change(subject.as_str(), statement, values)
    }

    /// Records a use of a token, at most once a minute.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn use_token(&self, id: &str, at: Time) -> Result<(), StoreError> {
        let due =
            "SELECT id FROM tokens WHERE id = $1 AND (last_used_at IS NULL OR last_used_at <= $2)";
        let before = at.unix_millis().saturating_sub(USE_MS);
        let due = self.all(due, &[value(id.to_owned()), value(before)], |_| Ok(()))?;
        if due.is_empty() {
            return Ok(());
        }
        let statement = "UPDATE tokens SET last_used_at = $2 WHERE id = $1";
        let values = vec![value(id.to_owned()), value(at.unix_millis())];
        self.change(id, statement, values).map(drop)
    }
}

of_either! {
    /// Replaces a token that is valid `now` by another one, in one change. It is valid until `until` at
    /// the latest, or else revoked.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn rotate_token(
        &self, id: &str, new: TokenRecord, now: Time, until: Option<Time>
    ) -> Result<Rotated, StoreError>;
}
