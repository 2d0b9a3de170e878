//! The store in SQLite, of one server: one database in its data directory. One thread writes; waiting
//! changes share a flush. Readers see every change that has returned.

mod executions;
mod restore;
mod retention;
mod sandboxes;
mod schema;
mod signing_key;
mod tokens;
mod writer;

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags, Params, Row};
use sandbox_api::service::DATABASE_FILE;
use sandbox_dirfd::{check_private_dir, create_private_dir, random_hex};

use crate::data_dir::{directory, lock_single, private_file};
use crate::error::StoreError;
use crate::pool::Pool;
use crate::writer::Writer;
use crate::{ContinueFn, Durability};

pub(crate) use schema::VERSION;

/// How long a statement waits for another program that holds the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The most connections that read, each of which has two descriptors. Four are for the large documents that
/// are read at one time, and the others for what takes microseconds. A server opens them with its store: its
/// descriptors are as many after a busy moment as before. Closed later, SQLite would keep the file of each
/// open, for the locks of the others.
const READERS: usize = 8;

/// The store of a data directory. Clones are handles of the same one.
#[derive(Clone)]
pub(crate) struct SqliteStore(Arc<Inner>);

struct Inner {
    database: PathBuf,
    readers: Pool<Connection>,
    writer: Writer<writer::Change>,
    /// Held by a server, so that there is only one; the last to be dropped.
    lock: Option<File>,
    /// The data directory, if it is removed with the store.
    removed: Option<PathBuf>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(data_dir) = &self.removed
            && let Err(error) = std::fs::remove_dir_all(data_dir)
        {
            tracing::warn!(path = %data_dir.display(), %error, "a data directory is left");
        }
    }
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("SqliteStore");
        shown.field("database", &self.0.database).finish_non_exhaustive()
    }
}

impl SqliteStore {
    pub fn open(data_dir: &Path, durability: Durability) -> Result<Self, StoreError> {
        create_private_dir(data_dir).map_err(|error| directory(data_dir, error))?;
        let lock = lock_single(data_dir)?;
        Self::open_with(data_dir, Some(lock), durability)
    }

    pub fn attach(data_dir: &Path) -> Result<Self, StoreError> {
        match check_private_dir(data_dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::Missing { path: data_dir.to_owned() });
            }
            checked => checked.map_err(|error| directory(data_dir, error))?,
        }
        if !data_dir.join(DATABASE_FILE).exists() {
            return Err(StoreError::Missing { path: data_dir.to_owned() });
        }
        // Without a server a migration disturbs no one.
        let lock = match lock_single(data_dir) {
            Ok(lock) => Some(lock),
            Err(StoreError::InUse { .. }) => None,
            Err(error) => return Err(error),
        };
        Self::open_with(data_dir, lock, Durability::Disk)
    }

    fn open_with(
        data_dir: &Path,
        lock: Option<File>,
        durability: Durability,
    ) -> Result<Self, StoreError> {
        if lock.is_some() {
            restore::remove_left(data_dir);
        }
        let database = data_dir.join(DATABASE_FILE);
        // Created with an explicit mode; SQLite copies it to the files next to it.
        private_file(&database, OpenOptions::new().create(true).append(true))
            .map_err(|error| directory(data_dir, error))?;
        let mut connection = connect(&database)?;
        // An existing database stays as it was made.
        let pages = |row: &Row<'_>| row.get::<_, u32>(0);
        if connection.pragma_query_value(None, "page_count", pages) == Ok(0) {
            connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        }
        // The log is copied to the database by the writer, and is written over from its beginning then: a
        // file that does not grow is flushed faster.
        let synchronous = match durability {
            Durability::Disk => "FULL",
            Durability::Process => "OFF",
        };
        let flags = format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; \
             PRAGMA journal_size_limit = 67108864;"
        );
        if let Err(error) = connection.execute_batch(&flags) {
            // Reports a file that is not a database.
            schema::check(&connection, &database)?;
            return Err(error.into());
        }
        let migration = match lock {
            Some(_) => schema::Migration::Allowed,
            None => schema::Migration::Refused,
        };
        schema::migrate(&mut connection, &database, migration)?;
        let log = writer::LogSize::watch(&mut connection)?;
        let write_all = move |changes: &_| writer::write_all(&connection, changes, &log);
        let writer =
            Writer::start("store", write_all).map_err(|error| directory(data_dir, error))?;
        let idle = match lock {
            Some(_) => (0..READERS).map(|_| connect_reader(&database)).collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        let readers = Pool::new(READERS, idle);
        let removed = (durability == Durability::Process).then(|| data_dir.to_owned());
        let inner = Inner { database, readers, writer, lock, removed };
        Ok(Self(Arc::new(inner)))
    }

    /// Whether a server has the data directory, and this store is for administration.
    pub fn is_attached(&self) -> bool {
        self.0.lock.is_none()
    }

    pub fn check_writable(&self) -> Result<(), StoreError> {
        self.write(|connection| {
            // It takes the lock, and writes a page of the log.
            connection.pragma_update(None, "user_version", VERSION)?;
            Ok(())
        })
    }

    pub fn backup(&self, file: &Path, proceed: ContinueFn<'_>) -> Result<(), StoreError> {
        let failed = |source: io::Error| StoreError::Backup {
            path: file.to_owned(),
            source: Arc::new(source),
        };
        let mut part = file.as_os_str().to_owned();
        part.push(format!(".{}.part", random_hex::<4>()));
        let part = PathBuf::from(part);
        let copy = || {
            private_file(&part, OpenOptions::new().create_new(true).write(true)).map_err(failed)?;
            self.read(|connection| {
                let mut to = Connection::open_with_flags(&part, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
                // All pages in one step, which is one state of the store: between steps each change
                // of the server would begin the copy anew. Writers do not wait for it.
                if Backup::new(connection, &mut to)?.step(-1)? != StepResult::Done {
                    return Err(StoreError::Locked);
                }
                // A single file, without a log next to it.
                to.pragma_update(None, "journal_mode", "DELETE")?;
                schema::check(&to, &part)?;
                Ok(())
            })?;
            File::open(&part).and_then(|file| file.sync_all()).map_err(failed)?;
            if !proceed() {
                return Err(failed(io::ErrorKind::Interrupted.into()));
            }
            // Not a rename: it would replace a file.
            std::fs::hard_link(&part, file).map_err(failed)?;
            let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = File::open(parent.unwrap_or(Path::new("."))).map_err(failed)?;
            parent.sync_all().map_err(failed)
        };
        let copied = copy();
        _ = std::fs::remove_file(&part);
        copied
    }

    pub fn read<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.0.readers.read(|| connect_reader(&self.0.database), |it| query(it))
    }

    /// Reads the rows that a statement finds.
    pub fn all<T>(
        &self,
        statement: &str,
        parameters: impl Params,
        read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(statement)?;
            query.query_and_then(parameters, read)?.collect()
        })
    }
}

fn connect(database: &Path) -> Result<Connection, StoreError> {
    // No other threading mode is needed: each connection is used by one thread at a time.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(database, flags)?;
    #[cfg(test)]
    let connection = crate::tests::count_steps(connection, database)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.pragma_update(None, "foreign_keys", true)?;
    // What is removed is not to be found in free pages.
    connection.pragma_update(None, "secure_delete", true)?;
    Ok(connection)
}

/// A connection that reads, with all of its files open.
fn connect_reader(database: &Path) -> Result<Connection, StoreError> {
    let connection = connect(database)?;
    connection.pragma_update(None, "query_only", true)?;
    // The log is opened by the first query.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(connection)
}
