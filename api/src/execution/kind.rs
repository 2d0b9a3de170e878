//! Which of the two an execution is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What an execution runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionKind {
    /// A script: its result is a `sandboxctl.result/1`.
    Script,
    /// A command: its result is a `sandboxctl.exec/1`.
    Command,
}
