//! What a pool keeps: a group of slots for each key. Pure, and without a clock of its own.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How long an unused learnt key keeps its group when another key needs it.
const LEARNT_FOR: Duration = Duration::from_secs(60);
/// How many keys are remembered that were used once.
const MAX_CANDIDATES: usize = 32;
/// The wait after a failure; it doubles with each further one.
const BACK_OFF: Duration = Duration::from_millis(100);
const MAX_BACK_OFF: Duration = Duration::from_secs(30);
/// After so many failures in a row, a group waits for the next launch with its key.
const MAX_FAILURES: u32 = 10;

/// Why a slot leaves its group unclaimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotEnd {
    /// It ended by itself.
    Dead,
    /// It waited for too long.
    Expired,
}

/// The groups, by keys `K`; `T` is what slots are started from, `S` a slot.
#[derive(Debug)]
pub struct PoolSlots<K, T, S> {
    size: usize,
    max_keys: usize,
    is_adaptive: bool,
    groups: Vec<SlotGroup<K, T, S>>,
    /// Keys that were used once, the latest last.
    candidates: VecDeque<K>,
    /// The number of the next group or slot.
    next: u64,
}

#[derive(Debug)]
struct SlotGroup<K, T, S> {
    number: u64,
    key: K,
    template: T,
    /// The key was learnt from launches, not configured.
    is_learnt: bool,
    /// The target number of slots.
    target: usize,
    last_used: Instant,
    slots: VecDeque<(u64, S)>,
    filling: usize,
    failures: u32,
    not_before: Instant,
}

