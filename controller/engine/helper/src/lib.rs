//! Shared by the embedded engine and its helper: their protocol ([`wire`]), and a container's
//! control groups ([`cgroup`]), which outlive both.
//!
//! The helper itself is this package's program: one single-threaded process per container, because
//! libcontainer forks. Nothing here needs libcontainer.

#![forbid(unsafe_code)]

pub mod cgroup;
pub mod wire;
