//! A backup in the place of the store of a data directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use rustix::fs::OFlags;
use sandbox_api::service::{DATABASE_FILE, Time};
use sandbox_dirfd::{create_private_dir, random_hex};

use super::{SqliteStore, connect, schema};
use crate::data_dir::{directory, lock_single, private_file};
use crate::error::StoreError;
use crate::{ContinueFn, Restored};

/// What the name of a copy begins with, until it is in its place.
const PART: &str = "restored-";
/// How much is copied at a time.
const PIECE: u64 = 8 << 20;
/// The suffixes of the files next to an open database.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

impl SqliteStore {
    pub fn restore(
        data_dir: &Path,
        backup: &Path,
        proceed: ContinueFn<'_>,
    ) -> Result<Restored, StoreError> {
        create_private_dir(data_dir).map_err(|error| directory(data_dir, error))?;
        let _lock = lock_single(data_dir)?;
        remove_left(data_dir);
        let database = data_dir.join(DATABASE_FILE);
        let part = data_dir.join(format!("{PART}{}.part", random_hex::<4>()));
        let restored = (|| {
            copy(backup, &part, proceed)?;
            let interrupted = prepare(&part, backup)?;
            if !proceed() {
                return Err(unreadable(backup, io::ErrorKind::Interrupted.into()));
            }
            let replaced = set_aside(data_dir, &database)?;
            let put = fs::rename(&part, &database)
                .and_then(|()| File::open(data_dir)?.sync_all())
                .map_err(|error| directory(data_dir, error));
            put.map(|()| Restored { replaced, interrupted })
        })();
        for suffix in ["", BESIDE[0], BESIDE[1], BESIDE[2]] {
            _ = fs::remove_file(with(&part, suffix));
        }
        restored
    }
}

/// Removes what was left by one that was killed. The caller has the lock.
pub fn remove_left(data_dir: &Path) {
    for entry in fs::read_dir(data_dir).into_iter().flatten().flatten() {
        if entry.file_name().as_bytes().starts_with(PART.as_bytes()) {
            _ = fs::remove_file(entry.path());
        }
    }
}

fn unreadable(backup: &Path, source: io::Error) -> StoreError {
    StoreError::Restore { path: backup.to_owned(), source: Arc::new(source) }
}

fn with(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Copies a backup, which is never opened as a database itself: that could change it.
fn copy(backup: &Path, to: &Path, proceed: ContinueFn<'_>) -> Result<(), StoreError> {
    let failed = |source| unreadable(backup, source);
    // Do not wait for a writer of a pipe.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut from =
        OpenOptions::new().read(true).custom_flags(flags).open(backup).map_err(failed)?;
    if !from.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    let mut copy = private_file(to, OpenOptions::new().create_new(true).write(true))
        .map_err(|error| directory(to, error))?;
    while io::copy(&mut from.by_ref().take(PIECE), &mut copy).map_err(failed)? > 0 {
        if !proceed() {
            return Err(failed(io::ErrorKind::Interrupted.into()));
        }
    }
    copy.sync_all().map_err(|error| directory(to, error))
}

/// Checks and migrates a copy. What was under way when the backup was made does not run again. Errors name
/// the backup.
fn prepare(part: &Path, backup: &Path) -> Result<u64, StoreError> {
    let mut connection = connect(part)?;
    if schema::check(&connection, backup)? == 0 {
        let detail = "it is empty".to_owned();
        return Err(StoreError::Damaged { path: backup.to_owned(), detail });
    }
    schema::migrate(&mut connection, backup, schema::Migration::Allowed)?;
    let changes = "UPDATE executions SET status = 'running', request = NULL WHERE ended_at IS NULL";
    let interrupted = connection.execute(changes, [])?;
    // A single file, without a log next to it.
    connection.pragma_update(None, "journal_mode", "DELETE")?;
    close(connection)?;
    File::open(part).and_then(|it| it.sync_all()).map_err(|error| directory(part, error))?;
    Ok(interrupted as u64)
}

/// Gives the store that is there another name, under which it stays. Until the new one has its place, it has
/// both.
fn set_aside(data_dir: &Path, database: &Path) -> Result<Option<PathBuf>, StoreError> {
    let failed = |error| directory(data_dir, error);
    if !database.try_exists().map_err(failed)? {
        return Ok(None);
    }
    // Its log becomes a part of it. That of one that is damaged stays with it.
    if let Ok(connection) = connect(database) {
        _ = connection.pragma_update(None, "journal_mode", "DELETE");
        _ = close(connection);
    }
    let aside = data_dir.join(format!("replaced-{}.db", Time::now()));
    fs::hard_link(database, &aside).map_err(failed)?;
    for suffix in BESIDE {
        match fs::rename(with(database, suffix), with(&aside, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    Ok(Some(aside))
}

fn close(connection: Connection) -> Result<(), StoreError> {
    connection.close().map_err(|(_, error)| error.into())
}
