//! Which sandboxes are started ahead: how many of each kind, when, and after which failures. Pure: it
//! starts nothing itself, and knows the time only from its caller.

#![forbid(unsafe_code)]

mod slots;
mod stats;

use std::time::Duration;

pub use self::slots::{PoolSlots, SlotEnd};
pub use self::stats::{Counter, Counters, PoolStats};

/// How many sandboxes are started ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// How many of each key; of a learnt key at most. 0: none at all.
    pub size: usize,
    /// How long one waits for a caller at most. Then another one is started in its place.
    pub max_age: Duration,
    /// How many keys there are at most.
    pub max_keys: usize,
    /// Whether keys are learnt from use, besides those that somebody names. Sandboxes of learnt keys are only started ahead while an
    /// eighth of the machine's memory is available.
    pub adaptive: bool,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self { size: 0, max_age: Duration::from_secs(1800), max_keys: 4, adaptive: false }
    }
}
