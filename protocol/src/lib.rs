//! The wire between the controller and the agent in the sandbox.
//!
//! JSON-RPC 2.0, one object a line, over the agent's stdin and stdout. This crate owns the whole
//! vocabulary ([`message`]), the framing and its limits ([`frame`], [`limits`]), the credit
//! windows of byte streams ([`stream`]), the one list of error kinds ([`ErrorKind`]) and the pure
//! rules for guest paths ([`path`], [`protected`]). It does no I/O and knows no engine.
//!
//! Both ends treat the other as able to be wrong; the controller treats the agent as hostile.
//! Decoding is strict in two steps: the envelope first, with its `params` or `result` kept as raw
//! text, then those by the method, or by the id of the request they answer.
//! An unknown field is an error at either step.
//!
//! The surface is frozen in `protocol/schema/`; `tests/schema.rs` says how to bless a change.

#![forbid(unsafe_code)]

pub mod argv;
mod base64_bytes;
mod envelope;
mod error;
pub mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod limits;
pub mod media;
pub mod message;
pub mod path;
pub mod protected;
pub mod stream;
pub mod syscalls;
pub mod user;

pub use base64_bytes::Base64;
pub use envelope::{DecodeError, FromAgent, HEARTBEAT, ToAgent};
pub use error::{ErrorKind, UnknownErrorKind, WireError};
pub use user::{User, UserError};

/// The version of this wire. Controller and agent must have the same one: they are built and
/// shipped together, so there is nothing to negotiate.
pub const PROTOCOL_VERSION: u32 = 7;
