//! Audit events: one line each.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use sandbox_api::{ToolCall, millis, time};
use sandbox_protocol::Base64;
use sandbox_protocol::WireString;
use sandbox_protocol::path::MAX_PATH_BYTES;
use serde::{Serialize, Serializer};

use crate::error::Error;

/// The origin of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum By {
    /// The user of the library.
    Caller,
    /// A script or a command in the sandbox.
    Script,
}

/// An audited event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event<'a> {
    /// The run id; the sandbox's id if it is not part of a run.
    pub run_id: &'a str,
    pub operation: &'a str,
    pub by: By,
    /// The guest path, normalised; as given if it cannot be normalised.
    pub path: Option<&'a [u8]>,
    /// The new path of a rename.
    pub to: Option<&'a [u8]>,
    /// The program of a command, as given, without secrets. Never its arguments or environment, which
    /// may contain secrets.
    pub program: Option<&'a [u8]>,
    /// `ok`, an error's kind, or a run's status.
    pub outcome: &'a str,
    pub bytes: Option<u64>,
    pub duration: Option<Duration>,
    /// For a connection: its details.
    pub connection: Option<Connection<'a>>,
    /// For a request on a connection that is terminated: its details.
    pub request: Option<RequestRecord<'a>>,
    /// For a decision about a request: its details.
    pub access: Option<AccessRecord<'a>>,
}

/// A decision about a request to a service.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct AccessRecord<'a> {
    /// The id of the request: the line's `run_id`.
    #[serde(skip)]
    pub request: &'a str,
    /// Where it came from.
    pub peer: &'a str,
    /// Who sent it, if that is known.
    pub subject: Option<&'a str>,
    /// Its method.
    pub method: &'a str,
    /// Its path, without the query.
    pub path: &'a str,
    /// The status of the answer.
    pub status: u16,
    /// The kind of the refusal, if it was refused: the line's `outcome`.
    #[serde(skip)]
    pub refused: Option<&'a str>,
    /// The reason for the refusal, which the caller does not see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
}

/// A connection of a command in the sandbox.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Connection<'a> {
    /// `host:port`.
    pub target: &'a str,
    /// The address that was dialled.
    pub address: Option<IpAddr>,
    /// Why it ended, if it did not end normally.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
}

/// A request of a command on a connection that is terminated.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct RequestRecord<'a> {
    /// Its method.
    pub method: &'a str,
    /// Its path, without the query.
    pub path: &'a str,
    /// The status of the answer.
    pub status: u16,
}

/// The outcome of a success.
pub(crate) const OK: &str = "ok";

/// The outcome of a requested action that was not waited for.
pub(crate) const REQUESTED: &str = "requested";

/// The outcome of an operation: `ok`, or the error's kind.
pub(crate) fn outcome<T>(result: &Result<T, Error>) -> &'static str {
    result.as_ref().map_or_else(|error| error.kind().as_str(), |_| OK)
}

/// An audit line.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    time: String,
    run_id: &'a str,
    operation: &'a str,
    by: By,
    path: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<Base64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to_b64: Option<Base64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program_b64: Option<Base64>,
    outcome: &'a str,
    bytes: Option<u64>,
    #[serde(serialize_with = "as_millis")]
    duration_ms: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<Connection<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<RequestRecord<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<AccessRecord<'a>>,
}

/// A line that stands for lost lines.
#[derive(Serialize)]
pub(super) struct Lost {
    pub(super) time: String,
    pub(super) event: &'static str,
    pub(super) count: u64,
}

fn as_millis<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(millis).serialize(serializer)
}

impl<'a> Event<'a> {
    /// An event of the caller, without a path, that succeeded.
    pub const fn new(run_id: &'a str, operation: &'a str) -> Self {
        Self {
            run_id,
            operation,
            by: By::Caller,
            path: None,
            to: None,
            program: None,
            outcome: OK,
            bytes: None,
            duration: None,
            connection: None,
            request: None,
            access: None,
        }
    }

    /// A call of a tool, by a name without secrets.
    pub fn tool_call(run_id: &'a str, tool: &'a [u8], made: &'a ToolCall) -> Self {
        Self {
            program: Some(tool),
            outcome: made.outcome.as_str(),
            bytes: Some(made.result_bytes),
            duration: Some(Duration::from_millis(made.duration_ms)),
            ..Self::new(run_id, "tool")
        }
    }

    /// A decision about a request.
    pub fn access(record: AccessRecord<'a>) -> Self {
        // Paths of requests are ASCII.
        let path = record.path.get(..MAX_PATH_BYTES).unwrap_or(record.path);
        Self {
            outcome: record.refused.unwrap_or(OK),
            access: Some(AccessRecord { path, ..record }),
            ..Self::new(record.request, "access")
        }
    }

    pub(super) fn line(&self) -> Vec<u8> {
        let names = [self.path, self.to, self.program];
        let [(path, path_b64), (to, to_b64), (program, program_b64)] = names.map(|name| {
            let Some(name) = name else { return (None, None) };
            let (text, bytes) = WireString::parts(&name[..name.len().min(MAX_PATH_BYTES)]);
            (Some(text), bytes)
        });
        encode(&Line {
            time: time::now(),
            run_id: self.run_id,
            operation: self.operation,
            by: self.by,
            path,
            path_b64,
            to,
            to_b64,
            program,
            program_b64,
            outcome: self.outcome,
            bytes: self.bytes,
            duration_ms: self.duration,
            connection: self.connection,
            request: self.request.map(|it| RequestRecord {
                path: it.path.get(..MAX_PATH_BYTES).unwrap_or(it.path),
                ..it
            }),
            access: self.access,
        })
    }
}

/// The line's bytes, with a newline. JSON escapes the control characters of ASCII; the others also
/// control terminals or reverse text, and are escaped here.
pub(super) fn encode(line: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_string(line).unwrap_or_default();
    let mut text = String::with_capacity(json.len() + 1);
    for char in json.chars() {
        if steers(char) {
            // All of them have four digits.
            _ = write!(text, "\\u{:04x}", u32::from(char));
        } else {
            text.push(char);
        }
    }
    text.push('\n');
    text.into_bytes()
}

fn steers(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' | '\u{feff}')
}
