//! Events of executions, and their records: one shape for services and for `--report ndjson`.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sandbox_protocol::message::TestCase;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::document::OutputEncoding;
use super::result::{LogEntry, LogLevel};
use crate::network::RefusedHost;
use crate::outcome::Exit;
use crate::service::time::Time;

/// What happens while something runs. What is shown of an execution is made of these, and of its
/// document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutionEvent {
    /// It was accepted, and waits for its turn.
    Queued,
    /// It starts.
    Started,
    /// A script has written an entry of its log.
    Log(LogEntry),
    /// A command has printed something.
    Output {
        /// Where.
        stream: OutputStream,
        /// A piece of its output, which may end within a character.
        data: Bytes,
    },
    /// Log entries or output are missing here: more came than is kept, or than could be written in
    /// time. The result is not affected.
    Omitted,
    /// A test case of a script has ended.
    Test(TestCase),
    /// A command was refused a host.
    HostRefused(RefusedHost),
    /// The program of a process has ended. What it started may still run, and print.
    Exited(Exit),
}

/// An event as it is stored and sent, numbered from 1 without gaps. The last one is
/// [`Recorded::End`].
#[derive(Debug, Clone)]
pub struct EventRecord {
    /// Its number.
    pub seq: u64,
    /// When it happened.
    pub time: Time,
    /// The name of what runs, where several things report to one place.
    pub name: Option<String>,
    /// What happened.
    pub event: Recorded,
}

/// What a record is of.
#[derive(Debug, Clone)]
pub enum Recorded {
    /// Something happened.
    Event(ExecutionEvent),
    /// It has ended, and its result is final.
    End {
        /// The exit code of a process that forwards the result.
        exit_code: u8,
        /// The result document.
        document: Box<RawValue>,
    },
}

impl From<ExecutionEvent> for Recorded {
    fn from(event: ExecutionEvent) -> Self {
        Self::Event(event)
    }
}

/// The stream of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputStream {
    /// Its stdout.
    Stdout,
    /// Its stderr.
    Stderr,
}

/// The name and version of the events, in the first of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EventsSchema {
    /// The only version.
    #[serde(rename = "sandboxctl.events/1")]
    V1,
}

/// A line lacks what its event has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the event '{event}' has no '{member}'")]
pub struct UnreadableEvent {
    event: &'static str,
    member: &'static str,
}

impl Recorded {
    /// Its name, as the member `event` has it.
    pub const fn name(&self) -> &'static str {
        self.kind().as_str()
    }

    /// Whether it is the last one.
    pub const fn is_end(&self) -> bool {
        matches!(self, Self::End { .. })
    }

    const fn kind(&self) -> EventKind {
        match self {
            Self::Event(event) => match event {
                ExecutionEvent::Queued => EventKind::Queued,
                ExecutionEvent::Started => EventKind::Start,
                ExecutionEvent::Log(_) => EventKind::Log,
                ExecutionEvent::Output { .. } => EventKind::Output,
                ExecutionEvent::Omitted => EventKind::Omitted,
                ExecutionEvent::Test(_) => EventKind::Test,
                ExecutionEvent::HostRefused(_) => EventKind::Refused,
                ExecutionEvent::Exited(_) => EventKind::Exit,
            },
            Self::End { .. } => EventKind::End,
        }
    }
}

/// Output as text. A piece may end within a character: then it is base64, as is text that would be
/// more than twice as long in JSON, such as zeros.
fn encode(data: &[u8]) -> (Cow<'_, str>, OutputEncoding) {
    match std::str::from_utf8(data) {
        Ok(text) if escaped_len(data) <= 2 * data.len() => {
            (Cow::Borrowed(text), OutputEncoding::Utf8)
        }
        _ => (Cow::Owned(STANDARD.encode(data)), OutputEncoding::Base64),
    }
}

/// The length of text as a string of JSON, without its quotes.
fn escaped_len(text: &[u8]) -> usize {
    let len = |byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.iter().map(len).sum()
}