impl<K, T, S> SlotGroup<K, T, S> {
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

impl<K: PartialEq, T, S> PoolSlots<K, T, S> {
    /// No groups yet: `size` slots on each, at most `max_keys` of them.
    pub fn new(size: usize, max_keys: usize, is_adaptive: bool) -> Self {
        let (groups, candidates) = (Vec::new(), VecDeque::new());
        Self { size, max_keys, is_adaptive, groups, candidates, next: 0 }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn at(&mut self, number: u64) -> Option<&mut SlotGroup<K, T, S>> {
        self.groups.iter_mut().find(|group| group.number == number)
    }

    /// Keeps slots of a key from now on, all of them and whether it is used or not. Returns slots
    /// of another key that were evicted; `None` if the maximum number of named keys is reached.
    pub fn name(&mut self, key: K, template: T, now: Instant) -> Option<Vec<S>> {
        let size = self.size;
        if let Some(group) = self.groups.iter_mut().find(|group| group.key == key) {
            (group.is_learnt, group.target, group.last_used) = (false, size, now);
            return Some(Vec::new());
        }
        let evicted = self.make_room(now, Duration::ZERO)?;
        self.add(key, template, false, size, now);
        Some(evicted)
    }

    fn add(&mut self, key: K, template: T, is_learnt: bool, target: usize, now: Instant) {
        let number = self.number();
        self.groups.push(SlotGroup {
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

    /// Makes a place for a group, if necessary by evicting the least recently used learnt one, if
    /// that has been unused for at least `unused`; returns the evicted slots.
    fn make_room(&mut self, now: Instant, unused: Duration) -> Option<Vec<S>> {
        if self.groups.len() < self.max_keys {
            return Some(Vec::new());
        }
        let learnt = self.groups.iter().enumerate().filter(|(_, group)| group.is_learnt);
        let (at, oldest) = learnt.min_by_key(|(_, group)| group.last_used)?;
        if now.duration_since(oldest.last_used) < unused {
            return None;
        }
        let group = self.groups.swap_remove(at);
        Some(group.slots.into_iter().map(|(_, slot)| slot).collect())
    }

    /// Takes the oldest slot of a key that `fits`. The number is the group's.
    pub fn take(&mut self, key: &K, now: Instant, fits: impl Fn(&S) -> bool) -> Option<(u64, S)> {
        let group = self.groups.iter_mut().find(|group| group.key == *key)?;
        group.last_used = now;
        let at = group.slots.iter().position(|(_, slot)| fits(slot))?;
        let (_, slot) = group.slots.remove(at)?;
        Some((group.number, slot))
    }

    /// Learns from a launch without a slot. Returns slots of another key that were evicted.
    /// `change` sees the template of a known key.
    pub fn learn(
        &mut self,
        key: K,
        now: Instant,
        template: impl FnOnce() -> T,
        change: impl FnOnce(&mut T),
    ) -> Vec<S> {
        let size = self.size;
        if let Some(group) = self.groups.iter_mut().find(|group| group.key == key) {
            change(&mut group.template);
            if group.is_learnt {
                group.target = group.target.saturating_mul(2).clamp(1, size);
            }
            // A launch wants it: one more attempt.
            group.failures = group.failures.min(MAX_FAILURES - 1);
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
        let Some(evicted) = self.make_room(now, LEARNT_FOR) else { return Vec::new() };
        self.candidates.remove(at);
        self.add(key, template(), true, 1.min(size), now);
        evicted
    }

    /// The next slot to start: the number of its group and its template. Learnt groups are filled
    /// only if there `is_room`, which is called only if that matters.
    pub fn next_fill(&mut self, now: Instant, is_room: impl FnOnce() -> bool) -> Option<(u64, &T)> {
        let at = self.next_group(now, is_room)?;
        let group = &mut self.groups[at];
        group.filling += 1;
        Some((group.number, &group.template))
    }

    /// Whether [`next_fill`](Self::next_fill) finds something.
    pub fn has_work(&self, now: Instant, is_room: impl FnOnce() -> bool) -> bool {
        self.next_group(now, is_room).is_some()
    }

    fn next_group(&self, now: Instant, is_room: impl FnOnce() -> bool) -> Option<usize> {
        let is_due = |group: &SlotGroup<K, T, S>| group.missing() > 0 && group.not_before <= now;
        let is_room = self.groups.iter().any(|it| it.is_learnt && is_due(it)) && is_room();
        let all = self.groups.iter().enumerate();
        let due = all.filter(|(_, it)| is_due(it) && (is_room || !it.is_learnt));
        // First the one that has the least.
        due.min_by_key(|(_, it)| it.slots.len() + it.filling).map(|(at, _)| at)
    }

    /// When the next slot may be started that has to wait because of failures.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let waiting = self.groups.iter().filter(|it| it.missing() > 0 && it.not_before > now);
        waiting.map(|group| group.not_before).min()
    }

    /// Puts a slot that was started on its group; `make` gets its number.
    ///
    /// # Errors
    ///
    /// The slot, if it is no longer wanted.
    pub fn filled<R>(
        &mut self,
        group: u64,
        slot: R,
        make: impl FnOnce(u64, R) -> S,
    ) -> Result<(), R> {
        let number = self.number();
        let Some(group) = self.at(group) else { return Err(slot) };
        group.filling = group.filling.saturating_sub(1);
        if group.slots.len() >= group.target {
            return Err(slot);
        }
        group.slots.push_back((number, make(number, slot)));
        Ok(())
    }

    /// Records that a slot could not be started.
    pub fn failed_to_fill(&mut self, group: u64, now: Instant) {
        if let Some(group) = self.at(group) {
            group.filling = group.filling.saturating_sub(1);
            group.fail(now);
        }
    }

    /// Records whether a slot that was taken from this group was of use.
    pub fn handed_over(&mut self, group: u64, is_good: bool, now: Instant) {
        if let Some(group) = self.at(group) {
            match is_good {
                true => (group.failures, group.not_before) = (0, now),
                false => group.fail(now),
            }
        }
    }

    /// Removes a slot, if it is there still.
    pub fn remove(&mut self, slot: u64, why: SlotEnd, now: Instant) -> Option<S> {
        let found = self.groups.iter().enumerate().find_map(|(index, group)| {
            Some((index, group.slots.iter().position(|(number, _)| *number == slot)?))
        });
        let (index, at) = found?;
        let group = &mut self.groups[index];
        let (_, removed) = group.slots.remove(at)?;
        match why {
            SlotEnd::Dead => group.fail(now),
            SlotEnd::Expired => {
                (group.failures, group.not_before) = (0, now);
                // Fewer would have sufficed.
                if group.is_learnt {
                    group.target -= group.target.min(1);
                }
            }
        }
        if group.is_learnt && group.target == 0 && group.slots.is_empty() && group.filling == 0 {
            self.groups.swap_remove(index);
        }
        Some(removed)
    }

    /// Takes everything.
    pub fn clear(&mut self) -> Vec<S> {
        self.candidates.clear();
        let groups = std::mem::take(&mut self.groups);
        groups.into_iter().flat_map(|group| group.slots).map(|(_, slot)| slot).collect()
    }

    /// The numbers of keys, of slots that are wanted, and of slots that are being started.
    pub fn counts(&self) -> (usize, usize, usize) {
        let target = self.groups.iter().map(|group| group.target).sum();
        (self.groups.len(), target, self.groups.iter().map(|group| group.filling).sum())
    }

    /// All slots.
    pub fn iter(&self) -> impl Iterator<Item = &S> {
        self.groups.iter().flat_map(|group| &group.slots).map(|(_, slot)| slot)
    }

    /// Whether nothing is being started, and nothing will be before the next claim or the retry
    /// after a failure.
    pub fn is_settled(&self) -> bool {
        self.groups.iter().all(|it| it.filling == 0 && (it.missing() == 0 || it.failures > 0))
    }
}

#[cfg(test)]
mod tests;
