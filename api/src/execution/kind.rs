//! Which of the two an execution is.

use schemars::JsonSchema;

sandbox_protocol::words! {
    /// What an execution runs.
    #[derive(JsonSchema)]
    pub enum ExecutionKind {
        /// A script: its result is a `sandboxctl.result/1`.
        Script = "script",
        /// A command: its result is a `sandboxctl.exec/1`.
        Command = "command",
    }
}