sandbox_protocol::words! {
    /// The values of the member `event`.
    #[derive(JsonSchema)]
    pub enum EventKind {
        /// Accepted, and waiting for its turn.
        Queued = "queued",
        /// It starts.
        Start = "start",
        /// An entry of a script's log: `level` and `text`.
        Log = "log",
        /// Output of a command: `stream`, `text` and `encoding`.
        Output = "output",
        /// Log entries or output are missing here.
        Omitted = "omitted",
        /// A test case has ended: `case`.
        Test = "test",
        /// A command was refused a host: `host`.
        Refused = "refused",
        /// The program of a process has ended: `exit_code` or `signal`.
        Exit = "exit",
        /// It has ended: `exit_code` and `document`.
        End = "end",
    }
}

/// An event as a line.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ExecutionEvent")]
struct Line<'a> {
    /// Its number, from 1 without gaps.
    seq: u64,
    /// The name and version of the events, in the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema: Option<EventsSchema>,
    /// When it happened.
    time: Time,
    /// What happened.
    event: EventKind,
    /// The name of what runs, where several things report to one place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'a, str>>,
    /// By which function a log entry was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    level: Option<LogLevel>,
    /// Where output was printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stream: Option<OutputStream>,
    /// A log entry, or output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<Cow<'a, str>>,
    /// How output is encoded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encoding: Option<OutputEncoding>,
    /// A test case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    case: Option<Cow<'a, TestCase>>,
    /// A host that was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<Cow<'a, RefusedHost>>,
    /// The exit code of a program, or at the end that of a process which forwards the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
    /// The signal that ended a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signal: Option<u8>,
    /// The result document: `sandboxctl.result/1` or `sandboxctl.exec/1`; of a process its view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    document: Option<Cow<'a, RawValue>>,
}

impl<'a> From<&'a EventRecord> for Line<'a> {
    fn from(record: &'a EventRecord) -> Self {
        let mut line = Self {
            seq: record.seq,
            schema: (record.seq == 1).then_some(EventsSchema::V1),
            time: record.time,
            event: record.event.kind(),
            name: record.name.as_deref().map(Cow::Borrowed),
            level: None,
            stream: None,
            text: None,
            encoding: None,
            case: None,
            host: None,
            exit_code: None,
            signal: None,
            document: None,
        };
        match &record.event {
            Recorded::Event(event) => match event {
                ExecutionEvent::Queued | ExecutionEvent::Started | ExecutionEvent::Omitted => {}
                ExecutionEvent::Log(entry) => {
                    line.level = Some(entry.level);
                    line.text = Some(Cow::Borrowed(&entry.text));
                }
                ExecutionEvent::Output { stream, data } => {
                    let (text, encoding) = encode(data);
                    line.stream = Some(*stream);
                    (line.text, line.encoding) = (Some(text), Some(encoding));
                }
                ExecutionEvent::Test(case) => line.case = Some(Cow::Borrowed(case)),
                ExecutionEvent::HostRefused(host) => line.host = Some(Cow::Borrowed(host)),
                ExecutionEvent::Exited(Exit::Code(code)) => line.exit_code = Some(*code),
                ExecutionEvent::Exited(Exit::Signal(signal)) => line.signal = Some(*signal),
            },
            Recorded::End { exit_code, document } => {
                line.exit_code = Some(*exit_code);
                line.document = Some(Cow::Borrowed(document));
            }
        }
        line
    }
}

