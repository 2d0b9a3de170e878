//! What a controller and its sandboxes have in common.

use std::sync::Arc;

use sandbox_api::{Ceiling, RootFs};
use sandbox_engine::{Engine, Prepared, Progress};
use sandbox_protocol::argv::ConfinementPolicy;

use crate::audit::Audit;
use crate::cleanup::Cleanup;
use crate::disk::DiskReserve;
use crate::engine_call::step;
use crate::error::Error;
use crate::mounts::{MountWatch, OwnFolders};
use crate::owner::Owners;
use crate::state::Instance;
use crate::step::Step;

/// What a controller and its sandboxes have in common.
pub(crate) struct Shared {
    pub engine: Arc<dyn Engine>,
    pub instance: Instance,
    pub cleanup: Cleanup,
    pub ceiling: Ceiling,
    pub boot_id: String,
    pub confinement: ConfinementPolicy,
    pub audit: Audit,
    pub owners: Owners,
    pub disk_reserve: DiskReserve,
    /// What no sandbox has mounted.
    pub folders: OwnFolders,
    pub mount_watch: MountWatch,
}

impl Shared {
    /// Makes sure that containers can be made from `root`.
    pub async fn prepare(
        &self,
        root: &RootFs,
        progress: Progress<'_>,
    ) -> Result<Option<Prepared>, Error> {
        let which = if root.supports_exec() { Step::Programs } else { Step::Image };
        step(which, self.engine.prepare(root, progress)).await
    }
}
