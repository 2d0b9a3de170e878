//! Figures of the connections that write.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the writers of a node have done since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatabaseFigures {
    /// Transactions that were committed.
    pub commits: u64,
    /// How long they took, all together.
    pub commit_time: Duration,
    /// Transactions that were begun again.
    pub retries: u64,
}

#[derive(Default)]
pub(crate) struct Figures {
    commits: AtomicU64,
    commit_micros: AtomicU64,
    retries: AtomicU64,
}

impl Figures {
    pub fn committed(&self, after: Duration) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        self.commit_micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self) -> DatabaseFigures {
        DatabaseFigures {
            commits: self.commits.load(Ordering::Relaxed),
            commit_time: Duration::from_micros(self.commit_micros.load(Ordering::Relaxed)),
            retries: self.retries.load(Ordering::Relaxed),
        }
    }
}
