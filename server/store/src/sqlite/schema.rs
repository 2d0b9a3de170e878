//! The tables, and how those of older versions become today's.

use std::path::Path;

use rusqlite::{Connection, ErrorCode};

use crate::error::StoreError;

/// Marks a database as a store: "sbx1".
const APPLICATION_ID: i64 = 0x7362_7831;

/// Each version's change of the tables, from an empty database on. Entries are never edited: a change
/// is a new entry.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
    include_str!("migrations/0005.sql"),
    include_str!("migrations/0006.sql"),
    include_str!("migrations/0007.sql"),
    include_str!("migrations/0008.sql"),
    include_str!("migrations/0009.sql"),
];

/// The newest version.
pub(crate) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Whether tables may be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Migration {
    /// The store is open exclusively.
    Allowed,
    /// A server has it.
    Refused,
}

/// Checks a database, and brings its tables to the newest version.
pub(crate) fn migrate(
    connection: &mut Connection,
    path: &Path,
    migration: Migration,
) -> Result<(), StoreError> {
    let found = check(connection, path)?;
    if found == VERSION {
        return Ok(());
    }
    if migration == Migration::Refused {
        let path = path.display();
        return Err(StoreError::refused(
            format!("the store {path} has version {found}, and is in use by an older server"),
            "use the sandboxctl of that server, or restart it with this one",
        ));
    }
    let transaction = connection.transaction()?;
    let missing = MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or_default());
    for migration in missing {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.commit()?;
    if found > 0 {
        tracing::info!(from = found, to = VERSION, "the store was migrated");
    }
    Ok(())
}

/// Checks that a database is whole and a store, and returns its version; 0 for an empty one.
pub(crate) fn check(connection: &Connection, path: &Path) -> Result<i64, StoreError> {
    let damaged = |detail: String| StoreError::Damaged { path: path.to_owned(), detail };
    // A full or failing disk does not damage the file, so the error must not suggest to move it
    // away.
    let as_damaged = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => damaged(error.to_string()),
        _ => error.into(),
    };
    let pragma = |name| {
        connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(as_damaged)
    };
    let (version, application) = (pragma("user_version")?, pragma("application_id")?);
    let result: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(as_damaged)?;
    if result != "ok" {
        return Err(damaged(result));
    }
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(as_damaged)?;
    match (version, application) {
        (0, 0) if tables == 0 => Ok(0),
        (version, APPLICATION_ID) if version > VERSION => {
            let path = path.display();
            Err(StoreError::refused(
                format!(
                    "the store {path} has schema version {version}; this program supports up to {VERSION}"
                ),
                "use the newer sandboxctl, or restore the backup that was made before it",
            ))
        }
        (version, APPLICATION_ID) if version > 0 => Ok(version),
        _ => Err(damaged("it is the database of a different program".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(connection: &Connection) -> i64 {
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    }

    fn tables(connection: &Connection) -> Vec<String> {
        let mut query =
            connection.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL").unwrap();
        query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn older_store_is_migrated_and_keeps_its_rows() {
        let path = Path::new("x");
        let mut new = Connection::open_in_memory().unwrap();
        migrate(&mut new, path, Migration::Allowed).unwrap();
        for before in 1..MIGRATIONS.len() {
            let mut old = Connection::open_in_memory().unwrap();
            for migration in &MIGRATIONS[..before] {
                old.execute_batch(migration).unwrap();
            }
            old.pragma_update(None, "user_version", before as i64).unwrap();
            old.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
            let rows = "INSERT INTO usage VALUES ('s', 1, 2, 3, 4, 5);
                INSERT INTO executions
                    (id, subject, kind, status, has_secrets, metadata, created_at)
                    VALUES ('a', 's', 'script', 'ok', 0, '{}', 1), ('b', 's', '', '', 0, '', 1);
                UPDATE executions SET stored_bytes = 6 WHERE id = 'a';
                UPDATE executions SET stored_bytes = 7 WHERE id = 'b'";
            old.execute_batch(rows).unwrap();
            migrate(&mut old, path, Migration::Allowed).unwrap();
            assert_eq!(version(&old), VERSION);
            assert_eq!(tables(&old), tables(&new));
            let kept: i64 = old.query_row("SELECT cpu_ms FROM usage", [], |it| it.get(0)).unwrap();
            assert_eq!(kept, 3);
            let stored: i64 =
                old.query_row("SELECT bytes FROM stored", [], |it| it.get(0)).unwrap();
            assert_eq!(stored, 6 + 7);
            let unknown = "SELECT count(*) FROM executions WHERE engine IS NULL AND limits IS NULL";
            let unknown: i64 = old.query_row(unknown, [], |it| it.get(0)).unwrap();
            assert_eq!(unknown, 2);
        }
    }

    #[test]
    fn newer_store_and_foreign_database_are_refused() {
        let path = Path::new("x");
        let mut newer = Connection::open_in_memory().unwrap();
        migrate(&mut newer, path, Migration::Allowed).unwrap();
        newer.pragma_update(None, "user_version", VERSION + 1).unwrap();
        let error = migrate(&mut newer, path, Migration::Allowed).unwrap_err();
        assert!(error.hint().unwrap().contains("newer sandboxctl"), "{error}");

        let mut foreign = Connection::open_in_memory().unwrap();
        foreign.execute_batch("CREATE TABLE bookmarks (url TEXT)").unwrap();
        let error = migrate(&mut foreign, path, Migration::Allowed).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert_eq!(tables(&foreign).len(), 1);
    }
}
