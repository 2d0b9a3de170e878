//! What the embedded engine and its helper have in common: what they say to one another
//! ([`wire`]), and a container's control groups ([`cgroup`]), which outlive both.
//!
//! The helper itself is this package's program: one single-threaded process a container, because
//! libcontainer forks. Nothing here needs libcontainer.

#![forbid(unsafe_code)]

pub mod cgroup;
pub mod wire;
