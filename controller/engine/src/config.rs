//! The configuration of the engine: which one, and where it is.

use std::path::{Path, PathBuf};

/// The configuration of the engine.
#[derive(Debug, Clone, Default)]
pub struct EngineConfig {
    /// The kind of engine.
    pub kind: EngineChoice,
    /// Where to look for Docker.
    pub docker: DockerEndpoint,
    /// The OCI runtime for Docker to use, such as `runsc`.
    pub runtime: Option<String>,
    /// The id, tag or digest of an image to use instead of the built-in one. It must be a sandbox
    /// image with exactly this agent.
    pub image: Option<String>,
    /// The configuration of the embedded engine.
    pub embedded: EmbeddedConfig,
}

/// The configuration of the embedded engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedConfig {
    /// The data directory: only the user of this process may have access, and it must not be on a
    /// noexec mount. It is created if it is missing.
    pub data_dir: PathBuf,
    /// What to do where a user other than root cannot set limits.
    pub rootless_limits: RootlessLimits,
}

sandbox_protocol::words! {
    /// What the embedded engine does if it runs without root and no control groups are delegated to it.
    #[derive(Default)]
    pub enum RootlessLimits {
        /// It refuses to start.
        #[default]
        Required = "required",
        /// It watches the memory of a container's processes and binds them to some processors.
        BestEffort = "best-effort",
    }
}

impl EmbeddedConfig {
    /// The default data directory of root.
    pub const DATA_DIR: &'static str = "/var/lib/sandboxctl";

    /// The path of an empty directory, which exists once the engine was started.
    pub fn empty_root(data_dir: &Path) -> PathBuf {
        data_dir.join("empty")
    }
}

impl Default for EmbeddedConfig {
    fn default() -> Self {
        Self { data_dir: Self::DATA_DIR.into(), rootless_limits: RootlessLimits::default() }
    }
}

sandbox_protocol::words! {
    /// Which engine to use.
    #[derive(Default)]
    pub enum EngineChoice {
        /// Docker or Podman if a socket of theirs exists, otherwise the embedded engine.
        #[default]
        Auto = "auto",
        /// A Docker Engine, or Podman through its Docker-compatible socket.
        Docker = "docker",
        /// The embedded engine: no daemon, sandboxctl runs the containers itself, as root or as a user.
        Embedded = "embedded",
    }
}

/// Where to look for Docker, in the order of the Docker CLI: `host`, `env_host`, `env_context`, the
/// current context of `config_dir`, then the `sockets`, each of which is pinged.
#[derive(Debug, Clone, Default)]
pub struct DockerEndpoint {
    /// An endpoint that the caller names, and what named it, for people: `--host`, or a key with
    /// its file.
    pub host: Option<(String, String)>,
    /// `DOCKER_HOST`.
    pub env_host: Option<String>,
    /// `DOCKER_CONTEXT`.
    pub env_context: Option<String>,
    /// `DOCKER_CONFIG`, or `~/.docker`.
    pub config_dir: Option<PathBuf>,
    /// Whether `DOCKER_TLS_VERIFY` is set. TLS is not supported: a TCP endpoint is then refused.
    pub env_tls_verify: bool,
    /// The default sockets, such as `/var/run/docker.sock`.
    pub sockets: Vec<PathBuf>,
}

/// The agent to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentSource {
    /// The agent that was built with this library.
    Embedded,
    /// A file: a static executable.
    File(PathBuf),
}
