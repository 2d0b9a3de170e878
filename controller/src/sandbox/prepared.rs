//! A sandbox whose root filesystem is ready.

use std::path::PathBuf;
use std::sync::Arc;

use sandbox_api::{RootFs, SandboxSpec};
use sandbox_engine::Prepared;

use crate::permission::Permission;

/// A sandbox to launch, with its root filesystem prepared by the engine.
/// [`Controller::prepare`](crate::Controller::prepare) returns one for any number of launches; one
/// converted from a [`SandboxSpec`] is prepared at each launch.
#[derive(Debug, Clone)]
pub struct PreparedSandbox {
    pub(crate) spec: SandboxSpec,
    /// `None` if the launch prepares it.
    pub(crate) prepared: Option<Prepared>,
    pub(crate) root_owner: RootOwner,
    pub(crate) permission: Option<Arc<dyn Permission>>,
}

/// The owner of the directory that is a sandbox's root filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RootOwner {
    /// The caller: it must be a directory that may be mounted.
    Caller,
    /// The engine, in its data directory.
    Engine,
}

impl PreparedSandbox {
    /// A sandbox on a directory that the engine owns.
    pub(crate) fn on_engine_directory(spec: SandboxSpec, directory: PathBuf) -> Self {
        let spec = spec.root(RootFs::Directory(directory));
        Self { root_owner: RootOwner::Engine, ..spec.into() }
    }

    /// Asks about hosts that its rules do not list, where programs run. Such a sandbox does not come from
    /// the [pool](crate::Controller::pool).
    #[must_use]
    pub fn permission(self, permission: Option<Arc<dyn Permission>>) -> Self {
        Self { permission, ..self }
    }

    /// The spec of the sandbox.
    pub const fn spec(&self) -> &SandboxSpec {
        &self.spec
    }
}

impl From<SandboxSpec> for PreparedSandbox {
    fn from(spec: SandboxSpec) -> Self {
        Self { spec, prepared: None, root_owner: RootOwner::Caller, permission: None }
    }
}
