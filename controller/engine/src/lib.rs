//! The interface between the controller and container engines.
//!
//! An engine creates hardened containers from a [`ContainerSpec`], which is plain data and
//! complete; it makes no decisions about sandboxes. Every call may hang or fail: time limits and
//! recovery are the caller's responsibility.

#![deny(unsafe_code)]

mod accounts;
mod agent;
mod config;
mod connect;
mod docker;
mod embedded;
mod error;
mod exit;
pub mod failpoint;
mod hardening;
mod image;
mod installed_files;
pub mod mount_table;
mod overlay;
pub mod own_address;
mod program;
mod sealed;
mod store;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::BoxStream;
use rustix::process::{Resource, getrlimit};
use sandbox_api::{EngineInfo, GcMode, ImageInfo, ProgramImage, RootFs, generation_of};
use sandbox_dirfd::is_random_hex;
use sandbox_protocol::User;
use sandbox_protocol::argv::AgentArgs;
use serde::Serialize;
use tokio::io::AsyncWrite;

use self::hardening::SYSTEM_FILES;
pub use agent::{AGENT, AGENT_SHA256, Agent, Content};
pub use config::{
    AgentSource, DockerEndpoint, EmbeddedConfig, EngineChoice, EngineConfig, RootlessLimits,
};
pub use connect::{connect, connect_available};
pub use docker::cache::CACHE_PREFIX;
pub use error::{AgentError, ConnectError, EmbeddedProblem, EngineError, Tried};
pub use exit::{ExitEvidence, KILLED};
pub use hardening::{MASKED_PATHS, READONLY_PATHS};
pub use image::{ImageIdError, ImageSelector, Rebuild, seconds};
pub use overlay::Layers;
pub use program::Program;
pub use sandbox_helper::cgroup::{Current as GroupsCurrent, Groups, Usage as GroupsUsage};
pub use sandbox_rootfs::{Progress, RootfsError};
pub use store::{
    detach as detach_stores, directory as store_directory, examine as examine_programs,
};

/// The prefix of the names of sandboxes' containers.
const NAME_PREFIX: &str = "sandboxctl-";
/// How long an engine may take to respond to the first request.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Locks what is whole whenever it is unlocked, even by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What an engine reports about itself, for `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct EngineFacts {
    /// Its name and version, such as `Docker Engine 20.10.24`.
    pub version: String,
    /// The version of its API.
    pub api_version: String,
    /// The version of its kernel.
    pub kernel: String,
    /// The cgroup version and driver: `2 (systemd)`.
    pub cgroups: String,
    /// Security features: `seccomp`, `apparmor`.
    pub security: Vec<String>,
    /// The names of its OCI runtimes.
    pub runtimes: Vec<String>,
    /// Limits that it accepts without enforcing them: `memory`, `swap`, `cpus`, `pids`.
    pub missing_limits: Vec<String>,
    /// The number of processors of its machine.
    pub cpus: u32,
}

/// How the engine maps the users of containers to users of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UserMapping {
    /// Unchanged.
    #[default]
    Identity,
    /// The container's root is the host user `owner`; no other host user is mapped.
    Rootless {
        /// The host user who runs the engine.
        owner: u32,
    },
    /// Every container has one user, whatever its ids there: this one of the host.
    Single {
        /// Its uid.
        uid: u32,
        /// Its gid.
        gid: u32,
    },
    /// The container's users are mapped to the host's, starting at this uid and gid.
    Remapped {
        /// The first uid.
        uid: u32,
        /// The first gid.
        gid: u32,
    },
}

/// A container to create: plain data, and complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSpec {
    /// Its name, by which it can be removed even if the response to its creation was lost.
    pub name: String,
    /// Labels, by which it is found again.
    pub labels: Vec<(String, String)>,
    /// The agent's arguments, except its user.
    pub args: AgentArgs,
    /// Its user in the container.
    pub user: User,
    /// Bind mounts.
    pub mounts: Vec<Bind>,
    /// Directories in the mounts to be covered by an empty one, by their paths in the container.
    pub hidden: Vec<String>,
    /// The memory limit in bytes, including swap.
    pub memory: u64,
    /// The CPU limit in billionths of a processor.
    pub nano_cpus: i64,
    /// The limit of processes and threads.
    pub pids: u32,
    /// Resource limits.
    pub ulimits: Vec<Ulimit>,
    /// What it needs to run commands; `None` for the sandbox image, which contains no programs.
    pub programs: Option<Programs>,
}

