//! Shared by the embedded engine and its helper: a container as data ([`spec`]), their protocol
//! ([`wire`]), a container's control groups ([`cgroup`]), which outlive both, and how file systems are
//! made and restricted ([`mounts`]).
//!
//! The helper itself is this package's program: one single-threaded process per container, because
//! it forks.

// But for one system call in `mounts`.
#![deny(unsafe_code)]

pub mod cgroup;
pub mod delegation;
pub mod mounts;
pub mod spec;
pub mod wire;
