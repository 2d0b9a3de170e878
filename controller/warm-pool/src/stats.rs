//! What a pool has done so far.

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
