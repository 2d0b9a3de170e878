//! What goes over a WebSocket that is attached to a process: the subprotocol `sandboxctl.process.1`.
//!
//! The server sends output as binary messages, and every other event as a text message, which is its
//! [`EventRecord`] in JSON. The client sends input as binary messages, and [`AttachRequest`]s as text.
//! What the server refuses of these, it answers with an [`AttachRefusal`], and goes on.

use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::problem::Problem;
use crate::process::{SignalRequest, TerminalSize};
use crate::{EventRecord, ExecutionEvent, OutputStream, Recorded};

/// The name of the subprotocol, which client and server name in `Sec-WebSocket-Protocol`.
pub const SUBPROTOCOL: &str = "sandboxctl.process.1";
/// What the token of a page begins with, among the subprotocols that it names: it can send no other header.
pub const BEARER_SUBPROTOCOL: &str = "bearer.";
/// The most bytes of a message.
pub const MAX_MESSAGE: usize = 64 << 10;
/// How often the server sends a ping. A peer of which nothing came for three of these is gone.
pub const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Before the output: a byte for the stream, and the number of the event.
const OUTPUT_HEAD: usize = 9;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;

/// A text message to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum AttachRequest {
    /// The size of the terminal.
    Resize(TerminalSize),
    /// A signal to send.
    Signal(SignalRequest),
    /// `true`: the input has ended.
    Eof(bool),
}

/// A text message from the server that is no event: something of the client's was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachRefusal {
    /// What, and why.
    pub problem: Problem,
}

/// The binary message of an event, if it is output: a byte for its stream (1 stdout, 2 stderr), its number as
/// 8 bytes with the highest first, and what was printed.
pub fn output_message(record: &EventRecord) -> Option<Bytes> {
    let Recorded::Event(ExecutionEvent::Output { stream, data }) = &record.event else {
        return None;
    };
    let stream = match stream {
        OutputStream::Stdout => STDOUT,
        OutputStream::Stderr => STDERR,
    };
    let mut message = Vec::with_capacity(OUTPUT_HEAD + data.len());
    message.push(stream);
    message.extend_from_slice(&record.seq.to_be_bytes());
    message.extend_from_slice(data);
    Some(message.into())
}

/// The stream, the number and the output of a binary message, if it is one of output.
pub fn read_output_message(message: &[u8]) -> Option<(OutputStream, u64, &[u8])> {
    let (head, output) = message.split_at_checked(OUTPUT_HEAD)?;
    let stream = match head[0] {
        STDOUT => OutputStream::Stdout,
        STDERR => OutputStream::Stderr,
        _ => return None,
    };
    Some((stream, u64::from_be_bytes(head[1..].try_into().ok()?), output))
}

#[cfg(test)]
mod tests {
    use sandbox_protocol::message::{SignalName, SignalTarget};

    use super::*;
    use crate::service::Time;

    #[test]
    fn output_is_read_back_as_written() {
        let event = ExecutionEvent::Output {
            stream: OutputStream::Stderr,
            data: Bytes::from_static(b"\xff\n"),
        };
        let time = Time::from_unix_millis(7);
        let record = EventRecord { seq: 258, time, name: None, event: event.into() };
        let message = output_message(&record).unwrap();
        assert_eq!(&message[..], b"\x02\0\0\0\0\0\0\x01\x02\xff\n");
        let read = read_output_message(&message);
        assert_eq!(read, Some((OutputStream::Stderr, 258, &b"\xff\n"[..])));
        let other = EventRecord { event: ExecutionEvent::Started.into(), ..record };
        assert_eq!(output_message(&other), None);
        for wrong in [&b""[..], b"\x01\0\0\0\0\0\0\0", b"\x03\0\0\0\0\0\0\0\x01a"] {
            assert_eq!(read_output_message(wrong), None);
        }
    }

    #[test]
    fn requests_are_objects_of_one_member() {
        let signal = SignalRequest { signal: SignalName::Int, to: SignalTarget::Foreground };
        for (request, json) in [
            (
                AttachRequest::Resize(TerminalSize { cols: 80, rows: 24 }),
                r#"{"resize":{"cols":80,"rows":24}}"#,
            ),
            (AttachRequest::Signal(signal), r#"{"signal":{"signal":"INT","to":"foreground"}}"#),
            (AttachRequest::Eof(true), r#"{"eof":true}"#),
        ] {
            assert_eq!(serde_json::to_string(&request).unwrap(), json);
            assert_eq!(serde_json::from_str::<AttachRequest>(json).unwrap(), request);
        }
        for wrong in ["{}", r#"{"resize":{}}"#, r#"{"eof":true,"signal":{"signal":"INT"}}"#, "5"] {
            assert!(serde_json::from_str::<AttachRequest>(wrong).is_err(), "{wrong}");
        }
    }
}
