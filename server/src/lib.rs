//! Sandboxes for others than a person at a terminal: a [`registry`] of sandboxes, and [`tools`] for
//! workflow steps.
//!
//! Like the controller it reads no environment, home directory or terminal.

#![forbid(unsafe_code)]

pub mod registry;
pub mod tools;
