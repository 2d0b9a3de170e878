//! API tokens: their SQL.

use rusqlite::{Connection, params};
use sandbox_api::service::{Subject, Time};

use super::SqliteStore;
use crate::error::StoreError;
use crate::row::Columns as _;
use crate::tokens::{COLUMNS, Rotated, TokenRecord, USE_MS};

impl SqliteStore {
    pub fn create_token(&self, token: TokenRecord) -> Result<(), StoreError> {
        self.write(move |connection| insert(connection, &token))
    }

    pub fn token(&self, id: &str) -> Result<Option<TokenRecord>, StoreError> {
        let statement = format!("SELECT {COLUMNS} FROM tokens WHERE id = ?1");
        self.first(&statement, [id], |row| TokenRecord::read(row))
    }

    pub fn tokens(&self) -> Result<Vec<TokenRecord>, StoreError> {
        let statement = format!("SELECT {COLUMNS} FROM tokens ORDER BY created_at, id");
        self.all(&statement, [], |row| TokenRecord::read(row))
    }

    pub fn revoke_token(&self, id: &str, at: Time) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.write(move |connection| {
            let changed = connection.execute(
                "UPDATE tokens SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL",
                params![id, at.unix_millis()],
            )?;
            Ok(changed > 0)
        })
    }

    pub fn revoke_tokens_of(&self, subject: &Subject, at: Time) -> Result<usize, StoreError> {
        let subject = subject.clone();
        self.write(move |connection| {
            let revoke =
                "UPDATE tokens SET revoked_at = ?2 WHERE subject = ?1 AND revoked_at IS NULL";
            Ok(connection.execute(revoke, params![subject.as_str(), at.unix_millis()])?)
        })
    }

    pub fn rotate_token(
        &self,
        id: &str,
        new: TokenRecord,
        now: Time,
        until: Option<Time>,
    ) -> Result<Rotated, StoreError> {
        let id = id.to_owned();
        self.write(move |connection| {
            let (now, until) = (now.unix_millis(), until.map(Time::unix_millis));
            let changed = connection.execute(
                "UPDATE tokens SET revoked_at = iif(?3 IS NULL, ?2, NULL),
                    expires_at = iif(?3 IS NULL, expires_at, min(ifnull(expires_at, ?3), ?3))
                 WHERE id = ?1 AND revoked_at IS NULL AND ifnull(expires_at > ?2, TRUE)",
                params![id, now, until],
            )?;
            if changed > 0 {
                insert(connection, &new)?;
                return Ok(Rotated::Done);
            }
            let mut known = connection.prepare_cached("SELECT 1 FROM tokens WHERE id = ?1")?;
            Ok(if known.exists([id])? { Rotated::NotValid } else { Rotated::Missing })
        })
    }

    pub fn use_token(&self, id: &str, at: Time) -> Result<(), StoreError> {
        let statement = "SELECT last_used_at FROM tokens WHERE id = ?1";
        let used = self.first(statement, [id], |row| row.column::<Option<i64>>("last_used_at"))?;
        if used.flatten().is_some_and(|used| at.unix_millis() < used.saturating_add(USE_MS)) {
            return Ok(());
        }
        let id = id.to_owned();
        self.write(move |connection| {
            let change = "UPDATE tokens SET last_used_at = ?2 WHERE id = ?1";
            connection.execute(change, params![id, at.unix_millis()])?;
            Ok(())
        })
    }
}

fn insert(connection: &Connection, token: &TokenRecord) -> Result<(), StoreError> {
    let millis = |time: Option<Time>| time.map(Time::unix_millis);
    connection.execute(
        "INSERT INTO tokens VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            token.id,
            token.hash,
            token.subject.as_str(),
            token.scopes.join(" "),
            token.created_at.unix_millis(),
            millis(token.expires_at),
            millis(token.revoked_at),
            millis(token.last_used_at),
        ],
    )?;
    Ok(())
}
