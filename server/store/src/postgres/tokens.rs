//! API tokens: their SQL.

use sandbox_api::service::{Subject, Time};

use super::parameters::one;
use super::{Parameter, PostgresStore, bind, own};
use crate::error::StoreError;
use crate::tokens::{COLUMNS, Rotated, TokenRecord, USE_MS};

impl PostgresStore {
    pub fn create_token(&self, token: TokenRecord) -> Result<(), StoreError> {
        let statement = "INSERT INTO tokens VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
        let writer = self.database.writer_of(&token.id);
        self.database.change(writer, statement, columns(token), |_| Ok(()))
    }

    pub fn token(&self, id: &str) -> Result<Option<TokenRecord>, StoreError> {
        let statement = format!("SELECT {COLUMNS} FROM tokens WHERE id = $1");
        self.database.query(&statement, &[bind(&id)])?.first().map(TokenRecord::read).transpose()
    }

    pub fn tokens(&self) -> Result<Vec<TokenRecord>, StoreError> {
        let statement = format!("SELECT {COLUMNS} FROM tokens ORDER BY created_at, id");
        self.database.query(&statement, &[])?.iter().map(TokenRecord::read).collect()
    }

    pub fn revoke_token(&self, id: &str, at: Time) -> Result<bool, StoreError> {
        let statement =
            "UPDATE tokens SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL RETURNING 1";
        let parameters = vec![own(id.to_owned()), own(at.unix_millis())];
        let writer = self.database.writer_of(id);
        self.database.change(writer, statement, parameters, |rows| Ok(!rows.is_empty()))
    }

    pub fn revoke_tokens_of(&self, subject: &Subject, at: Time) -> Result<usize, StoreError> {
        let statement = "UPDATE tokens SET revoked_at = $2 WHERE subject = $1 AND revoked_at IS NULL RETURNING 1";
        let parameters = vec![own(subject.as_str().to_owned()), own(at.unix_millis())];
        self.database.change(0, statement, parameters, |rows| Ok(rows.len()))
    }

    pub fn rotate_token(
        &self,
        id: &str,
        new: TokenRecord,
        now: Time,
        until: Option<Time>,
    ) -> Result<Rotated, StoreError> {
        let statement = "WITH old AS (
                UPDATE tokens SET revoked_at = CASE WHEN $11::bigint IS NULL THEN $10 END,
                    expires_at = CASE WHEN $11 IS NULL THEN expires_at ELSE least(expires_at, $11) END
                WHERE id = $9 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $10)
                RETURNING 1
            ), new AS (
                INSERT INTO tokens SELECT $1, $2, $3, $4, $5, $6, $7, $8 FROM old
            )
            SELECT EXISTS (SELECT FROM old), EXISTS (SELECT FROM tokens WHERE id = $9)";
        let writer = self.database.writer_of(id);
        let mut parameters = columns(new);
        parameters.extend([
            own(id.to_owned()),
            own(now.unix_millis()),
            own(until.map(Time::unix_millis)),
        ]);
        self.database.change(writer, statement, parameters, |rows| {
            let row = one(rows)?;
            Ok(match (row.try_get(0)?, row.try_get(1)?) {
                (true, _) => Rotated::Done,
                (false, true) => Rotated::NotValid,
                (false, false) => Rotated::Missing,
            })
        })
    }

    pub fn use_token(&self, id: &str, at: Time) -> Result<(), StoreError> {
        let used =
            "SELECT 1 FROM tokens WHERE id = $1 AND (last_used_at IS NULL OR last_used_at <= $2)";
        let before = at.unix_millis().saturating_sub(USE_MS);
        if self.database.query(used, &[bind(&id), bind(&before)])?.is_empty() {
            return Ok(());
        }
        let statement = "UPDATE tokens SET last_used_at = $2 WHERE id = $1";
        let parameters = vec![own(id.to_owned()), own(at.unix_millis())];
        self.database.change(self.database.writer_of(id), statement, parameters, |_| Ok(()))
    }
}

fn columns(token: TokenRecord) -> Vec<Parameter> {
    let millis = |time: Option<Time>| own(time.map(Time::unix_millis));
    vec![
        own(token.id),
        own(token.hash.to_vec()),
        own(token.subject.as_str().to_owned()),
        own(token.scopes.join(" ")),
        own(token.created_at.unix_millis()),
        millis(token.expires_at),
        millis(token.revoked_at),
        millis(token.last_used_at),
    ]
}
