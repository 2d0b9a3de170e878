//! Counters of a service, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use sandbox_api::Status;

/// What a service has done since it started, and what it does now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counters {
    /// Requests that were accepted.
    pub accepted: u64,
    /// Requests that were refused because the queue was full.
    pub refused_full: u64,
    /// Requests that were refused because of a rate or a quota.
    pub refused_quota: u64,
    /// Executions that ended, by status.
    pub ended: Vec<(Status, u64)>,
    /// Starts of sandboxes that were tried again because the engine did not answer.
    pub retried_starts: u64,
    /// Sandboxes that could not be removed.
    pub failed_removals: u64,
    /// Executions that wait now.
    pub queued: u64,
    /// Executions that run now.
    pub running: u64,
    /// Kept sandboxes that exist now.
    pub sandboxes: u64,
}

/// Every status, in order.
const STATUSES: [Status; 9] = [
    Status::Ok,
    Status::ScriptError,
    Status::Exit,
    Status::Limit,
    Status::Timeout,
    Status::Cancelled,
    Status::Killed,
    Status::AgentLost,
    Status::Error,
];

/// The counters as they count.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    pub accepted: AtomicU64,
    pub refused_full: AtomicU64,
    pub refused_quota: AtomicU64,
    pub retried_starts: AtomicU64,
    pub failed_removals: AtomicU64,
    ended: [AtomicU64; STATUSES.len()],
}

impl Counting {
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn ended(&self, status: Status) {
        if let Some(at) = STATUSES.iter().position(|it| *it == status) {
            Self::add(&self.ended[at]);
        }
    }

    /// The counts so far; of now, there are none.
    pub fn so_far(&self) -> Counters {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            accepted: count(&self.accepted),
            refused_full: count(&self.refused_full),
            refused_quota: count(&self.refused_quota),
            ended: STATUSES.into_iter().zip(self.ended.iter().map(count)).collect(),
            retried_starts: count(&self.retried_starts),
            failed_removals: count(&self.failed_removals),
            ..Counters::default()
        }
    }
}
