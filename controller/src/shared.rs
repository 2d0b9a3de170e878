//! What a controller and its sandboxes have in common.

use std::sync::Arc;

use sandbox_protocol::argv::ConfinementPolicy;

use crate::audit::Audit;
use crate::cleanup::Cleanup;
use crate::engine::Engine;
use crate::limits::Ceiling;
use crate::owner::Owners;
use crate::state::Instance;

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
}
