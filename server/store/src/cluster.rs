//! Several services on one PostgreSQL database: their sessions, the queue that they share, and where things are.
//!
//! A node is a data directory, a session one process on it. As long as its row is there, a session holds the
//! executions that it claimed or began: everything that is stored of them names the session, and is refused when
//! another change was first. The row is the only fence.

use std::time::Duration;

use sandbox_api::service::{NodeState, SandboxStatus, Time};

use crate::executions::RecoveredExecution;
use crate::sandboxes::SandboxRecord;

/// What all nodes of a cluster have in common.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterIdentity {
    /// Its id: a data directory belongs to one cluster.
    pub id: String,
    /// The key between nodes.
    pub key: [u8; 32],
    /// How long a session that does not renew itself is alive.
    pub lease: Duration,
}

/// The key is not shown.
impl std::fmt::Debug for ClusterIdentity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("ClusterIdentity");
        shown.field("id", &self.id).field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// A session to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// The node's id, which its data directory has.
    pub node: String,
    /// Its name for people.
    pub name: String,
    /// Where the others reach it.
    pub address: String,
    /// The SHA-256 of its certificate.
    pub certificate: [u8; 32],
    /// The version of the program.
    pub version: String,
    /// How many executions it runs at one time.
    pub slots: u32,
    /// A digest of the configuration that all nodes are to have.
    pub config_digest: String,
}

/// A session that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSession {
    /// Its number; none is used twice.
    pub id: i64,
    /// The node's id.
    pub node: String,
    /// Its name for people.
    pub name: String,
    /// Where the others reach it.
    pub address: String,
    /// The SHA-256 of its certificate.
    pub certificate: [u8; 32],
    /// The version of the program.
    pub version: String,
    /// How many executions it runs at one time.
    pub slots: u32,
    /// How many ran at its last beat.
    pub running: u32,
    /// How many kept sandboxes it had then.
    pub sandboxes: u32,
    /// A digest of the configuration that all nodes are to have.
    pub config_digest: String,
    /// Whether it takes nothing new.
    pub is_draining: bool,
    /// How long ago its last beat was, by the database's clock.
    pub beat_age: Duration,
}

/// Whether a node takes new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Drain {
    /// It does.
    #[default]
    No,
    /// It takes none, and what it has goes on.
    Yes,
    /// It takes none, and removes its kept sandboxes.
    Evict,
}

impl NodeSession {
    /// What its node does, which has so many kept sandboxes.
    pub(crate) const fn state(&self, sandboxes: u64) -> NodeState {
        match self.is_draining {
            false => NodeState::Ready,
            true if self.running == 0 && sandboxes == 0 => NodeState::Drained,
            true => NodeState::Draining,
        }
    }
}

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// An execution, as long as it runs: everything else of it is in the store.
    Execution(String),
    /// The files that an execution left.
    Files(String),
    /// A kept sandbox.
    Sandbox(String),
    /// The kept sandbox of this name.
    SandboxNamed(String),
    /// What an agent of the subject has.
    Workspace,
    /// Nothing that is somewhere.
    Here,
}

/// Where something is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// At a node.
    Node {
        /// The node's id.
        node: String,
        /// Its session, if it has one now.
        session: Option<i64>,
    },
    /// At none: it waits, it ended without files, or it does not exist.
    Nowhere,
}

/// What a node learns when it renews its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// Whether the node is to take nothing new.
    pub drain: Drain,
    /// The executions of this session that a caller asked to cancel.
    pub cancel_asked: Vec<String>,
    /// The other sessions and how often each was renewed.
    pub others: Vec<(i64, i64)>,
    /// How many executions wait.
    pub waiting: u64,
    /// When the oldest of them was accepted.
    pub oldest: Option<Time>,
}

/// An execution that a session has taken, with its request.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    /// The execution.
    pub execution: RecoveredExecution,
    /// Its request as JSON, without its secrets.
    pub request: String,
}

/// What was claimed, and whether more waits.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Claims {
    /// In the order of turns.
    pub claimed: Vec<Claimed>,
    /// Whether anything may wait now, for whomever: as many as were asked for say nothing of others.
    pub has_more: bool,
}

/// What a session holds, as the database has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holdings {
    /// Executions that it claimed or began, and whether they began.
    pub held: Vec<(String, bool)>,
    /// Executions that wait for it alone.
    pub waiting: Vec<String>,
}

/// An execution whose session has ended without it.
#[derive(Debug, Clone, PartialEq)]
pub struct OrphanedExecution {
    /// The execution; its status says whether it began.
    pub execution: RecoveredExecution,
    /// The session that held it; `None` if it waited for one.
    pub session: Option<i64>,
    /// How often it was claimed.
    pub claims: u32,
    /// Whether a caller asked to cancel it.
    pub is_cancelled: bool,
}

/// A kept sandbox of another node.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxElsewhere {
    /// The sandbox.
    pub record: SandboxRecord,
    /// Its state when its node said so last.
    pub status: SandboxStatus,
    /// Whether its node is there.
    pub is_there: bool,
}

/// How far an execution is, wherever it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// The number of its last stored event.
    pub last_event: u64,
    /// Whether it runs, or has.
    pub has_begun: bool,
    /// Whether it has ended.
    pub has_ended: bool,
}

/// What there is of a subject, at all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubjectCounts {
    /// Executions that wait.
    pub queued: u64,
    /// Executions that are claimed or run.
    pub running: u64,
    /// Kept sandboxes.
    pub sandboxes: u64,
}

/// What one node tells the others, so that they need not look for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// Something waits.
    Queued,
    /// This execution began or ended.
    Changed(String),
    /// Some were lost, or there may have been some.
    Missed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_drained_when_nothing_of_it_is_left() {
        let session = |running, is_draining| NodeSession {
            id: 7,
            node: "m1-3f9c".to_owned(),
            name: "m1".to_owned(),
            address: "m1:8471".to_owned(),
            certificate: [0; 32],
            version: "0.1.0".to_owned(),
            slots: 16,
            running,
            sandboxes: 0,
            config_digest: "3f".to_owned(),
            is_draining,
            beat_age: Duration::from_millis(1200),
        };
        assert_eq!(session(3, false).state(2), NodeState::Ready);
        assert_eq!(session(1, true).state(0), NodeState::Draining);
        assert_eq!(session(0, true).state(1), NodeState::Draining);
        assert_eq!(session(0, true).state(0), NodeState::Drained);
    }
}
