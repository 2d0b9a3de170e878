//! The processes of a sandbox.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use sandbox_protocol::limits::MAX_COMMANDS;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::handle::{Identity, Process, Request};
use super::stdin::Input;
use crate::error::Error;

/// For how long, and how many, processes that have ended are known.
const KNOWN_FOR: Duration = Duration::from_secs(600);
const MOST_KNOWN: usize = 256;
/// How many bytes a second all of them may print that have no reader to set their pace: so that
/// output without a reader costs the host next to nothing.
const UNREAD_BYTES: u64 = 16 << 20;

/// The processes of a sandbox, and what they have in common.
#[derive(Debug)]
pub(crate) struct ProcessTable {
    known: Mutex<Known>,
    places: Arc<Semaphore>,
    /// When unread output may go on.
    unread: Mutex<Option<Instant>>,
    /// What watches over them, as long as one of them lives.
    pub guard: tokio::sync::Mutex<Weak<AbortOnDropHandle<()>>>,
}

#[derive(Debug, Default)]
struct Known {
    last_id: u32,
    /// The latest first.
    processes: VecDeque<Process>,
}

/// The place of a process that lives.
pub(crate) type Place = OwnedSemaphorePermit;

impl Default for ProcessTable {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            places: Arc::new(Semaphore::new(MAX_COMMANDS)),
            unread: Mutex::default(),
            guard: tokio::sync::Mutex::default(),
        }
    }
}

impl ProcessTable {
    /// Takes a place for one more that lives.
    pub fn place(&self) -> Result<Place, Error> {
        let place = self.places.clone().try_acquire_owned();
        place.map_err(|_| Error::TooMany { most: MAX_COMMANDS, what: "processes" })
    }

    /// Whether none of them lives.
    pub fn is_quiet(&self) -> bool {
        self.places.available_permits() == MAX_COMMANDS
    }

    /// Adds one that has started.
    pub fn add(
        &self,
        identity: Identity,
        has_stdin: bool,
    ) -> (Process, mpsc::Receiver<Request>, Option<Input>) {
        let mut known = self.known();
        known.last_id += 1;
        let (process, asked, input) = Process::new(known.last_id, identity, has_stdin);
        known.processes.push_front(process.clone());
        (process, asked, input)
    }

    /// All that are known, the latest first.
    pub fn all(&self) -> Vec<Process> {
        self.known().processes.iter().cloned().collect()
    }

    /// When these bytes, which no reader waits for, may be taken.
    pub fn unread(&self, bytes: u64, now: Instant) -> Instant {
        let mut next = crate::lock(&self.unread);
        let at = next.map_or(now, |next| next.max(now));
        *next = Some(at + Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / UNREAD_BYTES));
        at
    }

    /// Without those that ended long ago.
    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = crate::lock(&self.known);
        let mut ended = 0;
        known.processes.retain(|process| {
            let is_ended = process.has_ended_for(Duration::ZERO);
            ended += usize::from(is_ended);
            !is_ended || (ended <= MOST_KNOWN && !process.has_ended_for(KNOWN_FOR))
        });
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn processes_that_ended_are_known_for_a_while_and_only_so_many() {
        let table = ProcessTable::default();
        let (living, _asked, input) = table.add(Identity::of_tests(), true);
        assert!(input.is_some());
        for _ in 0..2 * MOST_KNOWN {
            table.add(Identity::of_tests(), false).0.ended(None, None, None);
        }
        let ids = |table: &ProcessTable| table.all().iter().map(Process::id).collect::<Vec<_>>();
        let last = 2 * MOST_KNOWN as u32 + 1;
        let expected = (last - MOST_KNOWN as u32 + 1..=last).rev().chain([living.id()]);
        assert_eq!(ids(&table), expected.collect::<Vec<_>>());
        tokio::time::advance(KNOWN_FOR).await;
        assert_eq!(ids(&table), [living.id()]);
        // No number comes twice.
        assert_eq!(table.add(Identity::of_tests(), false).0.id(), last + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn unread_output_of_all_together_has_a_pace() {
        let (table, began) = (ProcessTable::default(), Instant::now());
        let times: Vec<_> = (0..3).map(|_| table.unread(UNREAD_BYTES / 2, began)).collect();
        let half = Duration::from_millis(500);
        assert_eq!(times, [began, began + half, began + 2 * half]);
        // What was not used is not saved up.
        let later = began + 100 * half;
        assert_eq!(table.unread(1, later), later);
    }

    #[test]
    fn so_many_live_at_a_time() {
        let table = ProcessTable::default();
        assert!(table.is_quiet());
        let places: Vec<_> = (0..MAX_COMMANDS).map(|_| table.place().unwrap()).collect();
        assert!(table.place().is_err() && !table.is_quiet());
        drop(places);
        assert!(table.is_quiet());
    }
}
