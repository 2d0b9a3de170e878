//! The connections of readers: a bounded number, however many ask at the same time. A server opens them
//! with its store: its descriptors are as many after a busy moment as before. Closed later, SQLite would
//! keep the file of each open, for the locks of the others.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use crate::error::StoreError;

/// The most connections, each of which has two descriptors; a caller of one more waits. Four are for the
/// large documents that are read at one time, and the others for what takes microseconds.
const MAX_READERS: usize = 8;
/// How long a caller waits for a connection: as long as a statement does for a lock.
const TIMEOUT: Duration = super::BUSY_TIMEOUT;

/// Connections that read.
#[derive(Default)]
pub(crate) struct Readers {
    connections: Mutex<Connections>,
    returned: Condvar,
}

#[derive(Default)]
struct Connections {
    idle: Vec<Connection>,
    used: usize,
}

/// A permit for one connection, returned on drop.
struct ConnectionPermit<'a>(&'a Readers);

impl Readers {
    /// Readers with all of their connections.
    pub fn open(
        connect: impl FnMut() -> Result<Connection, StoreError>,
    ) -> Result<Self, StoreError> {
        let idle = std::iter::repeat_with(connect).take(MAX_READERS);
        let connections = Connections { idle: idle.collect::<Result<_, _>>()?, used: 0 };
        Ok(Self { connections: Mutex::new(connections), returned: Condvar::new() })
    }

    /// Queries with an idle connection, or with one more.
    pub fn read<T>(
        &self,
        connect: impl FnOnce() -> Result<Connection, StoreError>,
        query: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (permit, idle) = self.acquire()?;
        let connection = idle.map_or_else(connect, Ok)?;
        // A connection whose query failed, or panicked, is not used again.
        let found = query(&connection)?;
        permit.0.lock().idle.push(connection);
        Ok(found)
    }

    fn acquire(&self) -> Result<(ConnectionPermit<'_>, Option<Connection>), StoreError> {
        let is_full = |connections: &mut Connections| connections.used >= MAX_READERS;
        let (mut connections, waited) = self
            .returned
            .wait_timeout_while(self.lock(), TIMEOUT, is_full)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(StoreError::Busy);
        }
        connections.used += 1;
        Ok((ConnectionPermit(self), connections.idle.pop()))
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit<'_> {
    fn drop(&mut self) {
        self.0.lock().used -= 1;
        self.0.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    fn connect() -> Result<Connection, StoreError> {
        Ok(Connection::open_in_memory()?)
    }

    #[test]
    fn many_readers_share_a_bounded_number_of_connections() {
        let (readers, made) = (Readers::default(), AtomicUsize::new(0));
        let connect = || {
            made.fetch_add(1, Ordering::Relaxed);
            connect()
        };
        thread::scope(|scope| {
            for _ in 0..4 * MAX_READERS {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let one = |it: &Connection| {
                            Ok(it.query_row("SELECT 1", [], |row| row.get::<_, i64>(0))?)
                        };
                        assert_eq!(readers.read(connect, one).unwrap(), 1);
                    }
                });
            }
        });
        assert!(made.into_inner() <= MAX_READERS);
        let connections = readers.lock();
        assert!(connections.used == 0 && connections.idle.len() <= MAX_READERS);
    }

    #[test]
    fn place_of_a_query_that_fails_is_free_again() {
        let readers = Readers::default();
        for _ in 0..2 * MAX_READERS {
            let failed: Result<(), _> = readers.read(connect, |_| Err(StoreError::Full));
            assert!(failed.is_err());
        }
        assert!(readers.lock().idle.is_empty());
        readers.read(connect, |_| Ok(())).unwrap();
    }
}
