//! What a pool keeps: a shelf of slots for each key. Pure, and without a clock of its own.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How long a learnt key keeps its shelf although nobody uses it and another key needs it.
const LEARNT_FOR: Duration = Duration::from_secs(60);
/// How many keys are remembered that were used once.
const MAX_CANDIDATES: usize = 32;
/// The wait after a failure; it doubles with each further one.
const BACK_OFF: Duration = Duration::from_millis(100);
const MAX_BACK_OFF: Duration = Duration::from_secs(30);
/// After so many failures in a row, a shelf waits for somebody to ask for its key again.
const MAX_FAILURES: u32 = 10;

/// Why a slot leaves its shelf although nobody claimed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// It ended by itself.
    Dead,
    /// It waited for too long.
    Expired,
}

/// The shelves, by keys `K`; `T` is what slots are started from, `S` a slot.
#[derive(Debug)]
pub struct Shelves<K, T, S> {
    size: usize,
    max_keys: usize,
    is_adaptive: bool,
    shelves: Vec<Shelf<K, T, S>>,
    /// Keys that were used once, the latest last.
    candidates: VecDeque<K>,
    /// The number of the next shelf or slot.
    next: u64,
}

#[derive(Debug)]
struct Shelf<K, T, S> {
    number: u64,
    key: K,
    template: T,
    /// Nobody named the key.
    is_learnt: bool,
    /// How many slots there are to be.
    target: usize,
    last_used: Instant,
    slots: VecDeque<(u64, S)>,
    filling: usize,
    failures: u32,
    not_before: Instant,
}

impl<K, T, S> Shelf<K, T, S> {
    fn missing(&self) -> usize {
        let wanted = match self.failures {
            0 => self.target,
            1..MAX_FAILURES => self.target.min(self.slots.len() + 1),
            _ => 0,
        };
        wanted.saturating_sub(self.slots.len() + self.filling)
    }

    fn fail(&mut self, now: Instant) {
        let wait = BACK_OFF.saturating_mul(1 << self.failures.min(16)).min(MAX_BACK_OFF);
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + wait;
    }
}

impl<K: PartialEq, T, S> Shelves<K, T, S> {
    /// No shelves yet: `size` slots on each, at most `max_keys` of them.
    pub fn new(size: usize, max_keys: usize, is_adaptive: bool) -> Self {
        let (shelves, candidates) = (Vec::new(), VecDeque::new());
        Self { size, max_keys, is_adaptive, shelves, candidates, next: 0 }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn at(&mut self, number: u64) -> Option<&mut Shelf<K, T, S>> {
        self.shelves.iter_mut().find(|shelf| shelf.number == number)
    }

    /// Keeps slots of a key from now on, all of them and whether it is used or not. Returns slots of
    /// another key that had to give way; `None` if there are as many named keys as there may be.
    pub fn name(&mut self, key: K, template: T, now: Instant) -> Option<Vec<S>> {
        let size = self.size;
        if let Some(shelf) = self.shelves.iter_mut().find(|shelf| shelf.key == key) {
            (shelf.is_learnt, shelf.target, shelf.last_used) = (false, size, now);
            return Some(Vec::new());
        }
        let room = self.make_room(now, Duration::ZERO)?;
        self.add(key, template, false, size, now);
        Some(room)
    }

    fn add(&mut self, key: K, template: T, is_learnt: bool, target: usize, now: Instant) {
        let number = self.number();
        self.shelves.push(Shelf {
            number,
            key,
            template,
            is_learnt,
            target,
            last_used: now,
            slots: VecDeque::new(),
            filling: 0,
            failures: 0,
            not_before: now,
        });
    }

    /// Makes room for a shelf, if need be by giving up the learnt one that was not used for the longest
    /// time, and at least for `unused`; returns its slots.
    fn make_room(&mut self, now: Instant, unused: Duration) -> Option<Vec<S>> {
        if self.shelves.len() < self.max_keys {
            return Some(Vec::new());
        }
        let learnt = self.shelves.iter().enumerate().filter(|(_, shelf)| shelf.is_learnt);
        let (at, oldest) = learnt.min_by_key(|(_, shelf)| shelf.last_used)?;
        if now.duration_since(oldest.last_used) < unused {
            return None;
        }
        let shelf = self.shelves.swap_remove(at);
        Some(shelf.slots.into_iter().map(|(_, slot)| slot).collect())
    }

    /// Takes the oldest slot of a key that `fits`. The number is the shelf's.
    pub fn take(&mut self, key: &K, now: Instant, fits: impl Fn(&S) -> bool) -> Option<(u64, S)> {
        let shelf = self.shelves.iter_mut().find(|shelf| shelf.key == *key)?;
        shelf.last_used = now;
        let at = shelf.slots.iter().position(|(_, slot)| fits(slot))?;
        let (_, slot) = shelf.slots.remove(at)?;
        Some((shelf.number, slot))
    }

    /// Learns from a launch for which there was no slot. Returns slots of another key that had to give
    /// way. `change` sees the template of a known key.
    pub fn learn(
        &mut self,
        key: K,
        now: Instant,
        template: impl FnOnce() -> T,
        change: impl FnOnce(&mut T),
    ) -> Vec<S> {
        let size = self.size;
        if let Some(shelf) = self.shelves.iter_mut().find(|shelf| shelf.key == key) {
            change(&mut shelf.template);
            if shelf.is_learnt {
                shelf.target = shelf.target.saturating_mul(2).clamp(1, size);
            }
            // Somebody asks: one more attempt.
            shelf.failures = shelf.failures.min(MAX_FAILURES - 1);
            return Vec::new();
        }
        if !self.is_adaptive {
            return Vec::new();
        }
        let Some(at) = self.candidates.iter().position(|candidate| *candidate == key) else {
            if self.candidates.len() == MAX_CANDIDATES {
                self.candidates.pop_front();
            }
            self.candidates.push_back(key);
            return Vec::new();
        };
        let Some(room) = self.make_room(now, LEARNT_FOR) else { return Vec::new() };
        self.candidates.remove(at);
        self.add(key, template(), true, 1.min(size), now);
        room
    }

    /// The next slot to start: the number of its shelf and its template. What is learnt is filled only
    /// if there `is_room`, which is only asked where that matters.
    pub fn next_fill(&mut self, now: Instant, is_room: impl FnOnce() -> bool) -> Option<(u64, &T)> {
        let is_due = |shelf: &Shelf<K, T, S>| shelf.missing() > 0 && shelf.not_before <= now;
        let is_room = self.shelves.iter().any(|it| it.is_learnt && is_due(it)) && is_room();
        let due = self.shelves.iter_mut().filter(|it| is_due(it) && (is_room || !it.is_learnt));
        // First the one that has the least.
        let shelf = due.min_by_key(|shelf| shelf.slots.len() + shelf.filling)?;
        shelf.filling += 1;
        Some((shelf.number, &shelf.template))
    }

    /// Whether [`next_fill`](Self::next_fill) finds something. `is_room` is only asked where that
    /// matters.
    pub fn has_work(&self, now: Instant, is_room: impl FnOnce() -> bool) -> bool {
        let due = |shelf: &&Shelf<K, T, S>| shelf.missing() > 0 && shelf.not_before <= now;
        let (mut is_due, mut is_named_due) = (false, false);
        for shelf in self.shelves.iter().filter(due) {
            is_due = true;
            is_named_due |= !shelf.is_learnt;
        }
        is_named_due || (is_due && is_room())
    }

    /// When the next slot may be started that has to wait because of failures.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let waiting = self.shelves.iter().filter(|it| it.missing() > 0 && it.not_before > now);
        waiting.map(|shelf| shelf.not_before).min()
    }

