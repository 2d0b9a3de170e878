//! The one thread that writes. Waiting changes share one transaction, and so one flush to the disk;
//! each change is atomic. The log is copied to the database when no change is waiting.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::hooks::Wal;

use super::SqliteStore;
use crate::error::StoreError;
use crate::executions::wait;

/// The most changes of one transaction.
const BATCH: usize = 256;
/// A log of so many pages is copied to the database when there is no change for a moment, and one of so
/// many more at once. It takes some milliseconds and flushes, for which no caller is to wait.
const LOG_PAGES: u32 = 1000;
const MAX_LOG_PAGES: u32 = 4 * LOG_PAGES;
const QUIET: Duration = Duration::from_millis(20);
/// More free pages are given back to the file system, so many at a time.
const FREE_PAGES: u32 = 4096;
const VACUUM: &str = "PRAGMA incremental_vacuum(1000)";

/// Reports to the caller of a change whether it is durable.
type Completion = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// Makes a change, or learns why it cannot be made.
pub(super) type Change = Box<dyn FnOnce(Result<&Connection, StoreError>) -> Completion + Send>;

/// The pages of the log that are to be copied to the database.
pub(crate) struct LogSize(Arc<AtomicU32>);

impl LogSize {
    /// Counts them, in place of SQLite, which would copy them before a commit is answered.
    pub fn watch(connection: &mut Connection) -> Result<Self, StoreError> {
        let pages = Arc::new(AtomicU32::new(0));
        let counted = pages.clone();
        connection.wal_hook(Some(move |_: &mut Wal, pages| {
            counted.store(u32::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Self(pages))
    }
}

impl SqliteStore {
    /// Makes a change, and waits until it is durable.
    pub fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        wait(|then| self.write_then(change, then))
    }

    /// Makes a change. When it is durable, `then` is called on the thread that writes; if that is gone,
    /// `then` is dropped.
    pub fn write_then<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
        then: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) {
        self.0.writer.write(Box::new(move |connection| {
            let made = connection.and_then(|connection| whole(connection, change));
            Box::new(move |committed: Result<(), StoreError>| {
                then(made.and_then(|made| committed.map(|()| made)));
            })
        }));
    }
}

pub(super) fn write_all(connection: &Connection, changes: &Receiver<Change>, log: &LogSize) {
    loop {
        let next = match log.0.load(Ordering::Relaxed) {
            ..LOG_PAGES => changes.recv().map_err(|_| RecvTimeoutError::Disconnected),
            LOG_PAGES..MAX_LOG_PAGES => changes.recv_timeout(QUIET),
            MAX_LOG_PAGES.. => Err(RecvTimeoutError::Timeout),
        };
        let first = match next {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => {
                // Of what a reader still needs the rest is copied another time.
                let has_more = give_back(connection).unwrap_or_else(|error| {
                    tracing::warn!(%error, "the store does not become smaller");
                    false
                });
                log.0.store(if has_more { LOG_PAGES } else { 0 }, Ordering::Relaxed);
                if let Err(error) = connection.execute_batch("PRAGMA wal_checkpoint(PASSIVE)") {
                    tracing::warn!(%error, "the log of the store was not copied to it");
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if let Err(error) = execute(connection, "BEGIN IMMEDIATE") {
            first(Err(error.into()))(Ok(()));
            continue;
        }
        let mut completions = vec![first(Ok(connection))];
        // SQLite itself ends a transaction after some failures, such as a full disk. A later change
        // would be a separate transaction, durable although its caller gets an error.
        while completions.len() < BATCH
            && !connection.is_autocommit()
            && let Ok(change) = changes.try_recv()
        {
            completions.push(change(Ok(connection)));
        }
        let committed = commit(connection);
        for completed in completions {
            completed(committed.clone());
        }
    }
}

/// Gives some of the pages that nothing needs back, and returns whether there may be more. A database of an
/// earlier version keeps them.
fn give_back(connection: &Connection) -> rusqlite::Result<bool> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, u32>(0));
    if pragma("auto_vacuum")? == 0 || pragma("freelist_count")? <= FREE_PAGES {
        return Ok(false);
    }
    let mut vacuum = connection.prepare_cached(VACUUM)?;
    let mut steps = vacuum.query([])?;
    while steps.next()?.is_some() {}
    Ok(true)
}

/// Commits the transaction, or leaves none.
fn commit(connection: &Connection) -> Result<(), StoreError> {
    if connection.is_autocommit() {
        return Err(StoreError::RolledBack);
    }
    let committed = execute(connection, "COMMIT").map_err(StoreError::from);
    if !connection.is_autocommit() {
        _ = connection.execute_batch("ROLLBACK");
    }
    committed
}

/// Makes a change atomically.
fn whole<T>(
    connection: &Connection,
    change: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    execute(connection, "SAVEPOINT change")?;
    let made = catch_unwind(AssertUnwindSafe(|| change(connection)))
        .unwrap_or_else(|_| Err(StoreError::row("a change panicked")));
    let undone = match &made {
        Ok(_) => Ok(()),
        Err(_) => execute(connection, "ROLLBACK TO change"),
    };
    let ended = undone.and_then(|()| execute(connection, "RELEASE change"));
    made.and_then(|made| ended.map(|()| made).map_err(StoreError::from))
}

/// Executes a statement that is executed again and again.
fn execute(connection: &Connection, statement: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(statement)?.execute([]).map(drop)
}
