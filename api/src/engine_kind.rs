//! Which engine runs containers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which engine it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// A Docker Engine, or Podman's socket.
    Docker,
    /// No daemon: the containers are ours.
    Embedded,
}

impl EngineKind {
    /// The word in results.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Embedded => "embedded",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// What an engine is, and why it was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// Which engine.
    pub kind: EngineKind,
    /// Where it is, such as `unix:///var/run/docker.sock`.
    pub endpoint: String,
    /// What named the endpoint: `--host`, `DOCKER_HOST`, a context, a usual socket.
    pub why: String,
    /// Why it was not another engine, in one line.
    pub notice: Option<String>,
}
