//! Executions in a sandbox: what a request says is to run, and how it runs to its end.

mod request;
mod run;

pub use request::{RequestError, Work};
pub use run::{Cancel, DocumentContext, Ran, Sink, run};
