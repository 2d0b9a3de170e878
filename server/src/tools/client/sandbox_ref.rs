//! The sandbox of a call.

use std::sync::Arc;

use sandbox_controller::{Error, Sandbox};

use super::super::error::ToolError;
use super::super::tool::Context;
use crate::registry::{RegisteredSandbox, Registry, Scope, Ticket};

/// A sandbox that a call uses.
pub(super) struct SandboxRef {
    pub(super) registry: Arc<Registry>,
    pub(super) registered: Arc<RegisteredSandbox>,
    /// It is not removed as long as a call has this.
    _ticket: Ticket,
}

impl SandboxRef {
    /// The one of this name.
    pub(super) fn find(context: &Context, container_id: &str) -> Result<Self, ToolError> {
        let registered = context.registry.find(container_id)?;
        let ticket = registered.enter(Scope::Concurrent);
        Ok(Self { registry: context.registry.clone(), registered, _ticket: ticket })
    }

    pub(super) async fn ready(&self) -> Result<Arc<Sandbox>, ToolError> {
        Ok(self.registered.ready().await?)
    }

    /// The error of a call in it. If it has ended by itself, its name becomes free.
    pub(super) fn failure(&self, error: Error) -> ToolError {
        match error {
            error @ Error::Operation { .. } => error.into(),
            error => self.registry.failure(&self.registered, error).into(),
        }
    }
}