impl TryFrom<Line<'_>> for EventRecord {
    type Error = UnreadableEvent;

    fn try_from(line: Line<'_>) -> Result<Self, UnreadableEvent> {
        let kind = line.event;
        let missing = |member| move || UnreadableEvent { event: kind.as_str(), member };
        let text = || line.text.ok_or_else(missing("text"));
        let event = match kind {
            EventKind::Queued => ExecutionEvent::Queued,
            EventKind::Start => ExecutionEvent::Started,
            EventKind::Omitted => ExecutionEvent::Omitted,
            EventKind::Log => ExecutionEvent::Log(LogEntry {
                level: line.level.ok_or_else(missing("level"))?,
                text: text()?.into_owned(),
                lossy: false,
                cut: false,
            }),
            EventKind::Output => ExecutionEvent::Output {
                stream: line.stream.ok_or_else(missing("stream"))?,
                data: {
                    let text = text()?;
                    line.encoding.ok_or_else(missing("encoding"))?.decode(&text).into()
                },
            },
            EventKind::Test => {
                ExecutionEvent::Test(line.case.ok_or_else(missing("case"))?.into_owned())
            }
            EventKind::Refused => {
                ExecutionEvent::HostRefused(line.host.ok_or_else(missing("host"))?.into_owned())
            }
            EventKind::Exit => ExecutionEvent::Exited(match line.signal {
                Some(signal) => Exit::Signal(signal),
                None => Exit::Code(line.exit_code.ok_or_else(missing("exit_code"))?),
            }),
            EventKind::End => {
                let exit_code = line.exit_code.ok_or_else(missing("exit_code"))?;
                let document = line.document.ok_or_else(missing("document"))?.into_owned();
                let name = line.name.map(Cow::into_owned);
                let event = Recorded::End { exit_code, document };
                return Ok(Self { seq: line.seq, time: line.time, name, event });
            }
        };
        let name = line.name.map(Cow::into_owned);
        Ok(Self { seq: line.seq, time: line.time, name, event: event.into() })
    }
}

impl Serialize for EventRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Line::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for EventRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(Line::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for EventRecord {
    fn schema_name() -> Cow<'static, str> {
        <Line<'_> as JsonSchema>::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        <Line<'_> as JsonSchema>::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_at_most_twice_as_long_in_json() {
        for (bytes, is_text) in [
            (&b"\x1b[31mred\n"[..], true),
            (b"\"\\\n\n\t", true),
            (b"a\0\0\0", false),
            (&[0; 4096], false),
        ] {
            let (text, encoding) = encode(bytes);
            assert_eq!(encoding == OutputEncoding::Utf8, is_text, "{text}");
            let json = serde_json::to_string(&text).unwrap();
            assert!(json.len() <= 2 * bytes.len() + 4, "{json}");
        }
        assert_eq!(escaped_len(b"\x7f\x01\"a"), 1 + 6 + 2 + 1);
    }

    #[test]
    fn events_read_back_as_written() {
        let document = RawValue::from_string(r#"{"status":"ok"}"#.to_owned()).unwrap();
        let host = RefusedHost { host: "a".into(), port: 1, reason: "r".into(), allow: Vec::new() };
        let output = |stream, data: &'static [u8]| {
            Recorded::Event(ExecutionEvent::Output { stream, data: Bytes::from_static(data) })
        };
        let entry = LogEntry { text: "x\n".to_owned(), ..LogEntry::from_line("[warn] x") };
        let events = [
            ExecutionEvent::Queued.into(),
            ExecutionEvent::Started.into(),
            ExecutionEvent::Log(entry).into(),
            output(OutputStream::Stdout, b"text"),
            output(OutputStream::Stderr, b"\xff"),
            ExecutionEvent::Omitted.into(),
            ExecutionEvent::HostRefused(host).into(),
            ExecutionEvent::Exited(Exit::Code(0)).into(),
            ExecutionEvent::Exited(Exit::Signal(15)).into(),
            Recorded::End { exit_code: 7, document },
        ];
        for (event, seq) in events.into_iter().zip(1..) {
            let name = Some("n".to_owned());
            let record = EventRecord { seq, time: Time::from_unix_millis(7), name, event };
            let json = serde_json::to_string(&record).unwrap();
            assert!(json.contains(&format!(r#""event":"{}""#, record.event.name())), "{json}");
            assert_eq!(json.contains("sandboxctl.events/1"), seq == 1, "{json}");
            let back: EventRecord = serde_json::from_str(&json).unwrap();
            assert_eq!(serde_json::to_string(&back).unwrap(), json);
        }
    }

    #[test]
    fn event_without_its_members_is_refused() {
        let line = r#"{"seq":1,"time":"2026-11-22T06:11:28Z","event":"log","level":"print"}"#;
        let error = serde_json::from_str::<EventRecord>(line).unwrap_err().to_string();
        assert!(error.contains("the event 'log' has no 'text'"), "{error}");
        let line = r#"{"seq":1,"time":"2026-11-22T06:11:28Z","event":"start","pid":1}"#;
        assert!(serde_json::from_str::<EventRecord>(line).is_err());
    }
}