    /// Puts a slot that was started on its shelf; `make` gets its number.
    ///
    /// # Errors
    ///
    /// The slot, if nobody wants it any more.
    pub fn filled<R>(
        &mut self,
        shelf: u64,
        slot: R,
        make: impl FnOnce(u64, R) -> S,
    ) -> Result<(), R> {
        let number = self.number();
        let Some(shelf) = self.at(shelf) else { return Err(slot) };
        shelf.filling = shelf.filling.saturating_sub(1);
        if shelf.slots.len() >= shelf.target {
            return Err(slot);
        }
        shelf.slots.push_back((number, make(number, slot)));
        Ok(())
    }

    /// Records that a slot could not be started.
    pub fn failed_to_fill(&mut self, shelf: u64, now: Instant) {
        if let Some(shelf) = self.at(shelf) {
            shelf.filling = shelf.filling.saturating_sub(1);
            shelf.fail(now);
        }
    }

    /// Records whether a slot that was taken from this shelf was of use.
    pub fn handed_over(&mut self, shelf: u64, is_good: bool, now: Instant) {
        if let Some(shelf) = self.at(shelf) {
            match is_good {
                true => (shelf.failures, shelf.not_before) = (0, now),
                false => shelf.fail(now),
            }
        }
    }

    /// Removes a slot, if it is there still.
    pub fn remove(&mut self, slot: u64, why: Leaves, now: Instant) -> Option<S> {
        let found = self.shelves.iter().enumerate().find_map(|(index, shelf)| {
            Some((index, shelf.slots.iter().position(|(number, _)| *number == slot)?))
        });
        let (index, at) = found?;
        let shelf = &mut self.shelves[index];
        let (_, removed) = shelf.slots.remove(at)?;
        match why {
            Leaves::Dead => shelf.fail(now),
            Leaves::Expired => {
                (shelf.failures, shelf.not_before) = (0, now);
                // Fewer would have done.
                if shelf.is_learnt {
                    shelf.target -= shelf.target.min(1);
                }
            }
        }
        if shelf.is_learnt && shelf.target == 0 && shelf.slots.is_empty() && shelf.filling == 0 {
            self.shelves.swap_remove(index);
        }
        Some(removed)
    }

    /// Takes everything.
    pub fn clear(&mut self) -> Vec<S> {
        self.candidates.clear();
        let shelves = std::mem::take(&mut self.shelves);
        shelves.into_iter().flat_map(|shelf| shelf.slots).map(|(_, slot)| slot).collect()
    }

    /// The numbers of keys, of slots that there are to be, and of slots that are being started.
    pub fn counts(&self) -> (usize, usize, usize) {
        let target = self.shelves.iter().map(|shelf| shelf.target).sum();
        (self.shelves.len(), target, self.shelves.iter().map(|shelf| shelf.filling).sum())
    }

    /// All slots.
    pub fn slots(&self) -> impl Iterator<Item = &S> {
        self.shelves.iter().flat_map(|shelf| &shelf.slots).map(|(_, slot)| slot)
    }

    /// Whether nothing is being started, and nothing will be before somebody claims a slot, or a failure
    /// is some time ago.
    pub fn is_settled(&self) -> bool {
        self.shelves.iter().all(|it| it.filling == 0 && (it.missing() == 0 || it.failures > 0))
    }
}

#[cfg(test)]
mod tests;
