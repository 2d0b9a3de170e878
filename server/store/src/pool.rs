//! Connections of readers: a bounded number, however many ask at the same time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::StoreError;

/// How long a caller waits for a connection.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Connections that read. A caller of one more than there may be waits.
pub(crate) struct Pool<C> {
    most: usize,
    connections: Mutex<Connections<C>>,
    returned: Condvar,
}

struct Connections<C> {
    idle: Vec<C>,
    used: usize,
}

/// A permit for one connection, returned on drop.
struct Permit<'a, C>(&'a Pool<C>);

impl<C> Pool<C> {
    /// A pool with these connections, and at most so many.
    pub fn new(most: usize, idle: Vec<C>) -> Self {
        let connections = Mutex::new(Connections { idle, used: 0 });
        Self { most, connections, returned: Condvar::new() }
    }

    /// Queries with an idle connection, or with one more.
    pub fn read<T>(
        &self,
        connect: impl FnOnce() -> Result<C, StoreError>,
        query: impl FnOnce(&mut C) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (permit, idle) = self.acquire()?;
        let mut connection = idle.map_or_else(connect, Ok)?;
        // A connection whose query failed, or panicked, is not used again.
        let found = query(&mut connection)?;
        permit.0.lock().idle.push(connection);
        Ok(found)
    }

    fn acquire(&self) -> Result<(Permit<'_, C>, Option<C>), StoreError> {
        let is_full = |connections: &mut Connections<C>| connections.used >= self.most;
        let (mut connections, waited) = self
            .returned
            .wait_timeout_while(self.lock(), TIMEOUT, is_full)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(StoreError::Busy);
        }
        connections.used += 1;
        Ok((Permit(self), connections.idle.pop()))
    }

    fn lock(&self) -> MutexGuard<'_, Connections<C>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Drop for Permit<'_, C> {
    fn drop(&mut self) {
        self.0.lock().used -= 1;
        self.0.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use rusqlite::Connection;

    use super::*;

    const MOST: usize = 8;

    fn connect() -> Result<Connection, StoreError> {
        Ok(Connection::open_in_memory()?)
    }

    #[test]
    fn many_readers_share_a_bounded_number_of_connections() {
        let (readers, made) = (Pool::new(MOST, Vec::new()), AtomicUsize::new(0));
        let connect = || {
            made.fetch_add(1, Ordering::Relaxed);
            connect()
        };
        thread::scope(|scope| {
            for _ in 0..4 * MOST {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let one = |it: &mut Connection| {
                            Ok(it.query_row("SELECT 1", [], |row| row.get::<_, i64>(0))?)
                        };
                        assert_eq!(readers.read(connect, one).unwrap(), 1);
                    }
                });
            }
        });
        assert!(made.into_inner() <= MOST);
        let connections = readers.lock();
        assert!(connections.used == 0 && connections.idle.len() <= MOST);
    }

    #[test]
    fn place_of_a_query_that_fails_is_free_again() {
        let readers = Pool::new(MOST, Vec::new());
        for _ in 0..2 * MOST {
            let failed: Result<(), _> = readers.read(connect, |_| Err(StoreError::Full));
            assert!(failed.is_err());
        }
        assert!(readers.lock().idle.is_empty());
        readers.read(connect, |_| Ok(())).unwrap();
    }
}
