//! Configuration of a service: its posture, its bounds, and its quotas.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sandbox_api::hosts::Allowlist;
use sandbox_api::service::BySubject;
#[cfg(doc)]
use sandbox_api::service::Subject;
use sandbox_api::{
    Bounds, ByteSize, Ceiling, DiskReserve, Injection, Limits, Pull, RootFs, SandboxSpec,
};
use sandbox_controller::host_tools::ToolGrant;
use sandbox_controller::permission::Permission;
use sandbox_store::NewSession;

use crate::files;
use crate::preparation::Preparation;

/// The configuration of a service.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Where ports have hosts of their own for browsers, if anywhere.
    pub previews: Option<PreviewConfig>,
    /// The directory of the service alone: its store, and below `files` what executions left, below
    /// `mcp` what agents keep. The
    /// controller's [`scratch_dir`](sandbox_controller::Config::scratch_dir) must be on the same file
    /// system.
    pub data_dir: PathBuf,
    /// The files of scripts.
    pub io: IoPosture,
    /// The template for launches, without what requests set: its user, protected names and encoding.
    pub sandbox: SandboxSpec,
    /// What programs run in where a request names no image; [`RootFs::Builtin`] refuses commands.
    pub default_root: RootFs,
    /// What requests name like an image and an operator has defined, whatever images are allowed.
    pub roots: BTreeMap<String, RootFs>,
    /// The images that requests may name, as patterns of [`sandbox_api::image_matches`].
    pub allowed_images: Vec<String>,
    /// When such an image is pulled.
    pub pull: Pull,
    /// The hosts that requests may ask for.
    pub hosts: HostPolicy,
    /// The secrets that are added to requests of a subject's sandboxes with programs, by the subject's name;
    /// beside those of `sandbox`, which all have.
    pub inject: BTreeMap<String, Vec<Injection>>,
    /// Who is asked about hosts that the rules of a sandbox do not list: for a service of one user.
    pub permission: Option<Arc<dyn Permission>>,
    /// The limits of a request that sets none, and has no programs.
    pub limits: Limits,
    /// The ceilings of limits.
    pub ceiling: Ceiling,
    /// Both for a sandbox with programs; `None` for their own defaults, within the same ceilings.
    pub programs: Option<Bounds>,
    /// Whether kept sandboxes may have directories of the host: for a service of one program.
    pub host_dirs: bool,
    /// The directory of this user in which the name of a kept sandbox is locked, so that no other
    /// process has one of that name. `None`: a name is of its subject.
    pub locked_names: Option<PathBuf>,
    /// Whether an execution in a kept sandbox is not stored if its caller waits for its end: it is in memory,
    /// with the last ones that ended. For a service of one program, whose store ends with it.
    pub waited_in_memory: bool,
    /// The executions that run at one time.
    pub concurrency: usize,
    /// The executions that wait at one time. A tenth more is kept for subjects of which none waits.
    pub max_queued: usize,
    /// The bytes of the requests that wait at one time, which are in the store. A tenth more is kept in
    /// the same way.
    pub max_queued_bytes: ByteSize,
    /// What stays free of the data directory's file system, for what was accepted before.
    pub disk_reserve: DiskReserve,
    /// The bounds of each subject.
    pub quotas: Quotas,
    /// The bounds of one request.
    pub request: RequestBounds,
    /// The bytes of log entries and output that an execution's events have. Its result does not
    /// depend on it.
    pub max_event_bytes: ByteSize,
    /// How long results and files are kept.
    pub retention: Duration,
    /// The bytes of results and files that are kept; the oldest are removed first.
    pub max_stored: ByteSize,
    /// How long accepted work waits for an engine that does not answer.
    pub engine_retry_time: Duration,
    /// Kept sandboxes.
    pub kept: KeptBounds,
    /// Those that are started ahead, with a process.
    pub prepared: Vec<Preparation>,
    /// What it is as a node, on the store of a cluster. Its `slots` are those of `concurrency`.
    pub node: Option<NewSession>,
    /// The tools of the host that scripts of a subject may call.
    pub host_tools: BySubject<Option<ToolGrant>>,
    /// Whether times in its [counters](crate::Counters) are those of each subject.
    pub figures_by_subject: bool,
}

/// Where previews are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewConfig {
    /// The domain that their hosts are below, in lower case.
    pub domain: String,
    /// How browsers reach it: `https`, or `http`.
    pub scheme: &'static str,
    /// The port, if it is not that of the scheme.
    pub port: Option<u16>,
    /// Whether previews may be public.
    pub may_be_public: bool,
}

/// The files of scripts. Commands always have a private io dir.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum IoPosture {
    /// None.
    #[default]
    Off,
    /// A private io dir for each execution, whose files are kept with its result.
    PrivatePerExecution,
    /// One directory of the host for all executions that do not ask for a private one.
    Shared(PathBuf),
}

/// The hosts that requests may ask for. Addresses of private networks need a rule in any case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPolicy {
    /// Any.
    Any {
        /// Those of a sandbox that asks for none.
        usual: Allowlist,
    },
    /// Those that this list covers.
    Listed(Allowlist),
}

