//! Connections of programs to the world outside: the agent asks, the controller decides and dials.
//!
//! A connection is a tunnel: one number, and a stream of bytes each way under it, by
//! [`Chunk`](super::Chunk) and [`Credit`](super::Credit) as everywhere else. The agent chooses the number,
//! [`FIRST_TUNNEL`](crate::limits::FIRST_TUNNEL) or above, where no request's streams are.
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
//! Either side may say its last word first, whenever it likes. What comes of a tunnel after one's own
//! last word was sent before the other side knew, and is dropped. `closed` with any other reason than
//! [`Done`](ClosedReason::Done), and `close` before both directions have ended, is a reset.

use serde::{Deserialize, Serialize};

/// `connect`: a program wants a connection. From the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connect {
    /// A number of the agent's that no open tunnel has.
    pub tunnel: u32,
    /// As the program wrote it: a name, or an address without brackets. At most
    /// [`MAX_HOST_BYTES`](crate::limits::MAX_HOST_BYTES).
    pub host: String,
    /// The port.
    pub port: u16,
}

/// `close`: the agent's last word on a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Close {
    /// The tunnel.
    pub tunnel: u32,
}

/// `connected`: the connection is there; bytes may come and go. From the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connected {
    /// The tunnel.
    pub tunnel: u32,
}

/// `closed`: the controller's last word on a tunnel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    /// The tunnel.
    pub tunnel: u32,
    /// Why.
    pub reason: ClosedReason,
    /// For people: what is wrong, and which rule would allow it. At most
    /// [`MAX_CLOSED_MESSAGE_BYTES`](crate::limits::MAX_CLOSED_MESSAGE_BYTES); empty for `done`.
    pub message: String,
}

/// Why a tunnel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClosedReason {
    /// Both directions have ended well.
    Done,
    /// A rule forbids it: the host is not on the list, its address is a private one, or what the
    /// program said inside is not for that host.
    Refused,
    /// The name has no address, or nobody answers there.
    Unreachable,
    /// It took too long, or nothing came and went for too long.
    Timeout,
    /// A limit of the sandbox on connections or bytes.
    Limit,
    /// The other end broke it off.
    Reset,
}

impl ClosedReason {
    /// Every one of them.
    pub const ALL: [Self; 6] =
        [Self::Done, Self::Refused, Self::Unreachable, Self::Timeout, Self::Limit, Self::Reset];

    /// The reason's word, as on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Limit => "limit",
            Self::Reset => "reset",
        }
    }
}
