//! The only seam between the controller and what runs containers.
//!
//! An engine makes hardened containers from a [`ContainerSpec`], which is plain data and says
//! everything; it decides nothing about sandboxes. Every call may hang or fail: time limits and
//! what to do then are the caller's business.

#![deny(unsafe_code)]

mod agent;
mod config;
mod connect;
mod docker;
mod embedded;
mod error;
mod exit;
mod hardening;
mod image;
mod installed_files;
mod sealed;

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fmt, io};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::BoxStream;
use sandbox_api::{EngineInfo, RootFs};
use sandbox_protocol::User;
use sandbox_protocol::argv::AgentArgs;
use serde::Serialize;
use tokio::io::AsyncWrite;

use self::hardening::SYSTEM_FILES;
pub use agent::{AGENT, AGENT_SHA256, Agent};
pub use config::{
    AgentSource, DockerEndpoint, EmbeddedConfig, EngineChoice, EngineConfig, UnknownEngine,
};
pub use connect::{connect, reach};
pub use docker::cache::{CACHE_PREFIX, Cache};
pub use error::{AgentError, ConnectError, EmbeddedProblem, EngineError, Tried};
pub use exit::{ContainerUsage, ExitEvidence, KILLED};
pub use hardening::{MASKED_PATHS, READONLY_PATHS};
pub use image::{ImageIdError, ImageInfo, ImageSelector, Rebuild, seconds, unix_seconds};
pub use sandbox_rootfs::{Progress, RootfsError};
pub use sealed::SealedProgram;

/// How long an engine may take to say that it is there.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What an engine says of itself when it is asked, for `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct EngineFacts {
    /// Its name and version, such as `Docker Engine 20.10.24`.
    pub version: String,
    /// The API's version.
    pub api_version: String,
    /// The kernel under it.
    pub kernel: String,
    /// 1 or 2, and the driver: `2 (systemd)`.
    pub cgroups: String,
    /// Features that it names: `seccomp`, `apparmor`.
    pub security: Vec<String>,
    /// OCI runtimes that it has.
    pub runtimes: Vec<String>,
    /// Limits that it takes without enforcing them: `memory`, `swap`, `cpus`, `pids`.
    pub missing_limits: Vec<String>,
    /// Processors of its machine.
    pub cpus: u32,
}

/// How the engine maps the users of containers to those of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UserMapping {
    /// As they are.
    #[default]
    Identity,
    /// The container's root is the host's user `owner`, and no other host user is in it.
    Rootless {
        /// The host user who runs the engine.
        owner: u32,
    },
    /// The container's users are the host's from `base` on.
    Remapped {
        /// The first uid.
        uid: u32,
        /// The first gid.
        gid: u32,
    },
}

/// A container to be made: plain data, everything said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSpec {
    /// Its name, by which it can be removed even if the answer to its creation was lost.
    pub name: String,
    /// Labels, by which it is found again.
    pub labels: Vec<(String, String)>,
    /// The agent's arguments, but for its user.
    pub args: AgentArgs,
    /// Who it is in the container.
    pub user: User,
    /// Bind mounts.
    pub mounts: Vec<Bind>,
    /// Directories in them that an empty one covers, by their paths in the container.
    pub hidden: Vec<String>,
    /// Bytes of memory, swap included.
    pub memory: u64,
    /// Billionths of a processor.
    pub nano_cpus: i64,
    /// Processes and threads.
    pub pids: u32,
    /// Resource limits: name and value, hard and soft.
    pub ulimits: Vec<(&'static str, i64)>,
    /// What it has for programs; `None` in the sandbox image, which has none.
    pub programs: Option<Programs>,
}

impl ContainerSpec {
    /// The agent's command line after its name. It is told which user it is to be and what is mounted
    /// inside its mounts, and ends where the engine did otherwise.
    pub fn agent_args(&self) -> Vec<String> {
        let (user, hidden) = (Some(self.user), self.hidden.clone());
        AgentArgs { user, hidden, ..self.args.clone() }.to_args()
    }
}

