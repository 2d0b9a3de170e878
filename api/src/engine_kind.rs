//! Kinds of engines.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A kind of engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// A Docker Engine, or Podman through its Docker-compatible socket.
    Docker,
    /// The embedded engine: no daemon, sandboxctl runs the containers itself.
    Embedded,
}

impl EngineKind {
    /// Its name in results.
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

/// An engine, and why it was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineInfo {
    /// The kind of engine.
    pub kind: EngineKind,
    /// Its endpoint, such as `unix:///var/run/docker.sock`.
    pub endpoint: String,
    /// What named the endpoint: `--host`, `DOCKER_HOST`, a Docker context, or a default socket.
    pub why: String,
    /// Why another engine was not chosen, in one line.
    pub notice: Option<String>,
}
