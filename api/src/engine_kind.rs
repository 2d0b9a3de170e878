//! Kinds of engines.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

sandbox_protocol::words! {
    /// A kind of engine.
    #[derive(JsonSchema)]
    pub enum EngineKind {
        /// A Docker Engine, or Podman through its Docker-compatible socket.
        Docker = "docker",
        /// The embedded engine: no daemon, sandboxctl runs the containers itself.
        Embedded = "embedded",
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
