//! Kept sandboxes: their SQL. A node has those that it created.

use sandbox_api::service::Time;

use super::parameters::{Parameter, if_any};
use super::{PostgresStore, bind, own};
use crate::error::StoreError;
use crate::integer::signed;
use crate::sandboxes::{COLUMNS, SandboxRecord};
use crate::statement::{in_postgres, value};

impl PostgresStore {
    pub fn create_sandbox(&self, new: SandboxRecord) -> Result<bool, StoreError> {
        let writer = self.database.writer_of(&new.id);
        let mut values = new.values()?;
        values.push(value(self.database.session()));
        // Without the session there is no row, and no node that would have it.
        let statement = "WITH new AS (
                INSERT INTO sandboxes SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, node
                FROM sessions WHERE id = $12
                ON CONFLICT (subject, name) WHERE name IS NOT NULL DO NOTHING RETURNING 1
            )
            SELECT EXISTS (SELECT FROM new) FROM sessions WHERE id = $12";
        self.database.change(writer, statement, in_postgres(values), |rows| {
            Ok(rows.first().ok_or(StoreError::SessionLost)?.try_get(0)?)
        })
    }

    pub fn update_sandbox(
        &self,
        id: &str,
        generation: u64,
        last_used_at: Time,
    ) -> Result<(), StoreError> {
        let statement = "WITH updated AS (
                UPDATE sandboxes SET generation = greatest(generation, $3),
                    last_used_at = greatest(last_used_at, $4)
                WHERE id = $1 AND node = (SELECT node FROM sessions WHERE id = $2) RETURNING 1
            )
            SELECT EXISTS (SELECT FROM updated) FROM sandboxes WHERE id = $1";
        let used = last_used_at.unix_millis();
        self.change_own(id, statement, [own(signed(generation)), own(used)])
    }

    pub fn change_sandbox(
        &self,
        id: &str,
        expires_at: Option<i64>,
        metadata: Option<String>,
    ) -> Result<(), StoreError> {
        let statement = "WITH updated AS (
                UPDATE sandboxes SET expires_at = least(coalesce($3, expires_at), max_expires_at),
                    metadata = coalesce($4, metadata)
                WHERE id = $1 AND node = (SELECT node FROM sessions WHERE id = $2) RETURNING 1
            )
            SELECT EXISTS (SELECT FROM updated) FROM sandboxes WHERE id = $1";
        self.change_own(id, statement, [own(expires_at), own(metadata)])
    }

    /// Changes a sandbox of this node: `$1` is its id, `$2` the session.
    fn change_own(
        &self,
        id: &str,
        statement: &'static str,
        values: [Parameter; 2],
    ) -> Result<(), StoreError> {
        let id = id.to_owned();
        let of = [own(id.clone()), own(self.database.session())];
        let parameters = of.into_iter().chain(values).collect();
        self.database.change(self.database.writer_of(&id), statement, parameters, move |rows| {
            if_any(rows, || StoreError::State { id: id.clone(), expected: "a kept sandbox" })?;
            match rows[0].try_get(0)? {
                true => Ok(()),
                false => Err(StoreError::Fenced { id }),
            }
        })
    }

    /// Those of this node.
    pub fn sandboxes(&self) -> Result<Vec<SandboxRecord>, StoreError> {
        let statement =
            format!("SELECT {COLUMNS} FROM sandboxes WHERE node = $1 ORDER BY created_at, id");
        self.database.all(&statement, &[bind(&self.database.node())], SandboxRecord::read)
    }
}
