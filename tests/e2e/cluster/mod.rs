//! Several services that are one, and everything that can fail between them.
//!
//! [`history`] has random faults, and checks what holds in every history; the others have a fault each. A test has a
//! database of its own, three nodes on it, and a proxy before everything that a node talks to.

mod database;
mod e2b;
mod history;
mod keys;
mod kills;
mod nodes;
mod partitions;
mod processes;
pub mod proxy;
mod sandboxes;
mod traces;
mod witness;