impl ContainerSpec {
    /// The agent's arguments. They contain the expected user and mounts; the agent exits if the
    /// engine set up something else.
    pub fn agent_args(&self) -> Vec<String> {
        let (user, hidden) = (Some(self.user), self.hidden.clone());
        AgentArgs { user, hidden, ..self.args.clone() }.to_args()
    }

    /// The home of its commands.
    fn home(&self) -> String {
        self.args.home.as_ref().map_or_else(|| "/tmp".to_owned(), ToString::to_string)
    }
}

/// A resource limit: a name as in `RLIMIT_…`, in small letters, and its two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ulimit {
    /// Its name.
    pub name: &'static str,
    /// What applies, until a process sets another one.
    pub soft: i64,
    /// The most that a process can set.
    pub hard: i64,
}

impl Ulimit {
    /// One that no process can raise.
    pub const fn new(name: &'static str, value: i64) -> Self {
        Self { name, soft: value, hard: value }
    }

    /// Open files, of which a program can ask for more: their memory counts against the container's. An engine
    /// that may not raise limits has this process's, as far as can be known.
    pub fn descriptors(soft: i64) -> Self {
        const MOST: u64 = 65_536;
        let own = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let most = i64::try_from(own.min(MOST)).unwrap_or(i64::MAX);
        Self { hard: soft.max(most), ..Self::new("nofile", soft) }
    }
}

/// The settings of a container in which commands run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// Its root filesystem, into which the agent is mounted.
    pub root: ProgramRoot,
    /// The initial environment of commands, each `NAME=VALUE`: the image's.
    pub env: Vec<String>,
    /// The size of `/tmp` in bytes.
    pub tmpfs_bytes: u64,
    /// The maximum number of files and directories in `/tmp`.
    pub tmpfs_inodes: u64,
    /// The size of `/dev/shm` in bytes.
    pub shm_bytes: u64,
}

/// The root filesystem of a container in which commands run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramRoot {
    /// An image of the engine.
    Image {
        /// Its id.
        id: String,
        /// The name that the caller gave.
        reference: String,
        /// The paths of the volumes that the image declares. They are not created.
        volumes: Vec<String>,
    },
    /// A directory.
    Directory(Source),
}

/// A [`RootFs`] that the engine has prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The root filesystem.
    pub root: ProgramRoot,
    /// The environment, each `NAME=VALUE`.
    pub env: Vec<String>,
    /// The image's working directory; empty if it does not set one.
    pub workdir: String,
    /// The file or directory that the caller named, opened once; `None` if that is an image.
    pub named: Option<Source>,
}

/// A bind mount: private, not recursive; a missing source is never created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// The source.
    pub source: Source,
    /// The target path in the container.
    pub target: String,
    /// Whether it is read-only.
    pub read_only: bool,
}

/// A file or directory on the host.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its path, for an engine that accepts only paths.
    pub path: String,
    /// The opened file, independent of its path.
    pub file: Arc<OwnedFd>,
    /// The layers of the overlay to mount in its place; its lower layer is `file`.
    pub overlay: Option<Layers>,
    /// The block device of a private mount, for an engine that cannot mount `file` itself.
    pub device: Option<Arc<OwnedFd>>,
}

impl Source {
    /// A file or directory that is mounted itself.
    pub const fn new(path: String, file: Arc<OwnedFd>) -> Self {
        Self { path, file, overlay: None, device: None }
    }

