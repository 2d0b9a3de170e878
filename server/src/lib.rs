//! Sandboxes for programs instead of people at a terminal: a [`registry`] of them, and
//! [`tools`] for workflow steps.
//!
//! Like the controller it does not use the environment, the home directory or a terminal.

#![forbid(unsafe_code)]

pub mod registry;
pub mod tools;
