//! API tokens: their SQL.

use sandbox_api::service::Time;

use super::PostgresStore;
use super::parameters::one;
use crate::error::StoreError;
use crate::statement::{in_postgres, value};
use crate::tokens::{Rotated, TokenRecord};

impl PostgresStore {
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
        let mut values = new.values();
        values.extend([
            value(id.to_owned()),
            value(now.unix_millis()),
            value(until.map(Time::unix_millis)),
        ]);
        self.database.change(writer, statement, in_postgres(values), |rows| {
            let row = one(rows)?;
            Ok(match (row.try_get(0)?, row.try_get(1)?) {
                (true, _) => Rotated::Done,
                (false, true) => Rotated::NotValid,
                (false, false) => Rotated::Missing,
            })
        })
    }
}
