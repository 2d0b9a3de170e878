//! State that a controller shares with its sandboxes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sandbox_api::{ByteSize, Ceiling, DiskReserve, RootFs};
use sandbox_engine::{Engine, Prepared, Progress};
use sandbox_protocol::argv::ConfinementPolicy;
use tokio::runtime::Handle;

use crate::audit::Audit;
use crate::engine_call::step;
use crate::error::Error;
use crate::gc::pending::Cleanup;
use crate::gc::state_dir::Instance;
use crate::io_dir::IoDir;
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
    pub confinement: ConfinementPolicy,
    pub audit: Audit,
    pub owners: Owners,
    pub disk_reserve: DiskReserve,
    /// The runtime of watchers of io dirs.
    pub watch_runtime: fn() -> Handle,
    /// Directories that no sandbox may mount.
    pub folders: ReservedDirs,
    pub mount_watch: MountWatch,
    /// Whether overlays of io dirs can probably be mounted.
    pub mounts_overlays: AtomicBool,
}

impl Shared {
    /// The ceilings of the limits of a sandbox that is made from this.
    pub const fn ceiling(&self, root: &RootFs) -> &Ceiling {
        if root.supports_exec() { &self.program_ceiling } else { &self.ceiling }
    }

    /// The disk reserve of an io dir. The host's disk does not matter for a private one, in memory.
    pub fn reserve_for(&self, io_dir: &IoDir) -> DiskReserve {
        match io_dir.is_on_disk() {
            true => self.disk_reserve,
            false => DiskReserve::Bytes(ByteSize::b(0)),
        }
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
