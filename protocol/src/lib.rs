//! The wire between the controller and the agent in the sandbox.
//!
//! JSON-RPC 2.0, one object a line, over the agent's stdin and stdout. This crate defines all
//! messages ([`message`]), the file operations ([`operation`]), the framing and its limits ([`frame`], [`limits`]), the credit windows
//! of byte streams ([`stream`]), the list of error kinds ([`ErrorKind`]) and the pure rules for
//! guest paths ([`path`], [`protected`]). It does no I/O and does not depend on an engine.
//!
//! Each side expects that the other may be wrong; the controller treats the agent as hostile.
//! Decoding is strict and has two steps: first the envelope, with its `params` or `result` kept as
//! raw text, then the params by method, or the result by the id of the request that it answers. An
//! unknown field is an error in either step.
//!
//! The protocol is frozen in `protocol/schema/`; `tests/schema.rs` describes how to bless a change.

#![forbid(unsafe_code)]

pub mod argv;
mod base64_bytes;
pub mod bpf;
mod envelope;
mod error;
pub mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod limits;
pub mod media;
pub mod message;
pub mod names;
pub mod operation;
pub mod path;
pub mod protected;
pub mod stream;
pub mod syscalls;
pub mod time;
pub mod user;
mod wire_string;
mod words;

pub use base64_bytes::Base64;
pub use envelope::{DecodeError, FromAgent, HEARTBEAT, ToAgent};
pub use error::{ErrorKind, WireError};
pub use user::{User, UserError};
pub use wire_string::WireString;

/// A text of UTF-8 without a byte-order mark, which some editors and shells write before it.
pub fn without_bom(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// The version of the protocol. Controller and agent must have the same one: they are built and
/// shipped together, so there is no negotiation.
pub const PROTOCOL_VERSION: u32 = 15;
