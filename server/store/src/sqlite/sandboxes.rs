//! Kept sandboxes: their SQL.

use rusqlite::params;
use sandbox_api::service::Time;

use super::SqliteStore;
use crate::error::StoreError;
use crate::integer::signed;
use crate::sandboxes::{COLUMNS, SandboxRecord};
use crate::statement::in_sqlite;

impl SqliteStore {
    pub fn create_sandbox(&self, new: SandboxRecord) -> Result<bool, StoreError> {
        let (subject, name, values) = (new.subject.clone(), new.name.clone(), new.values()?);
        self.write(move |connection| {
            if let Some(name) = name {
                let mut query = connection
                    .prepare_cached("SELECT 1 FROM sandboxes WHERE subject = ?1 AND name = ?2")?;
                if query.exists(params![subject.as_str(), name])? {
                    return Ok(false);
                }
            }
            let mut insert = connection.prepare_cached(
                "INSERT INTO sandboxes VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?;
            insert.execute(in_sqlite(&values))?;
            Ok(true)
        })
    }

    pub fn update_sandbox(
        &self,
        id: &str,
        generation: u64,
        last_used_at: Time,
    ) -> Result<(), StoreError> {
        let (id, used) = (id.to_owned(), last_used_at.unix_millis());
        self.write(move |connection| {
            let mut update = connection.prepare_cached(
                "UPDATE sandboxes SET generation = max(generation, ?2),
                    last_used_at = max(last_used_at, ?3) WHERE id = ?1",
            )?;
            if_any(update.execute(params![id, signed(generation), used])?, &id)
        })
    }

    pub fn change_sandbox(
        &self,
        id: &str,
        expires_at: Option<i64>,
        metadata: Option<String>,
    ) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.write(move |connection| {
            let mut update = connection.prepare_cached(
                "UPDATE sandboxes SET expires_at = min(coalesce(?2, expires_at), max_expires_at),
                    metadata = coalesce(?3, metadata) WHERE id = ?1",
            )?;
            if_any(update.execute(params![id, expires_at, metadata])?, &id)
        })
    }

    pub fn sandboxes(&self) -> Result<Vec<SandboxRecord>, StoreError> {
        let statement = format!("SELECT {COLUMNS} FROM sandboxes ORDER BY created_at, id");
        self.all(&statement, [], |row| SandboxRecord::read(row))
    }
}

/// Whether a sandbox was changed.
fn if_any(changed: usize, id: &str) -> Result<(), StoreError> {
    match changed {
        0 => Err(StoreError::State { id: id.to_owned(), expected: "a kept sandbox" }),
        _ => Ok(()),
    }
}
