//! Audit events: one line each.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use sandbox_api::{ToolCall, millis, time};
use sandbox_protocol::WireString;
use sandbox_protocol::path::MAX_PATH_BYTES;
use serde::ser::SerializeMap as _;
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

/// A line that stands for lost lines.
#[derive(Serialize)]
pub(super) struct Lost {
    pub(super) time: String,
    pub(super) event: &'static str,
    pub(super) count: u64,
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
        encode(self)
    }
}

impl Serialize for Event<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_map(None)?;
        line.serialize_entry("time", &time::now())?;
        line.serialize_entry("run_id", self.run_id)?;
        line.serialize_entry("operation", self.operation)?;
        line.serialize_entry("by", &self.by)?;
        for (key, name) in [("path", self.path), ("to", self.to), ("program", self.program)] {
            let Some(name) = name else {
                if key == "path" {
                    line.serialize_entry(key, &())?;
                }
                continue;
            };
            let (text, bytes) = WireString::parts(&name[..name.len().min(MAX_PATH_BYTES)]);
            line.serialize_entry(key, &text)?;
            if let Some(bytes) = bytes {
                line.serialize_entry(&format!("{key}_b64"), &bytes)?;
            }
        }
        line.serialize_entry("outcome", self.outcome)?;
        line.serialize_entry("bytes", &self.bytes)?;
        line.serialize_entry("duration_ms", &self.duration.map(millis))?;
        if let Some(connection) = &self.connection {
            line.serialize_entry("connection", connection)?;
        }
        if let Some(request) = self.request {
            let path = request.path.get(..MAX_PATH_BYTES).unwrap_or(request.path);
            line.serialize_entry("request", &RequestRecord { path, ..request })?;
        }
        if let Some(access) = &self.access {
            line.serialize_entry("access", access)?;
        }
        line.end()
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
