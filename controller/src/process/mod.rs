//! Processes of a sandbox that live on after the request that started them: what is known of each, its
//! events, and the table of all.
//!
//! A process here is data that several may read and one changes: its driver
//! ([`execution::process`](crate::execution)), which has the request and its streams, and does what a
//! [`Process`] is asked for. So nothing here holds the sandbox, and no reader the process.

mod events;
mod handle;
mod readers;
mod ring;
mod stdin;
mod table;

pub use self::events::ProcessEvents;
pub(crate) use self::handle::{Answer, Identity, Request, Used};
pub use self::handle::{KeptOutput, Process, Until};
pub(crate) use self::stdin::Input;
pub use self::stdin::StdinError;
pub(crate) use self::table::{Place, ProcessTable};
