//! Which engine is used, and where it is: as the caller says it.

use std::path::{Path, PathBuf};

/// Which engine, and where.
#[derive(Debug, Clone, Default)]
pub struct EngineConfig {
    /// Which engine.
    pub kind: EngineChoice,
    /// Where Docker is looked for.
    pub docker: DockerEndpoint,
    /// The OCI runtime that Docker is to use, such as `runsc`.
    pub runtime: Option<String>,
    /// The id, tag or digest of an image to use in place of the one that is built. It must be a
    /// sandbox image with this very agent.
    pub image: Option<String>,
    /// The embedded engine's.
    pub embedded: EmbeddedConfig,
}

/// What the embedded engine is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedConfig {
    /// Where it keeps its containers: root's alone, and on a mount that programs can be started
    /// from. Made where it is missing.
    pub data_dir: PathBuf,
}

impl EmbeddedConfig {
    /// Where the data is unless somebody says otherwise.
    pub const DATA_DIR: &'static str = "/var/lib/sandboxctl";

    /// Where there is an empty directory, from the engine's start on.
    pub fn empty_root(data_dir: &Path) -> PathBuf {
        data_dir.join("empty")
    }
}

impl Default for EmbeddedConfig {
    fn default() -> Self {
        Self { data_dir: Self::DATA_DIR.into() }
    }
}

/// Which engine to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EngineChoice {
    /// Docker where it is there.
    #[default]
    Auto,
    /// A Docker Engine, or Podman's socket.
    Docker,
    /// No daemon: the containers are ours.
    Embedded,
}

impl EngineChoice {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Docker, Self::Embedded];

    /// The word in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Docker => "docker",
            Self::Embedded => "embedded",
        }
    }
}

impl std::fmt::Display for EngineChoice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl std::str::FromStr for EngineChoice {
    type Err = UnknownEngine;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|choice| choice.as_str() == word)
            .ok_or_else(|| UnknownEngine(word.to_owned()))
    }
}

/// A word that is no [`EngineChoice`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no engine: auto, docker or embedded")]
pub struct UnknownEngine(pub String);

/// Where Docker is looked for, in the order of the docker command line: `host`, `env_host`,
/// `env_context`, the current context of `config_dir`, then the `sockets`, each pinged.
#[derive(Debug, Clone, Default)]
pub struct DockerEndpoint {
    /// One that the caller names, and what names it, for people: `--host`, a key with its file.
    pub host: Option<(String, String)>,
    /// `DOCKER_HOST`.
    pub env_host: Option<String>,
    /// `DOCKER_CONTEXT`.
    pub env_context: Option<String>,
    /// `DOCKER_CONFIG`, or `~/.docker`.
    pub config_dir: Option<PathBuf>,
    /// `DOCKER_TLS_VERIFY` is set. TLS is not supported: an endpoint over TCP is refused then.
    pub env_tls_verify: bool,
    /// The usual sockets, such as `/var/run/docker.sock`.
    pub sockets: Vec<PathBuf>,
}

/// The agent to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentSource {
    /// The one that was built with this library.
    Embedded,
    /// A file: a static program.
    File(PathBuf),
}
