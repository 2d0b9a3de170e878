//! Commands of the image: starts and supervises them, and kills every process that they started.
//!
//! [`command`] builds the start parameters, [`stdio`] makes the pipes or the terminal ([`pty`]), [`spawn`]
//! starts the command on a thread of its own ([`spawner`]), [`watch`] copies its input and output and
//! enforces its timeout, [`tree`] ends it, [`reaper`] reports its exit, [`signs`] say what stood in its
//! way. Those of the controller's requests share a thread ([`table`]); a script's has the script's
//! ([`script`]). Either waits with a [`poller`]. [`certificates`] are those that they trust. [`changes`] of watched directories are sent by the thread of
//! the requests. What they all share is opened before the agent is confined
//! ([`programs`]).

mod certificates;
mod changes;
mod command;
mod poller;
mod programs;
mod pty;
mod reaper;
mod script;
mod signs;
mod spawn;
mod spawner;
mod stdio;
mod table;
mod tree;
mod watch;

pub use programs::{ExecContext, Programs};
pub use script::Collected;
pub use spawner::Spawner;
pub use stdio::Outputs;
pub use table::Execs;
pub use watch::{Bounds, LONGEST, Left, Task};
