//! Shared by the embedded engine and its helper: a container as data ([`spec`]), their protocol
//! ([`wire`]), and a container's control groups ([`cgroup`]), which outlive both.
//!
//! The helper itself is this package's program: one single-threaded process per container, because
//! it forks.

#![forbid(unsafe_code)]

pub mod cgroup;
pub mod delegation;
pub mod spec;
pub mod wire;
