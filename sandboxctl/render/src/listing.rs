//! What there is, for people: a table of several things, lines about one.

mod executions;
mod receipt;
mod sandboxes;

pub use executions::{event, execution, executions, executions_of_subjects, files};
pub use receipt::{ending, receipt};
pub use sandboxes::{containers, expiry, processes, sandbox_ids, sandboxes};