    /// A private mount of a sandbox, without a path on the host, and the block device of its file
    /// system, if that has one.
    pub fn private(mount: Arc<OwnedFd>, device: Option<Arc<OwnedFd>>) -> Self {
        // No path of a source on the host is relative.
        Self { device, ..Self::new("the private io dir".to_owned(), mount) }
    }

    /// Whether it is a private mount, which is mounted itself instead of a copy of it.
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
    /// A path that need not exist, for tests of an engine's configuration.
    fn from(path: &str) -> Self {
        let file = std::fs::File::open("/").expect("it is there");
        Self::new(path.to_owned(), Arc::new(file.into()))
    }
}

/// The stdio of a container.
pub struct Attached {
    /// Its stdin.
    pub input: Pin<Box<dyn AsyncWrite + Send>>,
    /// Its stdout and stderr, until both have ended.
    pub output: Pin<Box<dyn Stream<Item = io::Result<Output>> + Send>>,
}

/// A chunk of a container's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// From stdout.
    Stdout(Bytes),
    /// From stderr.
    Stderr(Bytes),
}

/// The name of a sandbox's container.
pub fn container_name(sandbox: &str) -> String {
    format!("{NAME_PREFIX}{sandbox}")
}

/// The sandbox whose container has this name; `None` for a name of another form.
pub fn sandbox_of(name: &str) -> Option<&str> {
    let is_id = |id: &&str| is_random_hex::<8>(id) || generation_of(id).is_some();
    name.strip_prefix(NAME_PREFIX).filter(is_id)
}

/// A container in an engine's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSummary {
    /// The engine's id of the container.
    pub id: String,
    /// The name given at its creation.
    pub name: String,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Whether it is running.
    pub running: bool,
    /// When it was created.
    pub created: SystemTime,
}

/// A container engine.
#[async_trait]
pub trait Engine: Send + Sync {
    /// The engine's kind and endpoint, and why it was chosen.
    fn info(&self) -> &EngineInfo;

    /// The highest number of a user or group that a container can have.
    fn highest_id(&self) -> u32 {
        u32::MAX
    }

    /// What the engine reports about itself.
    async fn facts(&self) -> Result<EngineFacts, EngineError>;

    /// The likely user mapping, without asking the engine.
    fn likely_user_mapping(&self) -> UserMapping;

    /// The user mapping. Queried once, so later calls are cheap.
    async fn user_mapping(&self) -> Result<UserMapping, EngineError> {
        Ok(self.likely_user_mapping())
    }

    /// The engine's time.
    async fn clock(&self) -> Result<SystemTime, EngineError> {
        Ok(SystemTime::now())
    }

    /// Its sandbox images; `None` if it needs none.
    fn images(&self) -> Option<&dyn Images> {
        None
    }

    /// Lists what programs can run in without a pull or an unpacking.
    async fn program_images(&self) -> Result<Vec<ProgramImage>, EngineError>;

    /// Removes one of the [program images](Self::program_images) that sandboxctl made. Refuses one
    /// that is in use, and images that are not its own.
    async fn remove_program_image(&self, id: &str) -> Result<(), EngineError>;

    /// Ensures that containers can be created from `root`; `None` for the sandbox image, which
    /// needs no preparation. `progress` receives lines for people.
    async fn prepare(
        &self,
        root: &RootFs,
        progress: Progress<'_>,
    ) -> Result<Option<Prepared>, EngineError>;

    /// Creates a container; from here on it is in the [list](Self::list). It runs from
    /// [`Container::start`] on at the latest: the embedded engine launches it in one request.
    /// Returns [`EngineError::ImageMissing`] if the engine must be [prepared](Self::prepare) first.
    async fn create(&self, spec: &ContainerSpec) -> Result<Box<dyn Container>, EngineError>;

    /// Kills and removes a container by name or id, regardless of its creator. Ignores a
    /// nonexistent one.
    async fn remove(&self, container: &str) -> Result<(), EngineError>;

    /// Asks for the removal of a container, whether it runs or has exited, such that it is removed even if
    /// this process ends right now. Returns whether that was possible; nothing has happened if not.
    /// `mounted` is a directory of a file system that ends with its last user: an engine that can is that
    /// one, so that this process does not wait for the unmount.
    async fn begin_removal(&self, _container: &str, _mounted: Option<&OwnedFd>) -> bool {
        false
    }