/// What a container has where programs run in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// Its file system, into which the agent is mounted.
    pub root: ProgramRoot,
    /// The environment that they begin with, `NAME=VALUE` each: the image's.
    pub env: Vec<String>,
    /// Bytes of `/tmp`.
    pub tmpfs_bytes: u64,
    /// Files and directories of `/tmp`.
    pub tmpfs_inodes: u64,
}

/// The file system of a container that programs run in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramRoot {
    /// An image of the engine's.
    Image {
        /// Its id.
        id: String,
        /// What the caller calls it.
        reference: String,
        /// Paths at which the image wants folders to be written to. It gets none.
        volumes: Vec<String>,
    },
    /// A directory.
    Directory(Source),
}

/// A [`RootFs`] as the engine has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The file system.
    pub root: ProgramRoot,
    /// `NAME=VALUE` each.
    pub env: Vec<String>,
    /// Where the image's programs begin; empty where it does not say.
    pub workdir: String,
}

/// A bind mount: private, not recursive, never made where its source is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// What is mounted.
    pub source: Source,
    /// The path in the container.
    pub target: String,
    /// Whether it can be written to.
    pub read_only: bool,
}

/// A file or directory on the host.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its path, for an engine that takes no more.
    pub path: String,
    /// The thing itself, whatever becomes of the path.
    pub file: Arc<OwnedFd>,
}

impl Source {
    /// A mount of a sandbox's own, which is at no path of the host's.
    pub fn private(mount: Arc<OwnedFd>) -> Self {
        // No path of the host's is relative.
        Self { path: "the private io dir".to_owned(), file: mount }
    }

    /// Whether it is such a mount: it is mounted itself, and not a copy of it.
    pub fn is_private(&self) -> bool {
        !self.path.starts_with('/')
    }
}

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for Source {}

#[cfg(test)]
impl From<&str> for Source {
    /// A path where nothing need be: for engines that are only asked what they would do.
    fn from(path: &str) -> Self {
        let file = std::fs::File::open("/").expect("it is there");
        Self { path: path.to_owned(), file: Arc::new(file.into()) }
    }
}

/// A container's stdio.
pub struct Attached {
    /// Its stdin.
    pub input: Pin<Box<dyn AsyncWrite + Send>>,
    /// Its stdout and stderr, until both have ended.
    pub output: Pin<Box<dyn Stream<Item = io::Result<Output>> + Send>>,
}

impl fmt::Debug for Attached {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Attached").finish_non_exhaustive()
    }
}

/// A piece of a container's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Of its stdout.
    Stdout(Bytes),
    /// Of its stderr.
    Stderr(Bytes),
}

/// A container that an engine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSummary {
    /// The engine's id of it.
    pub id: String,
    /// What its maker named it.
    pub name: String,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Whether it is running now.
    pub running: bool,
    /// When it was made.
    pub created: SystemTime,
}

/// What runs containers.
#[async_trait]
pub trait Engine: Send + Sync {
    /// What it is, and why it was taken.
    fn info(&self) -> &EngineInfo;

    /// What it says of itself.
    async fn facts(&self) -> Result<EngineFacts, EngineError>;

    /// How it most likely maps users, without asking it.
    fn likely_user_mapping(&self) -> UserMapping;

    /// How it maps users. Asked for once, so cheap later.
    async fn user_mapping(&self) -> Result<UserMapping, EngineError>;

    /// Its clock.
    async fn clock(&self) -> Result<SystemTime, EngineError>;

    /// The sandbox images that it has; `None` where it needs none.
    fn images(&self) -> Option<&dyn Images>;

    /// Makes sure that containers can be made from `root`; `None` from the sandbox image, of which
    /// nothing need be known. `progress` gets lines for people.
    async fn prepare(
        &self,
        root: &RootFs,
        progress: Progress<'_>,
    ) -> Result<Option<Prepared>, EngineError>;

    /// Makes a container that is not started yet; it is [listed](Self::list) from here on.
    /// [`EngineError::ImageMissing`] where the engine must be [prepared](Self::prepare) first.
    async fn create(&self, spec: &ContainerSpec) -> Result<Box<dyn Container>, EngineError>;

    /// Kills and removes a container, by name or id, whoever made it. It is no error where it is
    /// not there.
    async fn remove(&self, container: &str) -> Result<(), EngineError>;

