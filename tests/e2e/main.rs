//! End-to-end tests: the built `sandboxctl`, as a person calls it, on a real Docker Engine.
//! Without an engine they fail; they never skip.
//!
//! Each test has a [`place::Place`] of its own: a working directory, a state directory and a
//! home. At its end the place asserts that nothing of it is left on the engine or on the disk.

mod cleanup;
mod cli;
mod config;
mod docs;
mod examples;
mod faults;
mod hostile;
mod image;
mod io;
mod place;
mod run;
