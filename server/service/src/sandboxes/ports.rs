//! Connections to ports of kept sandboxes, and what listens there.

use sandbox_api::PortList;
use sandbox_api::service::{SandboxRef, Subject};

use super::operations::{InSandbox, done};
use super::registry::{OpenConnection, SandboxLease};
use crate::counters::Counting;
use crate::error::ServiceError;
use crate::launcher::Connection;
use crate::service::Service;

/// A connection to a port of a kept sandbox, which is in use as long as this is there.
pub struct PortStream {
    /// A shutdown ends one direction. Dropping it ends the connection: by a reset, unless it was shut down or has been
    /// read to its end.
    pub connection: Box<dyn Connection>,
    _counted: OpenConnection,
    _use: SandboxLease,
}

impl Service {
    /// Connects to a TCP port of a kept sandbox's loopback, whose container is started if it is missing.
    ///
    /// # Errors
    ///
    /// [`ServiceError::port_not_open`] if the sandbox's spec does not list the port,
    /// [`ServiceError::port_closed`] if nothing accepts connections there,
    /// [`ServiceError::quota_exceeded`] and [`ServiceError::too_many_in_sandbox`] if there are as many
    /// connections as there may be; as of [`perform`](Self::perform).
    pub async fn dial(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
        port: u16,
    ) -> Result<InSandbox<PortStream>, ServiceError> {
        let kept = self.core.kept.find_any(subject, &sandbox.id)?;
        // What is refused starts no container.
        if !kept.spec()?.ports.allows(port) {
            return Err(ServiceError::port_not_open(port));
        }
        let counted = self.core.kept.begin_connection(&kept);
        let counted = counted.inspect_err(|_| Counting::add(&self.core.counting.refused_quota))?;
        let in_use = self.core.spawn_lease(kept, sandbox.generation).await?;
        let connection = in_use.guest.dial(port).await;
        let connection = connection.map_err(|error| in_use.failed(error))?;
        let done = done((), &in_use);
        // It may be open for as long as its sandbox is there.
        let in_use = in_use.into_reader();
        Ok(done.with(PortStream { connection, _counted: counted, _use: in_use }))
    }

    /// The TCP sockets that listen in a kept sandbox, whatever its spec opens. One without a container has
    /// none, and gets none for this.
    ///
    /// # Errors
    ///
    /// [`ServiceError::stale_generation`]; [`ServiceError::sandbox`] if it runs no programs; as of
    /// [`sandbox`](Self::sandbox).
    pub async fn listening_ports(
        &self,
        subject: &Subject,
        sandbox: &SandboxRef,
    ) -> Result<InSandbox<PortList>, ServiceError> {
        let kept = self.core.kept.find_any(subject, &sandbox.id)?;
        let (guest, generation) = kept.guest(sandbox.generation)?;
        if guest.is_none() {
            return Ok(InSandbox { value: PortList::default(), generation, restarted: false });
        }
        let in_use = self.core.spawn_lease(kept, Some(generation)).await?;
        let ports = in_use.guest.listening_ports().await;
        Ok(done(ports.map_err(|error| in_use.failed(error))?, &in_use))
    }
}
