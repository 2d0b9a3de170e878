//! Errors of engines.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use sandbox_protocol::ErrorKind;
use sandbox_rootfs::RootfsError;

/// No engine can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No engine responded.
    #[error("cannot connect to a container engine: {}", list_tried(.tried))]
    NoEngine {
        /// The endpoints that were tried, in order.
        tried: Vec<Tried>,
    },
    /// The embedded engine cannot be used on this machine.
    #[error("the embedded engine cannot be used")]
    Embedded(#[source] EmbeddedProblem),
    /// The embedded engine does not support a setting that only Docker has.
    #[error("the embedded engine has no {what}: engine.{what} is for Docker")]
    DockerOnly {
        /// The configuration key, in `engine`.
        what: &'static str,
    },
    /// The configured endpoint cannot be used.
    #[error("cannot use the endpoint of {why}: {reason}")]
    Endpoint {
        /// What named it: `--host`, `DOCKER_HOST`, a context.
        why: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The Docker context cannot be read, or has no endpoint.
    #[error("cannot use {why}: {reason}")]
    Context {
        /// The context, and what named it.
        why: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The agent's file is unusable.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// The agent's file is unusable.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the agent {}", .path.display())]
pub struct AgentError {
    /// The file.
    pub path: PathBuf,
    /// The I/O error.
    pub source: io::Error,
}

impl ConnectError {
    /// The error's kind.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoEngine { .. } | Self::Embedded(_) => ErrorKind::Engine,
            Self::DockerOnly { .. } | Self::Endpoint { .. } | Self::Context { .. } => {
                ErrorKind::Config
            }
            Self::Agent(_) => ErrorKind::Image,
        }
    }

    /// A suggested next step.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoEngine { tried } if tried.iter().any(|one| one.outcome.contains("denied")) => {
                "your user may not use the engine's socket: `sudo usermod -aG docker $USER` and a \
                 new login let it (and make it as good as root), or run a rootless engine: --engine \
                 embedded needs no socket"
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
    /// A suggested next step.
    pub const HINT: &'static str = "SANDBOX_AGENT must name a static sandbox-agent program";
}

/// An engine failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine did not respond in time.
    #[error("no answer within {}", humantime::format_duration(*.after))]
    TimedOut {
        /// The time limit.
        after: Duration,
    },
    /// The connection to the engine failed.
    #[error("{0}")]
    Connection(String),
    /// The engine refused the request, with this message.
    #[error("{0}")]
    Refused(String),
    /// There is no control group here that freezes.
    #[error("no control group of this container can be frozen")]
    NoFreezer,
    /// This user can make no container, for this reason.
    #[error("{reason}")]
    Namespaces {
        /// The reason.
        reason: String,
        /// How to allow it, if what forbids it is known.
        hint: Option<&'static str>,
    },
    /// The engine did not find the object, with this message.
    #[error("{0}")]
    NotFound(String),
    /// There is no sandbox image to create a container from, or not any more: prepare one.
    #[error("there is no sandbox image")]
    ImageMissing,
    /// The given root filesystem cannot be used, or not by this engine.
    #[error("{reason}")]
    UnusableRoot {
        /// What is wrong with it.
        reason: String,
        /// A suggested next step, if there is one.
        hint: Option<&'static str>,
    },
    /// An image is not the sandbox image.
    #[error("{which} {reason}")]
    UnusableImage {
        /// What named it, and its name: `engine.image 'alpine'`.
        which: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An image for commands cannot be pulled or used.
    #[error("the image '{reference}' {reason}")]
    ProgramImage {
        /// The name that the caller gave.
        reference: String,
        /// What is wrong.
        reason: String,
        /// A suggested next step, if there is one.
        hint: Option<&'static str>,
    },
    /// An image archive cannot be unpacked.
    #[error("cannot use the image archive {}", path.display())]
    Archive {
        /// Its path.
        path: PathBuf,
        /// The reason.
        source: Box<RootfsError>,
    },
    /// Unexpected response from the engine.
    #[error("unexpected response from the engine: {0}")]
    UnexpectedResponse(String),
}

/// An endpoint that was tried, and the result.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Tried {
    /// The endpoint, such as `unix:///var/run/docker.sock`.
    pub endpoint: String,
    /// What named it: `--host`, `DOCKER_HOST`, a Docker context, or a default socket.
    pub why: String,
    /// The result of the attempt.
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
    /// A user other than root can set no limits, and they are required.
    #[error("without root its limits need delegated control groups, and {problem}")]
    NotDelegated {
        /// The reason.
        problem: String,
    },
    /// The data directory is unusable.
    #[error("cannot use {}", path.display())]
    DataDir {
        /// Its path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The data directory is on a noexec mount.
    #[error("{} is on a mount with the noexec option", path.display())]
    NoExec {
        /// Its path.
        path: PathBuf,
    },
    /// Limits cannot be enforced.
    #[error("control groups cannot be used: {problem}")]
    Cgroups {
        /// The reason.
        problem: String,
    },
    /// A file in `/proc` cannot be read.
    #[error("cannot read /proc")]
    Proc(#[source] io::Error),
}

impl EmbeddedProblem {
    /// How to fix it.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::NotDelegated { .. } => {
                "`systemd-run --user --scope -p Delegate=yes -- sandboxctl run FILE` delegates them, \
                 --limits best-effort accepts weaker limits, and a running Docker or Podman needs \
                 neither"
            }
            Self::DataDir { .. } => {
                "set engine.data_dir to a directory that only its user can access"
            }
            Self::NoExec { .. } => "set engine.data_dir to a directory on a mount without noexec",
            Self::Cgroups { .. } => {
                "mount /sys/fs/cgroup writable with the memory, cpu and pids controllers; in a \
                 container that takes --privileged"
            }
            Self::Proc(_) => "mount /proc",
        }
    }
}
