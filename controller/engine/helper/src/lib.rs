//! Shared by the embedded engine and its helper: a container as data ([`spec`]), their protocol
//! ([`wire`]), a container's control groups ([`cgroup`]), which outlive both, how file systems are
//! made and restricted ([`mounts`]), and how the kernel is asked about networks ([`netlink`]).
//!
//! The helper itself is this package's program: one single-threaded process per container, because
//! it forks.

// But for one system call in `mounts`.
#![deny(unsafe_code)]

pub mod cgroup;
pub mod delegation;
pub mod mounts;
pub mod netlink;
pub mod spec;
pub mod wire;
