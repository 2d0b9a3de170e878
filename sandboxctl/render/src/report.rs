//! Reports of `run` and `exec`: each format is a file here with a function from the results to its text.

mod entry;
mod findings;
mod junit;
mod kind;
mod markdown;
mod sarif;

pub use entry::{Entry, Problem, Subject};
pub use findings::Finding;
pub use junit::junit;
pub use kind::{ReportArgument, ReportKind};
pub use markdown::markdown;
pub use sarif::sarif;

#[cfg(test)]
pub(crate) mod tests {
    pub mod samples;
}
