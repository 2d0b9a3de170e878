//! `doctor`: what is in the way of a sandbox on this machine, and how to get it out of the way.

use serde::Serialize;

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// Sandboxes work, with less than there could be.
    Warn,
    /// Sandboxes do not work.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name, which stays the same.
    pub id: &'static str,
    /// How it went.
    pub status: CheckStatus,
    /// What was seen.
    pub detail: String,
    /// What to do about it.
    pub fix: Option<String>,
}
