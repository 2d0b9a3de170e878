//! Outgoing connections of commands: the agent requests them, the controller decides and dials.
//!
//! Connections to a port in the sandbox are tunnels too: [`Dial`](super::Dial).
//!
//! A connection is a tunnel: one number, and under it a byte stream in each direction, by
//! [`Chunk`](super::Chunk) and [`Credit`](super::Credit) as for other streams. The agent chooses
//! the number, [`FIRST_TUNNEL`](crate::limits::FIRST_TUNNEL) or above; the streams of requests have
//! numbers below [`FIRST_DIAL`](crate::limits::FIRST_DIAL).
//!
//! ```text
//!   agent                                controller
//!     │ connect {tunnel, host, port} ───▶ │ holds it against the list, resolves, dials
//!     │ ◀─── connected {tunnel}           │ or `closed` at once
//!     │ chunk, credit ───▶ ◀─── chunk, credit
//!     │ chunk {last}  ───▶                │ half-closed: no more is sent that way
//!     │               ◀─── chunk {last}   │
//!     │ ◀─── closed {tunnel, why}         │ its last word on the tunnel
//!     │ close {tunnel} ───▶               │ the agent's last word: the number is free
//! ```
//!
//! Each side may send its last message (`close` or `closed`) first, at any time. What it receives
//! for the tunnel after that was sent before the other side knew, and is dropped. `closed` with a
//! reason other than [`Done`](ClosedReason::Done), and `close` before both directions have ended,
//! are a reset.

use serde::{Deserialize, Serialize};

/// `connect`: a command requests a connection. From the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connect {
    /// A number, chosen by the agent, that no open tunnel has.
    pub tunnel: u32,
    /// The host as the command wrote it: a name, or an address without brackets. At most
    /// [`MAX_HOST_BYTES`](crate::limits::MAX_HOST_BYTES).
    pub host: String,
    /// The port.
    pub port: u16,
}

/// `close`: the agent's last message for a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Close {
    /// The tunnel.
    pub tunnel: u32,
}

/// `connected`: the connection is established; bytes can flow. From the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connected {
    /// The tunnel.
    pub tunnel: u32,
}

/// `closed`: the controller's last message for a tunnel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    /// The tunnel.
    pub tunnel: u32,
    /// The reason.
    pub reason: ClosedReason,
    /// For people: what is wrong, and which rule would allow the connection. At most
    /// [`MAX_CLOSED_MESSAGE_BYTES`](crate::limits::MAX_CLOSED_MESSAGE_BYTES); empty for `done`.
    pub message: String,
}

crate::words! {
    /// Why a tunnel ended.
    pub enum ClosedReason {
        /// Both directions ended normally.
        Done = "done",
        /// A rule forbids it: the host is not on the list, its address is private, or what the command
        /// sent in the tunnel is not for that host.
        Refused = "refused",
        /// The name has no address, or no connection can be made to it.
        Unreachable = "unreachable",
        /// The connect timeout or the idle timeout expired.
        Timeout = "timeout",
        /// A limit of the sandbox on connections or bytes was reached.
        Limit = "limit",
        /// The remote end reset the connection.
        Reset = "reset",
    }
}
