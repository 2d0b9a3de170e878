//! The tools that client libraries are made of: the API's own operations and executions in a sandbox,
//! and files in chunks. Calls of them have no order among each other: who needs one waits for answers.

mod download;
mod execute;
mod operation;
mod upload;

use std::sync::Arc;

use sandbox_controller::{Error, Sandbox};

pub(super) use self::download::Download;
pub(super) use self::execute::Execute;
pub(super) use self::operation::Operate;
pub(super) use self::upload::Upload;
use super::error::ToolError;
use super::tool::Context;
use crate::registry::{RegisteredSandbox, Registry, Scope, Ticket};

/// A sandbox that a call uses.
struct SandboxRef {
    registry: Arc<Registry>,
    registered: Arc<RegisteredSandbox>,
    /// It is not removed as long as a call has this.
    _ticket: Ticket,
}

impl SandboxRef {
    /// The one of this name.
    fn find(context: &Context, container_id: &str) -> Result<Self, ToolError> {
        let registered = context.registry.find(container_id)?;
        let ticket = registered.enter(Scope::Concurrent);
        Ok(Self { registry: context.registry.clone(), registered, _ticket: ticket })
    }

    async fn ready(&self) -> Result<Arc<Sandbox>, ToolError> {
        Ok(self.registered.ready().await?)
    }

    /// The error of a call in it. If it has ended by itself, its name becomes free.
    fn failure(&self, error: Error) -> ToolError {
        match error {
            error @ Error::Operation { .. } => error.into(),
            error => self.registry.failure(&self.registered, error).into(),
        }
    }
}
