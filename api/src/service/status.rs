//! What a service does now: for who administers it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::subject::Subject;
use super::time::Time;
use crate::engine_kind::EngineKind;

/// What a service does now, for who administers it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceStatus {
    /// The version of the program.
    pub version: String,
    /// The engine that sandboxes run on.
    pub engine: EngineKind,
    /// How long it has been running.
    pub uptime_ms: u64,
    /// Executions that wait; in a cluster for any of its nodes.
    pub queued: u64,
    /// How many may wait.
    pub max_queued: u64,
    /// Executions that run here.
    pub running: u64,
    /// How many may run here at one time.
    pub max_running: u64,
    /// The sandboxes that are started ahead; null if none are.
    pub pool: Option<PoolStatus>,
    /// The kept sandboxes that are here.
    pub sandboxes: SandboxCounts,
    /// Subjects of which something waits, runs, is kept or has ended today; those of which most is under way first.
    pub subjects: Vec<SubjectStatus>,
    /// There are more subjects than are listed.
    pub more_subjects: bool,
    /// The nodes of the cluster; none without one.
    pub nodes: Vec<NodeStatus>,
}

/// Sandboxes that are started ahead, of all kinds together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolStatus {
    /// The kinds of sandboxes.
    pub kinds: u64,
    /// How many are to be ready.
    pub target: u64,
    /// How many are ready.
    pub ready: u64,
    /// How many are being started.
    pub starting: u64,
    /// How often one was asked for.
    pub claims: u64,
    /// How often one was ready then.
    pub hits: u64,
    /// Starts that failed.
    pub failed: u64,
}

/// Kept sandboxes, by their state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxCounts {
    /// Those that are being started.
    pub starting: u64,
    /// Those with a container.
    pub ready: u64,
    /// Those with a container that is frozen.
    pub paused: u64,
    /// Those without a container.
    pub stopped: u64,
}

/// What there is of a subject now, and what it has used today, by UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubjectStatus {
    /// The subject.
    pub subject: Subject,
    /// Executions that wait.
    pub queued: u64,
    /// Executions that run.
    pub running: u64,
    /// Kept sandboxes.
    pub sandboxes: u64,
    /// Executions that ended today.
    pub executions_today: u64,
    /// Their processor time.
    pub cpu_ms_today: u64,
    /// The bytes of results and files that are stored.
    pub stored_bytes: u64,
}

/// A node of a cluster. What only a session has is null if it is away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeStatus {
    /// Its id.
    pub node: String,
    /// Its name for people.
    pub name: String,
    /// What it does.
    pub state: NodeState,
    /// Where the others reach it.
    pub address: Option<String>,
    /// The version of its program.
    pub version: Option<String>,
    /// How many executions it runs.
    pub running: Option<u32>,
    /// How many it may run at one time.
    pub slots: Option<u32>,
    /// The kept sandboxes that it has.
    pub sandboxes: u64,
    /// Equal where the settings that all nodes should share are.
    pub config_digest: Option<String>,
    /// How long ago it renewed its session.
    pub beat_age_ms: Option<u64>,
    /// When it was last there.
    pub last_seen: Time,
}

sandbox_protocol::words! {
    /// What a node does.
    #[derive(JsonSchema)]
    pub enum NodeState {
        /// It begins executions.
        Ready = "ready",
        /// It begins no execution, and still runs some, or has kept sandboxes.
        Draining = "draining",
        /// It begins no execution, runs none, and has no kept sandbox.
        Drained = "drained",
        /// It has no session.
        Away = "away",
    }
}
