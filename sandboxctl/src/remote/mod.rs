//! A client of services: `--server`, and `executions`.
//!
//! Scripts and secrets go to the service that the command line or the environment names, and to no
//! other: redirects are not followed, and no file names one. A submission has an idempotency key, so
//! that it is sent again where a connection is lost, and runs once.

mod address;
mod client;
mod connection;
mod error;
mod events;
mod executions;
mod sse;
#[cfg(test)]
mod tests;
mod token;

pub use address::ServerAddress;
pub use client::{Client, Stream};
pub use connection::Connection;
pub use error::Error;
pub use events::Events;
pub use executions::{ListQuery, new_key};
pub use token::{MAX_TOKEN_BYTES, Token};
