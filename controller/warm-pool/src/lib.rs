//! Which sandboxes are started ahead: how many of each kind, when, and after which failures. Pure: it
//! starts nothing itself, and knows the time only from its caller.

#![forbid(unsafe_code)]

mod slots;
mod stats;

use std::time::Duration;

pub use self::slots::{PoolSlots, SlotEnd};
pub use self::stats::PoolStats;

/// How many sandboxes are started ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// How many of each key; at most as many of a learnt key. 0: no pool.
    pub size: usize,
    /// The maximum time that one waits for a caller. Then another one is started in its place.
    pub max_age: Duration,
    /// The maximum number of keys.
    pub max_keys: usize,
    /// Whether keys are learnt from use, in addition to configured ones. Sandboxes of learnt keys
    /// are only started ahead while an eighth of the machine's memory is available.
    pub adaptive: bool,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self { size: 0, max_age: Duration::from_secs(1800), max_keys: 4, adaptive: false }
    }
}
