//! Egress: which hosts programs in a sandbox may reach, and the connections to them.
//!
//! The sandbox has no network. A program's connection comes as a tunnel through the agent, and
//! everything about it is decided here, by a name that the agent only passes on: whether the list has
//! it ([`allow`]), what its addresses are and whether they may be dialled ([`address`]), and whether what
//! the program says is for that name ([`sni`], [`first_bytes`]). The agent may be as hostile as any program: it gains
//! nothing by it.

mod address;
mod allow;
mod first_bytes;
#[cfg(test)]
mod hellos;
mod resolve;
mod sni;
#[cfg(test)]
mod tests;
mod tunnel;

#[cfg(any(test, fuzzing))]
pub(crate) use self::sni::fuzz;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandbox_protocol::message::Connect;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

pub use self::allow::{AllowRule, AllowRuleError, Allowlist};
use self::resolve::Resolve;
pub(crate) use self::resolve::SystemResolver;
use crate::audit::Event;
use crate::limits::{ByteSize, Limits};
use crate::session::{Gate, Tunnel};

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
    /// Idle timeout of a connection.
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
    list: Allowlist,
    limits: EgressLimits,
    resolver: Box<dyn Resolve>,
    /// The sandbox's id.
    execution: String,
    record: Record,
    /// The connections that are not over.
    tasks: TaskTracker,
    opened: AtomicU64,
    spent: AtomicU64,
}

impl Egress {
    pub fn new(
        list: Allowlist,
        limits: EgressLimits,
        resolver: impl Resolve + 'static,
        execution: impl Into<String>,
        record: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self {
            list,
            limits,
            resolver: Box::new(resolver),
            execution: execution.into(),
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
    fn count_connection(&self) -> bool {
        self.opened.fetch_add(1, Ordering::Relaxed) < self.limits.connections
    }

    /// Counts bytes that are about to be passed on; whether they are still within the limit.
    fn spend(&self, bytes: usize) -> bool {
        let before = self.spent.fetch_add(bytes as u64, Ordering::Relaxed);
        before.saturating_add(bytes as u64) <= self.limits.bytes.as_u64()
    }
}

impl Gate for Egress {
    fn open(self: Arc<Self>, tunnel: Tunnel, connect: Connect) {
        let tasks = self.tasks.clone();
        tasks.spawn(tunnel::serve(self, tunnel, connect));
    }
}
