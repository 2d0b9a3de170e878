//! The agent: the only program of sandboxctl inside a sandbox.

#![deny(unsafe_code)]

pub mod files;
pub mod log;
pub mod luau;
pub mod run;
