//! The configuration of a controller. Plain data: the library reads no environment variables, home
//! directory or terminal, so the caller collects what they contain.

use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use sandbox_api::{Bounds, Ceiling, DiskReserve};
use sandbox_engine::{AgentSource, EngineConfig};
use sandbox_protocol::argv::ConfinementPolicy;

use crate::mounts::refusal::MountRefusal;
use crate::mounts::{self, ReservedDirs};

/// The configuration of a controller.
#[derive(Debug, Clone)]
pub struct Config {
    /// The engine to use, and where it is.
    pub engine: EngineConfig,
    /// The ceilings of the limits of a sandbox without programs.
    pub ceiling: Ceiling,
    /// Those of a sandbox with programs.
    pub program_ceiling: Ceiling,
    /// This user's directory for locks and caches: `sandboxctl` in the runtime directory. It is
    /// created if it is missing; a directory of another user, or with a mode other than 0700, is
    /// refused. All controllers of a user share one.
    pub state_dir: PathBuf,
    /// This user's directory for fresh io dirs, on a disk. It is created and checked like
    /// `state_dir`.
    pub scratch_dir: PathBuf,
    /// The agent to use.
    pub agent: AgentSource,
    /// What to do if an agent cannot confine itself as required.
    pub confinement: ConfinementPolicy,
    /// Whether to remove leftovers of crashed controllers.
    pub sweep: Sweep,
    /// The audit file, which receives a JSON line for each operation, run and refusal. It is
    /// appended to, or created with access for its owner only. A FIFO must have a reader. `None`:
    /// no audit.
    pub audit: Option<PathBuf>,
    /// Files of the caller's that no sandbox may write, in any directory that is mounted: those that
    /// decide what runs outside of sandboxes, such as a CI runner's. They may not exist yet.
    pub reserved_files: Vec<PathBuf>,
    /// The scratch directory of this user's other controllers, where `scratch_dir` is a service's own.
    /// No sandbox may use it.
    pub shared_scratch_dir: Option<PathBuf>,
    /// What a service of this user keeps, which no sandbox may use.
    pub service_dir: Option<PathBuf>,
    /// How much space stays free on the filesystems of io dirs and of unpacked images.
    pub disk_reserve: DiskReserve,
    /// The certificates of authorities, as PEM, by which hosts are verified whose TLS is terminated; `None`
    /// for those of this machine.
    pub ca_file: Option<PathBuf>,
}

impl Config {
    /// The default configuration with this state directory, which is the place of fresh io dirs too.
    /// It has no address of Docker: `sandbox_env::config` has those that the Docker CLI would try.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        let state_dir = state_dir.into();
        Self {
            engine: EngineConfig::default(),
            ceiling: Ceiling::default(),
            program_ceiling: Bounds::for_programs().ceiling,
            scratch_dir: state_dir.join("scratch"),
            state_dir,
            agent: AgentSource::Embedded,
            confinement: ConfinementPolicy::default(),
            sweep: Sweep::Regularly,
            audit: None,
            reserved_files: Vec::new(),
            shared_scratch_dir: None,
            service_dir: None,
            disk_reserve: DiskReserve::default(),
            ca_file: None,
        }
    }

    /// The directory, next to the scratch directory, of io dirs that live as long as an MCP server.
    /// No sandbox may mount it.
    pub fn private_dir(&self) -> PathBuf {
        let mut name = self.scratch_dir.file_name().unwrap_or_default().to_owned();
        name.push("-mcp");
        self.scratch_dir.with_file_name(name)
    }

    pub(crate) fn reserved_dirs(&self) -> ReservedDirs {
        let own = [
            ("state directory", Some(self.state_dir.clone())),
            // Even if another engine is in use: its files are executed as root.
            ("data directory", Some(self.engine.embedded.data_dir.clone())),
            ("scratch directory", Some(self.scratch_dir.clone())),
            ("scratch directory", self.shared_scratch_dir.clone()),
            ("service's data directory", self.service_dir.clone()),
            ("directory of agents' io dirs", Some(self.private_dir())),
        ];
        let own = own.into_iter().filter_map(|(name, path)| Some((name, path?))).collect();
        let store_dir = geteuid().is_root().then(sandbox_engine::store_directory);
        ReservedDirs { own, store_dir, files: self.reserved_files.clone() }
    }

    /// Refuses to write into the controller's own directories, or into that of a service that runs, where
    /// it would be taken for theirs. `path` is a file or directory that may be missing.
    ///
    /// # Errors
    ///
    /// [`MountRefusal`], which has a hint.
    pub fn check_output(&self, path: &Path) -> Result<(), MountRefusal> {
        mounts::check_output(&self.reserved_dirs(), path)
    }
}

/// Whether a controller removes leftovers of crashed controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sweep {
    /// In the background, when it connects and every 30 s: for callers that launch sandboxes.
    #[default]
    Regularly,
    /// Never: for callers that only inspect.
    Never,
}