    /// Lists the sandboxes' containers with this label, including exited ones.
    async fn list(&self, label: &str) -> Result<Vec<ContainerSummary>, EngineError>;

    /// Removes unpacked image archives that were unused for 30 days, and leftovers of dead
    /// processes next to them. Returns the archives that it removed, or would remove.
    async fn tidy(&self, _mode: GcMode) -> Result<Vec<ProgramImage>, EngineError> {
        Ok(Vec::new())
    }
}

/// A created container. Dropping this does not remove it: [`Engine::remove`] does, by its name.
#[async_trait]
pub trait Container: Send + Sync {
    /// The engine's id of the container.
    fn id(&self) -> &str;

    /// Attaches to the container, before it is started.
    async fn attach(&self) -> Result<Attached, EngineError>;

    /// Starts the container, unless it runs already.
    async fn start(&self) -> Result<(), EngineError>;

    /// Waits for the started container to exit. Returns at once if it has already exited, so it can
    /// be called at any time and misses nothing.
    async fn wait(&self) -> Result<(), EngineError>;

    /// Kills the container. Ignores one that has exited.
    async fn kill(&self) -> Result<(), EngineError>;

    /// Freezes all of its processes. A frozen one can be killed and removed like any other.
    async fn pause(&self) -> Result<(), EngineError>;

    /// Lets frozen processes go on.
    async fn resume(&self) -> Result<(), EngineError>;

    /// How it exited; `None` if it is still running.
    async fn evidence(&self) -> Result<Option<ExitEvidence>, EngineError>;

    /// The pid of its first process on the engine's machine, if the engine reports it and it is
    /// running.
    async fn init_pid(&self) -> Option<u32>;

    /// The resources it used over its whole life, if the engine measures them. Waits for it to
    /// exit.
    async fn usage(&self) -> Option<GroupsUsage> {
        None
    }

    /// Its control groups, if they are on this machine: what the kernel counts in them is certain.
    async fn groups(&self) -> Option<Groups> {
        None
    }

    /// Whether the engine was notified since then, by the controller's time, that memory ran out in it;
    /// `None` if the engine does not report that. For a container whose groups are not known.
    async fn ran_out_of_memory(&self, _since: SystemTime) -> Option<bool> {
        None
    }
}

/// The sandbox images of an engine that needs one to make containers.
#[async_trait]
pub trait Images: Send + Sync {
    /// Whether containers can probably be created without a lookup of the image.
    fn is_known(&self) -> bool;

    /// Builds the image, even if one exists, and returns its id. `progress` receives the engine's
    /// output lines.
    async fn build(&self, progress: Progress<'_>) -> Result<String, EngineError>;

    /// Lists all sandbox images, newest first.
    async fn list(&self) -> Result<Vec<ImageInfo>, EngineError>;

    /// Removes an image. Ignores a nonexistent one.
    async fn remove(&self, id: &str) -> Result<(), EngineError>;

    /// Returns the current image's id and its tar archive, building the image first if it is
    /// missing.
    async fn save(&self) -> Result<(String, ImageTar), EngineError>;

    /// Loads an archive that [`save`](Self::save) returned, and returns its id.
    async fn load(&self, tar: BoxStream<'static, io::Result<Bytes>>)
    -> Result<String, EngineError>;
}

/// The chunks of an image's tar archive.
pub type ImageTar = BoxStream<'static, Result<Bytes, EngineError>>;

#[cfg(test)]
pub(crate) mod testing {
    use sandbox_protocol::User;
    use sandbox_protocol::argv::AgentArgs;

    use super::{Bind, ContainerSpec, Ulimit};

    /// A container with a value in every field.
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
            ulimits: vec![
                Ulimit::new("core", 0),
                Ulimit { hard: 1024, ..Ulimit::new("nofile", 128) },
            ],
            programs: None,
        }
    }
}
