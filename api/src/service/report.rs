//! Files of executions, usage, health, and the end of a service.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::request::Content;
use super::subject::Subject;
use super::time::Time;
use crate::engine_kind::EngineKind;
use crate::named::named;

named! {
    /// A file or directory that an execution left.
    pub struct FileEntry {
        /// Relative to the io dir; lossy where it is not UTF-8.
        path / path_b64: "The path's bytes, where they are not UTF-8.",
        /// What it is.
        [serde(rename = "type")]
        kind: FileKind,
        /// The size of a file; 0 for anything else.
        bytes: u64,
        /// When it was last modified; null where that is unknown.
        modified: Option<Time>,
    }
}

/// What a [`FileEntry`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A regular file: the only one that can be read.
    File,
    /// A directory.
    Directory,
    /// A symbolic link. It is never followed.
    Symlink,
    /// A FIFO, a socket or a device.
    Other,
}

/// The files that an execution left, sorted by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileList {
    /// The files and directories.
    pub files: Vec<FileEntry>,
    /// There are more than are listed.
    pub truncated: bool,
}

/// What a subject has used so far, and what it has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UsageTotals {
    /// Executions that ended, ever.
    pub executions: u64,
    /// Their processor time in milliseconds.
    pub cpu_ms: u64,
    /// Their time in milliseconds.
    pub wall_ms: u64,
    /// The bytes that they wrote.
    pub written_bytes: u64,
    /// The bytes of results and files that are kept now.
    pub stored_bytes: u64,
    /// Executions that wait now.
    pub queued: u64,
    /// Executions that run now.
    pub running: u64,
    /// Kept sandboxes that exist now.
    pub sandboxes: u64,
}

/// Whether a service can do its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// Whether all checks pass, and it accepts requests.
    pub ready: bool,
    /// The checks.
    pub checks: Vec<HealthCheck>,
}

/// A part of [`Health`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {
    /// Its name: `accepting`, `engine`, `pool`, `store`.
    pub name: String,
    /// Whether it passes.
    pub ok: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

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

/// What a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It begins executions.
    Ready,
    /// It begins none, and still has some, or kept sandboxes.
    Draining,
    /// It begins none, and has none.
    Drained,
    /// It has no session.
    Away,
}

impl NodeState {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Away => "away",
        }
    }
}

/// A script to check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptRequest {
    /// The source code of a Luau script.
    pub script: Content,
}

/// What a check of a script has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptCheck {
    /// What is wrong with it, in no order; nothing if it compiles and uses no unknown names.
    pub problems: Vec<ScriptProblem>,
}

/// Something that is wrong with a script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptProblem {
    /// Its line, from 1.
    pub line: u32,
    /// What is wrong.
    pub message: String,
    /// Whether it runs all the same.
    pub severity: CheckSeverity,
}

/// How bad a [`ScriptProblem`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckSeverity {
    /// The script does not compile.
    Error,
    /// It compiles, and cannot work there.
    Warning,
}

/// What became of the work of a service that was shut down.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShutdownReport {
    /// Executions that ended before the deadline.
    pub finished: Vec<String>,
    /// Executions that were cancelled at the deadline.
    pub cancelled: Vec<String>,
    /// Executions that wait, and run after the next start.
    pub queued: Vec<String>,
    /// Sandboxes that could not be removed, and why.
    pub left: Vec<String>,
}