    /// The containers with this label, ended ones too.
    async fn list(&self, label: &str) -> Result<Vec<ContainerSummary>, EngineError>;

    /// Removes what it keeps beside containers and is of no use to anybody any more.
    async fn tidy(&self) {}
}

/// A container that was made. Dropping it removes nothing: its name does, by
/// [`Engine::remove`].
#[async_trait]
pub trait Container: Send + Sync {
    /// The engine's id of it.
    fn id(&self) -> &str;

    /// Attaches to it, before it is started.
    async fn attach(&self) -> Result<Attached, EngineError>;

    /// Starts it.
    async fn start(&self) -> Result<(), EngineError>;

    /// Waits for its end, once it has been started; at once where it has ended, so that it may be
    /// called at any time and misses nothing.
    async fn wait(&self) -> Result<(), EngineError>;

    /// Kills it. It is no error where it has ended.
    async fn kill(&self) -> Result<(), EngineError>;

    /// How it ended; `None` where it still runs.
    async fn evidence(&self) -> Result<Option<ExitEvidence>, EngineError>;

    /// The number of its first process on the engine's machine, where the engine tells and it runs.
    async fn init_pid(&self) -> Option<u32>;

    /// What it used in its whole life, where the engine counts that. Its end is waited for.
    async fn usage(&self) -> Option<ContainerUsage>;

    /// This moment, for [`ran_out_of_memory`](Self::ran_out_of_memory). It costs next to nothing.
    fn oom_baseline(&self) -> OomBaseline;

    /// Whether the kernel has killed something in it for want of memory since then; `None` where the
    /// engine does not tell.
    async fn ran_out_of_memory(&self, since: OomBaseline) -> Option<bool>;
}

/// A moment of a container's life.
#[derive(Debug, Clone, Copy)]
pub struct OomBaseline {
    /// By our clock.
    pub time: SystemTime,
    /// What was killed in it for want of memory until then, where that is counted.
    pub oom_kills: Option<u64>,
}

impl OomBaseline {
    /// Now, of a container whose kills nobody counts.
    pub fn now() -> Self {
        Self { time: SystemTime::now(), oom_kills: None }
    }
}

/// The sandbox images of an engine that needs one to make containers.
#[async_trait]
pub trait Images: Send + Sync {
    /// Whether containers can be made without a look for the image, as far as is known.
    fn is_known(&self) -> bool;

    /// Builds the image, also where there is one, and gives its id. `progress` gets the engine's
    /// lines.
    async fn build(&self, progress: Progress<'_>) -> Result<String, EngineError>;

    /// All sandbox images, newest first.
    async fn list(&self) -> Result<Vec<ImageInfo>, EngineError>;

    /// Removes one. It is no error where it is not there.
    async fn remove(&self, id: &str) -> Result<(), EngineError>;

    /// The current image's id, and its tar. Built first where it is missing.
    async fn save(&self) -> Result<(String, ImageTar), EngineError>;

    /// Loads what [`save`](Self::save) gave, and gives its id.
    async fn load(&self, tar: BoxStream<'static, io::Result<Bytes>>)
    -> Result<String, EngineError>;
}

/// The pieces of an image's tar.
pub type ImageTar = BoxStream<'static, Result<Bytes, EngineError>>;

#[cfg(test)]
pub(crate) mod testing {
    use sandbox_protocol::User;
    use sandbox_protocol::argv::AgentArgs;

    use super::{Bind, ContainerSpec};

    /// A container with something in every field.
    pub fn spec() -> ContainerSpec {
        ContainerSpec {
            name: "sandboxctl-1".into(),
            labels: vec![("sandboxctl.sandbox".into(), "1".into())],
            args: AgentArgs::parse(["script", "--write", "/io"].map(str::to_owned)).unwrap(),
            user: User::new(1000, 100).unwrap(),
            mounts: vec![
                Bind { source: "/home/me/out".into(), target: "/io".into(), read_only: false },
                Bind { source: "/home/me/a".into(), target: "/in/a".into(), read_only: true },
            ],
            hidden: Vec::new(),
            memory: 256 << 20,
            nano_cpus: 1_500_000_000,
            pids: 64,
            ulimits: vec![("core", 0), ("nofile", 128)],
            programs: None,
        }
    }
}
