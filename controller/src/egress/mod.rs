//! Egress: which hosts commands in a sandbox may reach, and the connections to them.
//!
//! The sandbox has no network. A command's connection arrives as a tunnel through the agent, and
//! everything about it is decided here, based on a host name that the agent merely forwards:
//! whether the allow list contains the name ([`sandbox_api::hosts`]), whether its addresses may be
//! dialled, and whether the data that the command sends is for that name ([`sandbox_tls`]). The agent may be as hostile as any command: that gains it nothing.

mod asked;
mod gate;
mod resolve;
#[cfg(test)]
mod tests;
mod tunnel;

use std::sync::Arc;

use sandbox_protocol::message::Connect;
use sandbox_session::{ConnectHandler, Tunnel};

pub(crate) use self::gate::Egress;
pub(crate) use self::resolve::system_resolver;

impl ConnectHandler for Egress {
    fn open(self: Arc<Self>, tunnel: Tunnel, connect: Connect) {
        let tasks = self.tasks.clone();
        tasks.spawn(tunnel::serve(self, tunnel, connect));
    }
}
