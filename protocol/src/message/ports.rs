//! Ports of the sandbox's loopback: the controller asks for a connection, the agent makes it.
//!
//! It is a [tunnel](super::Connect) that the other side opens: the controller chooses the number,
//! from [`FIRST_DIAL`](crate::limits::FIRST_DIAL) up, and the answer to [`Dial`] stands for
//! `connected`. From then on everything is as in any tunnel: `chunk`, `credit`, and the last messages
//! [`Close`](super::Close) of the agent and [`Closed`](super::Closed) of the controller.
//!
//! ```text
//!   controller                           agent
//!     │ dial {tunnel, port} ───▶           │ connects to 127.0.0.1, or else to ::1
//!     │ ◀─── {} or an error                │ after an error there is no such tunnel
//!     │ chunk, credit ───▶ ◀─── chunk, credit
//!     │ closed {tunnel, reason} ───▶       │ done: the rest is delivered; else it is a reset
//!     │ ◀─── close {tunnel}                │ the number is free
//! ```

use serde::{Deserialize, Serialize};

/// `dial`: connects to a TCP port of the sandbox's loopback. The agent's own proxy is not reached.
/// Answered when the connection is there, or within
/// [`DIAL_TIMEOUT`](crate::limits::DIAL_TIMEOUT): `not_found` if nothing listens, `timeout`,
/// `not_allowed` for the proxy's port, `busy` beyond [`MAX_DIALS`](crate::limits::MAX_DIALS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dial {
    /// The number of the tunnel.
    pub tunnel: u32,
    /// The port.
    pub port: u16,
}

/// `ports`: what listens in the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListPorts {}

/// The agent's answer to `ports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListPortsReply {
    /// The TCP sockets that listen, by port and address: the first
    /// [`MAX_LISTENING`](crate::limits::MAX_LISTENING). The agent's own proxy is left out.
    pub listening: Vec<ListeningPort>,
}

/// A TCP socket that listens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListeningPort {
    /// Its port.
    pub port: u16,
    /// Its address: `127.0.0.1`, `0.0.0.0`, or one of IPv6.
    pub address: std::net::IpAddr,
}
