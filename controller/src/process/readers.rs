//! Where the readers of a process are in its kept events, and for which of them it waits. Pure.

use std::sync::Arc;
use std::time::Duration;

use sandbox_api::{EventRecord, ReadMode};
use tokio::time::Instant;

use super::ring::Ring;

/// The most readers of a process at a time.
pub(super) const MAX_READERS: usize = 8;
/// How long a process waits for a reader that takes nothing.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same for its first reader, who comes a moment after its start: it may have printed more than is kept by
/// then.
const FIRST_PATIENCE: Duration = Duration::from_secs(1);
/// The place of that one before it is there.
const FIRST: u64 = 0;

/// The readers of a process.
#[derive(Debug)]
pub(super) struct Readers {
    last_id: u64,
    all: Vec<Place>,
}

/// Where a reader is.
#[derive(Debug)]
struct Place {
    id: u64,
    /// The number of the last event that it has taken.
    after: u64,
    mode: ReadMode,
    /// How long the process waits for it.
    patience: Duration,
    /// Since when the process waits for it, if it does.
    since: Option<Instant>,
}

impl Default for Readers {
    fn default() -> Self {
        let (mode, patience) = (ReadMode::Wait, FIRST_PATIENCE);
        let first = Place { id: FIRST, after: 0, mode, patience, since: None };
        Self { last_id: FIRST, all: vec![first] }
    }
}

impl Readers {
    /// Adds one that has taken all events up to this one; returns its id, unless there are too many.
    pub fn add(&mut self, after: u64, mode: ReadMode) -> Option<u64> {
        self.remove(FIRST);
        if self.all.len() == MAX_READERS {
            return None;
        }
        self.last_id += 1;
        self.all.push(Place { id: self.last_id, after, mode, patience: PATIENCE, since: None });
        Some(self.last_id)
    }

    /// Removes one.
    pub fn remove(&mut self, id: u64) {
        self.all.retain(|place| place.id != id);
    }

    /// Takes the next event for one, if it is there.
    pub fn take(&mut self, id: u64, ring: &Ring) -> Option<Arc<EventRecord>> {
        let place = self.all.iter_mut().find(|place| place.id == id)?;
        let event = ring.after(place.after)?;
        (place.after, place.since) = (event.seq, None);
        Some(event)
    }

    /// Those that are there.
    fn present(&self) -> impl Iterator<Item = &Place> {
        self.all.iter().filter(|place| place.id != FIRST)
    }

    /// Whether there is a reader.
    pub fn is_any(&self) -> bool {
        self.present().next().is_some()
    }

    /// Whether the process waits for one, if that is slow.
    pub fn is_waited_for(&self) -> bool {
        self.present().any(|place| place.mode == ReadMode::Wait)
    }

    /// Until when the process waits for readers that have not taken all events up to this one; `None`
    /// if it goes on. Those for which it has waited long enough are lossy from now on.
    pub fn hold_up(&mut self, dropped: u64, now: Instant) -> Option<Instant> {
        let slow = self.all.iter_mut();
        let slow = slow.filter(|place| place.mode == ReadMode::Wait && place.after < dropped);
        let until = slow.filter_map(|place| {
            let until = *place.since.get_or_insert(now) + place.patience;
            if until <= now {
                place.mode = ReadMode::Lossy;
            }
            (until > now).then_some(until)
        });
        // All of them are looked at.
        until.min()
    }
}
