//! State that a controller shares with its sandboxes.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sandbox_api::{Ceiling, DiskReserve, RootFs};
use sandbox_engine::{AgentSource, Engine, Prepared, Progress};
use sandbox_protocol::argv::ConfinementPolicy;
use sandbox_staging::kept::KeptImages;
use tokio::runtime::Handle;

use crate::audit::Audit;
use crate::engine_call::step;
use crate::error::Error;
use crate::gc::pending::Cleanup;
use crate::gc::state_dir::Instance;
use crate::mounts::{MountWatch, ReservedDirs};
use crate::sandbox::owner::Owners;
use crate::step::Step;

/// State that a controller shares with its sandboxes.
pub(crate) struct Shared {
    pub engine: Arc<dyn Engine>,
    pub instance: Instance,
    pub cleanup: Cleanup,
    pub ceiling: Ceiling,
    pub program_ceiling: Ceiling,
    pub boot_id: String,
    pub agent: AgentSource,
    pub confinement: ConfinementPolicy,
    pub audit: Audit,
    pub owners: Owners,
    pub disk_reserve: DiskReserve,
    /// The certificates that hosts are verified by.
    pub ca_file: Option<PathBuf>,
    /// The runtime of watchers of io dirs.
    pub watch_runtime: fn() -> Handle,
    /// Directories that no sandbox may mount.
    pub folders: ReservedDirs,
    pub mount_watch: MountWatch,
    pub own_mounts: OwnMounts,
    /// The images of io dirs that are kept.
    pub kept_images: KeptImages,
}

/// Whether the engine mounts file systems that this process makes: overlays and images.
#[derive(Debug)]
pub(crate) struct OwnMounts {
    are_possible: bool,
    /// When it last refused one.
    refused: Mutex<Option<Instant>>,
}

/// How long an engine gets no such mount after it refused one. It may have failed for another reason.
const REFUSED_FOR: Duration = Duration::from_secs(60);

impl OwnMounts {
    pub const fn new(are_possible: bool) -> Self {
        Self { are_possible, refused: Mutex::new(None) }
    }

    /// Whether the engine probably mounts them.
    pub fn are_likely(&self) -> bool {
        self.are_possible && crate::lock(&self.refused).is_none_or(|at| at.elapsed() >= REFUSED_FOR)
    }

    /// It has refused one.
    pub fn refuse(&self) {
        *crate::lock(&self.refused) = Some(Instant::now());
    }
}

impl Shared {
    /// The ceilings of the limits of a sandbox that is made from this.
    pub const fn ceiling(&self, root: &RootFs) -> &Ceiling {
        if root.supports_exec() { &self.program_ceiling } else { &self.ceiling }
    }

    /// Ensures that containers can be created from `root`.
    pub async fn prepare(
        &self,
        root: &RootFs,
        progress: Progress<'_>,
    ) -> Result<Option<Prepared>, Error> {
        let which = if root.supports_exec() { Step::Programs } else { Step::Image };
        step(which, self.engine.prepare(root, progress)).await
    }
}
