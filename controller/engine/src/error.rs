//! What can fail of an engine.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use sandbox_protocol::ErrorKind;
use sandbox_rootfs::RootfsError;

/// No engine can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No engine answered.
    #[error("no container engine answers: {}", list_tried(.tried))]
    NoEngine {
        /// What was tried, in order.
        tried: Vec<Tried>,
    },
    /// The embedded engine cannot be used here.
    #[error("the embedded engine cannot be used")]
    Embedded(#[source] EmbeddedProblem),
    /// Something was asked of the embedded engine that only Docker has.
    #[error("the embedded engine takes no {what}: engine.{what} is for Docker")]
    DockerOnly {
        /// The key, in `engine`.
        what: &'static str,
    },
    /// The endpoint that was named cannot be used.
    #[error("cannot use the endpoint of {why}: {reason}")]
    Endpoint {
        /// What names it: `--host`, `DOCKER_HOST`, a context.
        why: String,
        /// What is wrong.
        reason: String,
    },
    /// Docker's context cannot be read, or names no engine.
    #[error("cannot use {why}: {reason}")]
    Context {
        /// Which, and what names it.
        why: String,
        /// What is wrong.
        reason: String,
    },
    /// The agent's file cannot be used.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// The agent's file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the agent {}", .path.display())]
pub struct AgentError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub source: io::Error,
}

impl ConnectError {
    /// What went wrong, in one word.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoEngine { .. } | Self::Embedded(_) => ErrorKind::Engine,
            Self::DockerOnly { .. } | Self::Endpoint { .. } | Self::Context { .. } => {
                ErrorKind::Config
            }
            Self::Agent(_) => ErrorKind::Image,
        }
    }

    /// The next step.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoEngine { tried } if tried.iter().any(|one| one.outcome.contains("denied")) => {
                "your user may not use the engine's socket: `sudo usermod -aG docker $USER` and a \
                 new login let it (and make it as good as root), or run a rootless engine"
            }
            Self::NoEngine { .. } => {
                "install and start Docker or Podman, or name a running engine with --host"
            }
            Self::Embedded(problem) => problem.hint(),
            Self::DockerOnly { .. } => "unset it, or name Docker: --engine docker",
            Self::Endpoint { .. } => "unix:// and tcp:// endpoints can be used",
            Self::Context { .. } => {
                "`docker context ls` lists the contexts; --host or DOCKER_HOST names an engine \
                 without one"
            }
            Self::Agent(_) => AgentError::HINT,
        }
    }
}

impl AgentError {
    /// The next step.
    pub const HINT: &'static str = "SANDBOX_AGENT must name a static sandbox-agent program";
}

/// An engine failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// It did not answer in time.
    #[error("no answer within {}", humantime::format_duration(*.after))]
    TimedOut {
        /// How long it was given.
        after: Duration,
    },
    /// The connection to it failed.
    #[error("{0}")]
    Connection(String),
    /// It refused, in its own words.
    #[error("{0}")]
    Refused(String),
    /// What it was asked about is not there, in its own words.
    #[error("{0}")]
    NotFound(String),
    /// There is no sandbox image to make a container from, or none any more: prepare one.
    #[error("there is no sandbox image")]
    ImageMissing,
    /// What was named for programs cannot be used, or not by this engine.
    #[error("{reason}")]
    UnusableRoot {
        /// What is wrong.
        reason: String,
        /// The next step, where there is one.
        hint: Option<&'static str>,
    },
    /// An image that is not the sandbox image.
    #[error("{which} {reason}")]
    UnusableImage {
        /// Which: `engine.image 'alpine'`.
        which: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An image for programs that cannot be had, or used.
    #[error("the image '{reference}' {reason}")]
    ProgramImage {
        /// As the caller named it.
        reference: String,
        /// What is wrong.
        reason: String,
        /// The next step, where there is one.
        hint: Option<&'static str>,
    },
    /// An image archive that cannot be unpacked.
    #[error("cannot use the image archive {}", path.display())]
    Archive {
        /// Which.
        path: PathBuf,
        /// Why.
        source: Box<RootfsError>,
    },
    /// It answered with something that we do not understand.
    #[error("unexpected response from the engine: {0}")]
    UnexpectedResponse(String),
}

/// An endpoint that was tried, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Tried {
    /// The endpoint, such as `unix:///var/run/docker.sock`.
    pub endpoint: String,
    /// What names it: `--host`, `DOCKER_HOST`, a context, a usual socket.
    pub why: String,
    /// What came of it.
    pub outcome: String,
}

fn list_tried(tried: &[Tried]) -> String {
    if tried.is_empty() {
        return "nothing was found to try".to_owned();
    }
    let lines: Vec<_> = tried
        .iter()
        .map(|Tried { endpoint, why, outcome }| format!("{endpoint}, {why}: {outcome}"))
        .collect();
    lines.join("; ")
}

/// Why the embedded engine cannot be used on this machine, or by this user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedProblem {
    /// It makes namespaces, mounts and control groups.
    #[error("it needs root")]
    NotRoot,
    /// Its data directory.
    #[error("cannot use {}", path.display())]
    DataDir {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No program can be started from its data directory.
    #[error("{} is on a mount that allows no programs (noexec)", path.display())]
    NoExec {
        /// Which.
        path: PathBuf,
    },
    /// Limits cannot be kept.
    #[error("control groups cannot be used: {problem}")]
    Cgroups {
        /// Why.
        problem: String,
    },
    /// A file of the kernel's cannot be read.
    #[error("cannot read /proc")]
    Proc(#[source] io::Error),
}

impl EmbeddedProblem {
    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::NotRoot => {
                "run it as root, or without root: rootless Docker or Podman, by --engine docker"
            }
            Self::DataDir { .. } => "set engine.data_dir to a folder of root's alone",
            Self::NoExec { .. } => "set engine.data_dir to a folder on a mount without noexec",
            Self::Cgroups { .. } => {
                "mount /sys/fs/cgroup writable with the memory, cpu and pids controllers; in a \
                 container that takes --privileged"
            }
            Self::Proc(_) => "mount /proc",
        }
    }
}
