//! A client of services: `--server`, `executions` and `sandbox`.
//!
//! Scripts and secrets go to the service that the command line or the environment names, and to no
//! other: redirects are not followed, and no file names one. A submission has an idempotency key, so
//! that it is sent again where a connection is lost, and runs once.

mod address;
mod attach;
mod client;
mod connection;
mod error;
mod events;
mod executions;
mod sandboxes;
mod sse;
#[cfg(test)]
mod tests;
mod token;

pub use address::ServerAddress;
pub use attach::{AttachInput, AttachOutput, Received};
pub use client::{Client, Stream};
pub use connection::{Connection, RequestBody, whole};
pub use error::Error;
pub use events::{EventSource, Events};
pub use executions::new_key;
pub use sandboxes::{ProcessRef, SandboxQuery};
pub use token::{MAX_TOKEN_BYTES, Token};
