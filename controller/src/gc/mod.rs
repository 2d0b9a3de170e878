//! Cleanup: removals in progress, the locks of live controllers, and leftovers of crashed ones.

pub(crate) mod pending;
pub(crate) mod reap;
pub(crate) mod state_dir;
