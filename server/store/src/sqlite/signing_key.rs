//! The key that signs: its SQL.

use sandbox_dirfd::{from_hex, random_hex};

use super::SqliteStore;
use crate::error::StoreError;
use crate::signing_key::SigningKey;

impl SqliteStore {
    pub fn signing_key(&self) -> Result<SigningKey, StoreError> {
        let hex = self.write(|connection| {
            let new = "INSERT INTO signing_key VALUES (1, ?1) ON CONFLICT DO NOTHING";
            connection.execute(new, [random_hex::<32>()])?;
            let key = "SELECT hex FROM signing_key";
            Ok(connection.query_row(key, [], |row| row.get::<_, String>(0))?)
        })?;
        let key = from_hex(&hex)
            .and_then(|key| key.try_into().ok())
            .ok_or_else(|| StoreError::row("a key is not of 32 bytes"))?;
        Ok(SigningKey::new(&key))
    }
}
