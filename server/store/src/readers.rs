//! The connections of readers: a bounded number, however many ask at the same time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::error::StoreError;

/// The most connections, each of which has two descriptors; a caller of one more waits.
const MAX_READERS: usize = 16;
/// A connection that has not been needed for this long is closed at the end of the next query: a busy
/// moment leaves nothing.
const IDLE_TIMEOUT: Duration = Duration::from_millis(500);
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
    /// Since when they are: the last one is used first, so that the first ones are those not needed.
    idle: Vec<(Instant, Connection)>,
    used: usize,
}

impl Connections {
    /// Takes a connection back, and gives those that are to be closed.
    fn give_back(&mut self, connection: Connection, now: Instant) -> Vec<(Instant, Connection)> {
        let is_unused = |since: Instant| now.saturating_duration_since(since) >= IDLE_TIMEOUT;
        let unused = self.idle.iter().take_while(|(since, _)| is_unused(*since)).count();
        let unused = self.idle.drain(..unused).collect();
        self.idle.push((now, connection));
        unused
    }
}

/// Room for one connection, which is given back when this is dropped.
struct ConnectionPermit<'a>(&'a Readers);

impl Readers {
    /// Queries with an idle connection, or with one more.
    pub fn read<T>(
        &self,
        connect: impl FnOnce() -> Result<Connection, StoreError>,
        query: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (place, idle) = self.place()?;
        let connection = idle.map_or_else(connect, Ok)?;
        // A connection whose query failed, or panicked, is not used again.
        let found = query(&connection)?;
        let unused = place.0.lock().give_back(connection, Instant::now());
        // Without the lock.
        drop(unused);
        Ok(found)
    }

    fn place(&self) -> Result<(ConnectionPermit<'_>, Option<Connection>), StoreError> {
        let is_full = |connections: &mut Connections| connections.used >= MAX_READERS;
        let (mut connections, waited) = self
            .returned
            .wait_timeout_while(self.lock(), TIMEOUT, is_full)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(StoreError::Busy);
        }
        connections.used += 1;
        let idle = connections.idle.pop().map(|(_, connection)| connection);
        Ok((ConnectionPermit(self), idle))
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
    use std::sync::Barrier;
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

    /// Two descriptors more were open for ever after two queries at one time.
    #[test]
    fn connections_of_a_busy_moment_are_closed_by_a_later_query() {
        let readers = Readers::default();
        let together = Barrier::new(4);
        let wait = |_: &Connection| {
            together.wait();
            Ok(())
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| readers.read(connect, wait).unwrap());
            }
        });
        assert_eq!(readers.lock().idle.len(), 4);
        for (since, _) in &mut readers.lock().idle {
            *since = since.checked_sub(IDLE_TIMEOUT).unwrap();
        }
        readers.read(connect, |_| Ok(())).unwrap();
        assert_eq!(readers.lock().idle.len(), 1);
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
