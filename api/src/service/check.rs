//! Scripts that are checked and not run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::request::Content;

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
