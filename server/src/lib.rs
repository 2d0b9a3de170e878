//! Sandboxes for others than a person at a terminal: [`tools`] for workflow steps.
//!
//! Like the controller it reads no environment, home directory or terminal.

#![forbid(unsafe_code)]

pub mod tools;
