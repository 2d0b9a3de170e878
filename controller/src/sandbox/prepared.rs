//! A sandbox whose file system the engine has ready.

use std::path::PathBuf;

use sandbox_api::{RootFs, SandboxSpec};
use sandbox_engine::Prepared;

/// A sandbox to launch, and its file system as the engine has it. From
/// [`Controller::prepare`](crate::Controller::prepare), for any number of launches; from a
/// [`SandboxSpec`] alone it is made ready at each launch.
#[derive(Debug, Clone)]
pub struct PreparedSandbox {
    pub(crate) spec: SandboxSpec,
    /// `None` where the launch makes it ready.
    pub(crate) prepared: Option<Prepared>,
    pub(crate) root_owner: RootOwner,
}

/// Who has the directory that is a sandbox's file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RootOwner {
    /// The caller: it must be one that may be mounted.
    Caller,
    /// The engine, in its data directory.
    Engine,
}

impl PreparedSandbox {
    /// A sandbox on a directory of the engine's own.
    pub(crate) fn on_engine_directory(spec: SandboxSpec, directory: PathBuf) -> Self {
        let spec = spec.root(RootFs::Directory(directory));
        Self { root_owner: RootOwner::Engine, ..spec.into() }
    }

    /// What was asked for.
    #[must_use]
    pub const fn spec(&self) -> &SandboxSpec {
        &self.spec
    }
}

impl From<SandboxSpec> for PreparedSandbox {
    fn from(spec: SandboxSpec) -> Self {
        Self { spec, prepared: None, root_owner: RootOwner::Caller }
    }
}
