//! How long the parts of an execution took.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::millis;

sandbox_protocol::words! {
    /// How a sandbox was started.
    #[derive(JsonSchema)]
    pub enum StartKind {
        /// It was started ahead, and taken from a pool.
        Warm = "warm",
        /// It was started when it was asked for.
        Cold = "cold",
    }
}

/// How long the parts of an execution took, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// The wait in a queue; `None` without a queue. It counts towards no time limit.
    pub queued_ms: Option<u64>,
    /// The start of its sandbox; `None` if that was open already.
    pub start_ms: Option<u64>,
    /// How the sandbox was started; `None` if it was open already.
    pub start: Option<StartKind>,
    /// From the request in the sandbox to its answer.
    pub run_ms: u64,
}

impl Timing {
    /// Of an execution that no queue held up. `start` is how its sandbox was started for it, and how
    /// long that took.
    pub fn new(start: Option<(StartKind, Duration)>, run_ms: u64) -> Self {
        Self {
            queued_ms: None,
            start_ms: start.map(|(_, took)| millis(took)),
            start: start.map(|(start, _)| start),
            run_ms,
        }
    }
}
