//! What the callers of a service ask and get: executions that are queued, run and kept, their
//! events and files, and sandboxes that are kept.

mod check;
mod execution;
mod report;
mod request;
mod sandbox;
mod status;
mod subject;
pub(crate) mod time;

pub use crate::execution::ExecutionKind;
pub use check::{CheckSeverity, ScriptCheck, ScriptProblem, ScriptRequest};
pub use execution::{
    AcceptedExecution, Execution, ExecutionList, ExecutionState, ExecutionSummary,
};
pub use report::{FileEntry, FileKind, FileList, Health, HealthCheck, ShutdownReport, UsageTotals};
pub use request::{
    CommandRequest, Content, ExecutionRequest, IoMode, IoRequest, NetworkRequest, RequestSecrets,
};
pub use sandbox::{
    ExtendRequest, IdleAction, KeptSpec, SandboxList, SandboxPatch, SandboxRef, SandboxRequest,
    SandboxStatus, SandboxView,
};
pub use status::{NodeState, NodeStatus, PoolStatus, SandboxCounts, ServiceStatus, SubjectStatus};
pub use subject::{BySubject, InvalidSubject, Subject, has_room};
pub use time::{InvalidTime, Time};

/// The database file in the data directory of a service.
pub const DATABASE_FILE: &str = "store.db";
/// The file in that directory whose lock a server holds.
pub const LOCK_FILE: &str = "lock";
