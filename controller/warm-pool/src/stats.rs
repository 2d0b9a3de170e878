//! What a pool has done so far.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The state of a pool, and what it has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// The keys that sandboxes are started ahead for.
    pub keys: usize,
    /// The target number of ready sandboxes.
    pub target: usize,
    /// The sandboxes that are ready.
    pub parked: usize,
    /// The sandboxes that are being started ahead.
    pub filling: usize,
    /// The age of the oldest one that is ready.
    pub oldest: Duration,
    /// Launches of sandboxes that can be pooled: hits and misses.
    pub claims: u64,
    /// Launches that got a pooled sandbox.
    pub hits: u64,
    /// Launches that had to start one, because none of their key was ready.
    pub misses: u64,
    /// Launches of sandboxes that are never pooled: those with inputs, a name or a staged io dir.
    pub unpooled: u64,
    /// The ages of the sandboxes that were handed out, together.
    pub claimed_age: Duration,
    /// Sandboxes that were started ahead.
    pub filled: u64,
    /// How long their starts took, together.
    pub fill_time: Duration,
    /// Starts ahead that failed.
    pub failed: u64,
    /// Pooled sandboxes that died, or could not be handed over.
    pub dead: u64,
    /// Pooled sandboxes that were not claimed in time.
    pub expired: u64,
}

/// The part of [`PoolStats`] that is counted.
#[derive(Debug, Default)]
pub struct Counters {
    hits: Counter,
    /// See [`PoolStats::misses`].
    pub misses: Counter,
    /// See [`PoolStats::unpooled`].
    pub unpooled: Counter,
    claimed_age: Counter,
    filled: Counter,
    fill_time: Counter,
    /// See [`PoolStats::failed`].
    pub failed: Counter,
    /// See [`PoolStats::dead`].
    pub dead: Counter,
    /// See [`PoolStats::expired`].
    pub expired: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn add(&self) {
        self.add_many(1);
    }

    fn add_many(&self, many: u64) {
        self.0.fetch_add(many, Ordering::Relaxed);
    }

    fn add_time(&self, time: Duration) {
        self.add_many(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn time(&self) -> Duration {
        Duration::from_micros(self.get())
    }
}

impl Counters {
    /// Counts one that was handed out at this age.
    pub fn hit(&self, age: Duration) {
        self.hits.add();
        self.claimed_age.add_time(age);
    }

    /// Counts one that was started ahead, and how long that took.
    pub fn filled(&self, took: Duration) {
        self.filled.add();
        self.fill_time.add_time(took);
    }

    /// With nothing about the state of the pool.
    pub fn read(&self) -> PoolStats {
        let (hits, misses) = (self.hits.get(), self.misses.get());
        PoolStats {
            claims: hits.saturating_add(misses),
            hits,
            misses,
            unpooled: self.unpooled.get(),
            claimed_age: self.claimed_age.time(),
            filled: self.filled.get(),
            fill_time: self.fill_time.time(),
            failed: self.failed.get(),
            dead: self.dead.get(),
            expired: self.expired.get(),
            ..PoolStats::default()
        }
    }
}
