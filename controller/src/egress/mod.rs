//! Egress: which hosts programs in a sandbox may reach, and the connections to them.
//!
//! The sandbox has no network. A program's connection comes as a tunnel through the agent, and
//! everything about it is decided here, by a name that the agent only passes on: whether the list has
//! it ([`sandbox_api::hosts`]), what its addresses are and whether they may be dialled, and whether what
//! the program says is for that name ([`sni`], [`first_bytes`]). The agent may be as hostile as any program: it gains
//! nothing by it.

mod first_bytes;
mod gate;
#[cfg(test)]
mod hellos;
mod resolve;
mod sni;
#[cfg(test)]
mod tests;
mod tunnel;

#[cfg(any(test, fuzzing))]
pub(crate) use self::sni::fuzz;

use std::sync::Arc;

use sandbox_protocol::message::Connect;

pub(crate) use self::gate::Egress;
pub(crate) use self::resolve::SystemResolver;
use crate::session::{ConnectHandler, Tunnel};

impl ConnectHandler for Egress {
    fn open(self: Arc<Self>, tunnel: Tunnel, connect: Connect) {
        let tasks = self.tasks.clone();
        tasks.spawn(tunnel::serve(self, tunnel, connect));
    }
}
