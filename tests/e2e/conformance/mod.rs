//! The conformance suite: what a sandbox is, whatever runs its container.

mod cleanup;
mod examples;
mod hostile;
mod io;
mod run;
