//! The connections of one sandbox, and what they may use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandbox_api::hosts::Allowlist;
use sandbox_api::{ByteSize, Limits};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::resolve::Resolve;
use crate::audit::Event;

/// What the connections of a sandbox may use, in its whole life. At one time there are
/// [`MAX_TUNNELS`](sandbox_protocol::limits::MAX_TUNNELS) at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EgressLimits {
    /// Connections, those that are refused counted.
    pub connections: u64,
    /// Bytes, both ways together.
    pub bytes: ByteSize,
    /// Time to resolve a name and to be answered there.
    pub connect_timeout: Duration,
    /// Time in which no byte comes or goes, until a connection is given up.
    pub idle_timeout: Duration,
}

impl From<&Limits> for EgressLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            connections: limits.connections.get().into(),
            bytes: limits.network_bytes,
            connect_timeout: limits.connect_timeout,
            idle_timeout: limits.connection_idle,
        }
    }
}

/// Takes the line of each connection for the audit.
type Record = Box<dyn Fn(&Event<'_>) + Send + Sync>;

/// The connections of one sandbox.
pub(crate) struct Egress {
    pub(super) list: Allowlist,
    pub(super) limits: EgressLimits,
    pub(super) resolver: Box<dyn Resolve>,
    /// The sandbox's id.
    pub(super) sandbox_id: String,
    pub(super) record: Record,
    /// The connections that are not over.
    pub(super) tasks: TaskTracker,
    pub(super) opened: AtomicU64,
    pub(super) spent: AtomicU64,
}

impl Egress {
    pub fn new(
        list: Allowlist,
        limits: EgressLimits,
        resolver: impl Resolve + 'static,
        sandbox_id: impl Into<String>,
        record: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self {
            list,
            limits,
            resolver: Box::new(resolver),
            sandbox_id: sandbox_id.into(),
            record: Box::new(record),
            tasks: TaskTracker::new(),
            opened: AtomicU64::new(0),
            spent: AtomicU64::new(0),
        }
    }

    /// Waits until every connection is over and has its line, but no longer than this. They end with
    /// the session: where its agent still lives, so may they.
    pub async fn settle(&self, patience: Duration) {
        self.tasks.close();
        _ = timeout(patience, self.tasks.wait()).await;
    }

    /// Counts a connection; whether it is still within the limit.
    pub(super) fn count_connection(&self) -> bool {
        self.opened.fetch_add(1, Ordering::Relaxed) < self.limits.connections
    }

    /// Counts bytes that are about to be passed on; whether they are still within the limit.
    pub(super) fn spend(&self, bytes: usize) -> bool {
        let before = self.spent.fetch_add(bytes as u64, Ordering::Relaxed);
        before.saturating_add(bytes as u64) <= self.limits.bytes.as_u64()
    }
}
