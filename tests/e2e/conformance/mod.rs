//! The conformance suite: what a sandbox is, whatever runs its container.

mod agents;
mod artifacts;
mod changes;
mod cleanup;
mod disk;
mod egress;
mod examples;
mod exec;
mod exec_cli;
mod fresh;
mod fs;
mod hostile;
mod images;
mod io;
mod isolation;
mod limits;
mod mounts;
mod operations;
mod policy;
mod programs;
mod reaping;
mod run;
mod sockets;
mod stages;
mod tools;
mod transfers;