impl Default for HostPolicy {
    /// None.
    fn default() -> Self {
        Self::Listed(Allowlist::default())
    }
}

/// The bounds of one subject. All can be changed while a service runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas {
    /// The executions that run at one time; more of them wait.
    pub concurrency: usize,
    /// The requests that are accepted in a minute, evenly or in a burst.
    pub rate_per_minute: Option<u32>,
    /// The bytes that are kept: of results, their files, the files of kept sandboxes, and what is about
    /// to be stored.
    pub stored: Option<ByteSize>,
    /// The processor time of a day, in UTC.
    pub cpu_per_day: Option<Duration>,
    /// The kept sandboxes that exist at one time.
    pub sandboxes: usize,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            concurrency: 8,
            rate_per_minute: None,
            stored: None,
            cpu_per_day: None,
            sandboxes: 16,
        }
    }
}

/// The bounds of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestBounds {
    /// Inputs.
    pub inputs: usize,
    /// The bytes of all inputs.
    pub input_bytes: ByteSize,
    /// The bytes of the metadata as JSON.
    pub metadata_bytes: usize,
    /// The bytes of a command's stdin.
    pub stdin_bytes: ByteSize,
    /// Rules for hosts.
    pub hosts: usize,
}

impl Default for RequestBounds {
    fn default() -> Self {
        Self {
            inputs: 64,
            input_bytes: ByteSize::b(32 << 20),
            metadata_bytes: 16 << 10,
            stdin_bytes: ByteSize::b(16 << 20),
            hosts: 100,
        }
    }
}

/// The bounds of kept sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptBounds {
    /// The kept sandboxes of all subjects.
    pub sandboxes: usize,
    /// How long one exists, unless its request says otherwise.
    pub ttl: Duration,
    /// How long one can exist, extended or not.
    pub max_ttl: Duration,
    /// How long its container exists without use, unless its request says otherwise.
    pub idle: Duration,
    /// Those that are paused at one time, of all subjects.
    pub paused: usize,
    /// How long one stays paused; then its container ends, and its files are kept. One that is frozen when it
    /// is idle stays paused until it expires.
    pub paused_for: Duration,
    /// The processes of one subject that have been started and have not ended.
    pub processes: usize,
    /// The bytes of output that are kept of a process, with what they cost.
    pub scrollback: ByteSize,
    /// The same of all processes of one subject. One that has not ended counts as if it had printed all that
    /// is kept; what is kept of others gives way to it.
    pub output: ByteSize,
    /// The same of all subjects.
    pub output_of_all: ByteSize,
}

impl Default for KeptBounds {
    fn default() -> Self {
        Self {
            sandboxes: 64,
            ttl: Duration::from_secs(3600),
            max_ttl: Duration::from_secs(24 * 3600),
            idle: Duration::from_secs(600),
            paused: 8,
            paused_for: Duration::from_secs(3600),
            processes: 256,
            scrollback: ByteSize::b(1 << 20),
            output: ByteSize::b(64 << 20),
            output_of_all: ByteSize::b(256 << 20),
        }
    }
}

impl ServiceConfig {
    /// The directory with [one of each subject](Subject::directory_name) that has files without
    /// executions and kept sandboxes: those that agents keep. They count as stored.
    #[must_use]
    pub fn subject_dirs(&self) -> PathBuf {
        self.data_dir.join("mcp")
    }

    /// The defaults with this data directory: no files for scripts, no images, no hosts.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            io: IoPosture::default(),
            sandbox: SandboxSpec::new(),
            default_root: RootFs::default(),
            roots: BTreeMap::new(),
            allowed_images: Vec::new(),
            pull: Pull::default(),
            hosts: HostPolicy::default(),
            inject: BTreeMap::new(),
            permission: None,
            limits: Limits::default(),
            ceiling: Ceiling::default(),
            programs: None,
            host_dirs: false,
            locked_names: None,
            waited_in_memory: false,
            concurrency: 16,
            max_queued: 1000,
            max_queued_bytes: ByteSize::b(256 << 20),
            disk_reserve: DiskReserve::default(),
            quotas: Quotas::default(),
            request: RequestBounds::default(),
            max_event_bytes: ByteSize::b(4 << 20),
            retention: Duration::from_secs(7 * 24 * 3600),
            max_stored: ByteSize::b(10 << 30),
            engine_retry_time: Duration::from_secs(60),
            kept: KeptBounds::default(),
            prepared: Vec::new(),
            node: None,
            host_tools: BySubject::default(),
            figures_by_subject: false,
            previews: None,
        }
    }

    /// The limits of a sandbox that is made from this: each default within its ceiling.
    #[must_use]
    pub fn bounds(&self, root: &RootFs) -> Bounds {
        let (limits, ceiling) = (self.limits, self.ceiling);
        let programs = || Bounds { limits: Limits::for_programs(), ceiling };
        let bounds = match root.supports_exec() {
            true => self.programs.unwrap_or_else(programs),
            false => Bounds { limits, ceiling },
        };
        bounds.lowered()
    }

    /// The directory of what executions left, and of the io dirs of sandboxes that are kept.
    #[must_use]
    pub fn files_dir(&self) -> PathBuf {
        self.data_dir.join(files::NAME)
    }
}
