//! What runners of CI read in the log of a job: commands for them, and text in which they find none.

pub mod github;
pub mod gitlab;
pub mod log_markers;
