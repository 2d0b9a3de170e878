//! Nothing is left: removals under way, what live controllers hold, sweeps of what dead ones left.

pub(crate) mod pending;
pub(crate) mod reap;
pub(crate) mod state_dir;
