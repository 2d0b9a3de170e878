//! JSON-RPC's envelope, decoded strictly, and the messages of both directions.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::frame::{FrameError, encode};
use crate::limits::MAX_FRAME_BYTES;
use crate::message::{
    CaseEnd, Changes, Chunk, Close, Closed, Connect, Connected, Credit, Exited, HostCall, Log,
    Page, Refused, Request, Started, Touched, Watched,
};
use crate::{Base64, WireError};

/// A line that is not a message of this protocol.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Not a JSON-RPC envelope, or a shape that is not used in this direction.
    #[error("malformed envelope: {0}")]
    Envelope(String),
    /// The envelope is valid, its params are not. For a request its `id` is known, and the answer
    /// is an error; a notification has none.
    #[error("malformed params of '{method}': {source}")]
    Params {
        /// The method.
        method: String,
        /// The id, if the message is a request.
        id: Option<u64>,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// [`ToAgent::Heartbeat`] as a line, with its newline.
pub const HEARTBEAT: &[u8] = b"\n";

/// A message from the controller to the agent.
#[derive(Debug, Clone, PartialEq)]
pub enum ToAgent {
    /// A request. It gets exactly one answer.
    Request {
        /// Chosen by the controller, unique in a session.
        id: u64,
        /// The request itself.
        request: Request,
        /// The number of the stream that it opens, which is not in use; `None` for a request that opens
        /// none, or names several.
        stream: Option<u32>,
    },
    /// A piece of a stream to the agent.
    Chunk(Chunk),
    /// Allows the agent to send more of a stream.
    Credit(Credit),
    /// The connection of a tunnel is established.
    Connected(Connected),
    /// A tunnel has ended.
    Closed(Closed),
    /// The controller is alive: an empty line. It is one byte, so no write can split it.
    Heartbeat,
}

/// A message from the agent to the controller.
#[derive(Debug)]
pub enum FromAgent<'a> {
    /// The answer to a request. The request with this id determines how to decode it.
    Reply {
        /// The request's id.
        id: u64,
        /// The raw answer, or the error.
        result: Result<&'a RawValue, WireError>,
    },
    /// A log entry.
    Log(Log),
    /// A test case has ended.
    Case(CaseEnd),
    /// A path is about to change.
    Touched(Touched),
    /// A script was refused access to a path.
    Refused(Refused),
    /// Entries of a list.
    Page(Page),
    /// The program of a kept command has been executed.
    Started(Started),
    /// The program of a kept command has ended.
    Exited(Exited),
    /// A watch is on.
    Watched(Watched),
    /// What has changed in a watched directory.
    Changes(Changes),
    /// A script calls the host.
    Call(HostCall),
    /// A piece of a stream from the agent.
    Chunk(Chunk),
    /// Allows the controller to send more of a stream.
    Credit(Credit),
    /// A command requests a connection.
    Connect(Connect),
    /// The agent's last message for a tunnel.
    Close(Close),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Incoming<'a> {
    #[serde(rename = "jsonrpc")]
    _jsonrpc: Version,
    // An explicit null is not an id: JSON-RPC would treat it as the answer to a broken request.
    #[serde(default, deserialize_with = "present")]
    id: Option<u64>,
    #[serde(default, deserialize_with = "present")]
    stream: Option<u32>,
    #[serde(default, borrow)]
    method: Option<&'a RawValue>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "present")]
    error: Option<WireError>,
}

#[derive(Serialize, Deserialize)]
enum Version {
    #[serde(rename = "2.0")]
    V2,
}

/// Decodes a notification: its method is the name of its variant.
macro_rules! notification {
    ($name:ident, $raw:ident: $($variant:ident),+) => {{
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Method {
            $($variant),+
        }
        match method::<Method>($name)? {
            $(Method::$variant => params($name, $raw).map(Self::$variant),)+
        }
    }};
}

#[derive(Serialize)]
struct Outgoing<'a, T> {
    jsonrpc: Version,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<u32>,
    method: &'a str,
    params: T,
}

#[derive(Serialize)]
struct Response<T> {
    jsonrpc: Version,
    id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<WireError>,
}

fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

fn envelope(line: &str) -> Result<Incoming<'_>, DecodeError> {
    serde_json::from_str(line).map_err(|error| DecodeError::Envelope(error.to_string()))
}

fn method<'a, M: Deserialize<'a>>(raw: &'a RawValue) -> Result<M, DecodeError> {
    serde_json::from_str(raw.get()).map_err(|error| DecodeError::Envelope(error.to_string()))
}

fn params<T: DeserializeOwned>(method: &RawValue, raw: &RawValue) -> Result<T, DecodeError> {
    serde_json::from_str(raw.get()).map_err(|source| params_error(method, None, source))
}

fn params_error(method: &RawValue, id: Option<u64>, source: serde_json::Error) -> DecodeError {
    // Use the known name, however it was escaped: it has just been parsed as one.
    let method = serde_json::from_str(method.get()).unwrap_or_default();
    DecodeError::Params { method, id, source }
}

fn shape<T>(what: &str) -> Result<T, DecodeError> {
    Err(DecodeError::Envelope(what.to_owned()))
}

impl ToAgent {
    /// Decodes a line.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]. The session can continue only after [`DecodeError::Params`] with an id.
    pub fn decode(line: &str) -> Result<Self, DecodeError> {
        if line.is_empty() {
            return Ok(Self::Heartbeat);
        }
        if let Some(chunk) = decode_chunk(line) {
            return Ok(Self::Chunk(chunk));
        }
        let it = envelope(line)?;
        match (it.id, it.stream, it.method, it.params, it.result, it.error) {
            (Some(id), stream, Some(name), Some(raw), None, None) => {
                let request = match Request::decode(&method::<String>(name)?, raw) {
                    Some(request) => request,
                    None => return shape("an unknown method"),
                };
                let request = request.and_then(|request| match (request.has_stream(), stream) {
                    (true, None) => Err(serde_json::Error::missing_field("stream")),
                    (false, Some(_)) => Err(serde_json::Error::unknown_field("stream", &[])),
                    _ => Ok(request),
                });
                let request = request.map_err(|source| params_error(name, Some(id), source))?;
                Ok(Self::Request { id, request, stream })
            }
            (None, None, Some(name), Some(raw), None, None) => {
                notification!(name, raw: Chunk, Credit, Connected, Closed)
            }
            _ => shape("neither a request nor a notification"),
        }
    }

    /// Encodes the line, with its newline.
    ///
    /// # Errors
    ///
    /// [`FrameError`] if the agent would refuse it.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        match self {
            Self::Request { id, request, stream } => {
                let params =
                    request.params().map_err(|error| FrameError::Encode(error.to_string()))?;
                encode(&Outgoing {
                    jsonrpc: Version::V2,
                    id: Some(*id),
                    stream: *stream,
                    method: request.method(),
                    params,
                })
            }
            Self::Chunk(chunk) => encode_chunk(chunk),
            Self::Credit(credit) => notification("credit", credit),
            Self::Connected(connected) => notification("connected", connected),
            Self::Closed(closed) => notification("closed", closed),
            Self::Heartbeat => Ok(HEARTBEAT.to_vec()),
        }
    }
}

impl<'a> FromAgent<'a> {
    /// Decodes a line.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]: the agent broke the protocol, and the session ends.
    pub fn decode(line: &'a str) -> Result<Self, DecodeError> {
        if let Some(chunk) = decode_chunk(line) {
            return Ok(Self::Chunk(chunk));
        }
        let it = envelope(line)?;
        match (it.id, it.stream, it.method, it.params, it.result, it.error) {
            (Some(id), None, None, None, Some(raw), None) => {
                Ok(Self::Reply { id, result: Ok(raw) })
            }
            (Some(id), None, None, None, None, Some(error)) => {
                Ok(Self::Reply { id, result: Err(error) })
            }
            (None, None, Some(name), Some(raw), None, None) => notification!(
                name, raw: Log, Case, Touched, Refused, Page, Started, Exited, Watched, Changes,
                Call, Chunk, Credit, Connect, Close
            ),
            _ => shape("neither an answer nor a notification"),
        }
    }

    /// Encodes a notification. For an answer use [`FromAgent::encode_reply`].
    ///
    /// # Errors
    ///
    /// [`FrameError`] if the controller would refuse it.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        match self {
            Self::Reply { id, result } => Self::encode_reply(*id, result.clone()),
            Self::Log(log) => notification("log", log),
            Self::Case(case) => notification("case", case),
            Self::Touched(touched) => notification("touched", touched),
            Self::Refused(refused) => notification("refused", refused),
            Self::Page(page) => notification("page", page),
            Self::Started(started) => notification("started", started),
            Self::Exited(exited) => notification("exited", exited),
            Self::Watched(watched) => notification("watched", watched),
            Self::Changes(changes) => notification("changes", changes),
            Self::Call(call) => notification("call", call),
            Self::Chunk(chunk) => encode_chunk(chunk),
            Self::Credit(credit) => notification("credit", credit),
            Self::Connect(connect) => notification("connect", connect),
            Self::Close(close) => notification("close", close),
        }
    }

    /// Encodes the answer to request `id`.
    ///
    /// # Errors
    ///
    /// [`FrameError`] if the controller would refuse it.
    pub fn encode_reply<T: Serialize>(
        id: u64,
        result: Result<T, WireError>,
    ) -> Result<Vec<u8>, FrameError> {
        let (result, error) = match result {
            Ok(result) => (Some(result), None),
            Err(error) => (None, Some(error)),
        };
        encode(&Response { jsonrpc: Version::V2, id, result, error })
    }
}

/// What surrounds the members of a chunk in its line.
const CHUNK_STREAM: &str = r#"{"jsonrpc":"2.0","method":"chunk","params":{"stream":"#;
const CHUNK_SEQ: &str = r#","seq":"#;
const CHUNK_DATA: &str = r#","data":""#;
const CHUNK_LAST: &str = r#"","last":"#;

/// The line that [`notification`] would write. All content is encoded here: serde would write it in
/// small pieces, scan each byte for JSON escapes, and scan it again for nesting.
fn encode_chunk(chunk: &Chunk) -> Result<Vec<u8>, FrameError> {
    const AROUND: usize = 128;
    let Chunk { stream, seq, data, last } = chunk;
    let mut line = Vec::with_capacity(data.0.len() / 3 * 4 + AROUND);
    let head = format!("{CHUNK_STREAM}{stream}{CHUNK_SEQ}{seq}{CHUNK_DATA}");
    line.extend_from_slice(head.as_bytes());
    data.write_to(&mut line);
    line.extend_from_slice(format!("{CHUNK_LAST}{last}}}}}\n").as_bytes());
    if line.len() > MAX_FRAME_BYTES { Err(FrameError::TooLong) } else { Ok(line) }
}

/// Decodes a line as [`encode_chunk`] writes it, and no other: serde would read its content three
/// times.
fn decode_chunk(line: &str) -> Option<Chunk> {
    let (stream, rest) = line.strip_prefix(CHUNK_STREAM)?.split_once(CHUNK_SEQ)?;
    let (seq, rest) = rest.split_once(CHUNK_DATA)?;
    let (data, last) = rest.rsplit_once(CHUNK_LAST)?;
    let last = match last {
        "true}}" => true,
        "false}}" => false,
        _ => return None,
    };
    // A number as JSON has it: without a sign or leading zeros.
    let is_number = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'))
    };
    if !is_number(stream) || !is_number(seq) {
        return None;
    }
    // Base64 has no character that JSON escapes.
    Some(Chunk {
        stream: stream.parse().ok()?,
        seq: seq.parse().ok()?,
        data: Base64::from_text(data)?,
        last,
    })
}

fn notification(method: &str, params: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    encode(&Outgoing { jsonrpc: Version::V2, id: None, stream: None, method, params })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LIST_PAGE;
    use crate::message::{
        Cancel, ControlReply, Edit, Entry, EntryKind, Glob, List, Read, Rename, Shutdown,
        Timestamp, Write, WriteMode,
    };
    use proptest::prelude::*;
    use std::num::NonZeroU64;

    fn requests(
        name: &[u8],
        text: &str,
        number: u64,
        some: Option<u64>,
        flag: bool,
    ) -> [Request; 6] {
        let limit = some;
        let write =
            Write { mode: WriteMode::Append, parents: flag, atomic: !flag, ..Write::new(name) };
        [
            Read { offset: number, limit, ..Read::new(name) }.into(),
            write.into(),
            Edit {
                count: number.try_into().unwrap_or(NonZeroU64::MIN),
                ..Edit::new(name, text, text)
            }
            .into(),
            List { recursive: flag, max_depth: some, limit, ..List::new(name) }.into(),
            Glob { path: name.into(), globs: vec![text.to_owned()], limit, ..Glob::new(text) }
                .into(),
            Rename { overwrite: flag, ..Rename::new(name, name) }.into(),
        ]
    }

    #[test]
    fn both_steps_refuse_what_they_do_not_know() {
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"method":"shutdown","params":{},"more":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"shutdown"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"shutdown","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":-1,"method":"shutdown","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":"1","method":"shutdown","params":{}}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"shutdown","params":{}}"#,
            r#"{"id":1,"method":"shutdown","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"shut","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"shutdown","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","method":"shutdown","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"stream":null,"method":"read","params":{"path":"a"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"stream":-1,"method":"read","params":{"path":"a"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"stream":1,"stream":2,"method":"read","params":{"path":"a"}}"#,
            r#"{"jsonrpc":"2.0","stream":1,"method":"credit","params":{"stream":1,"bytes":1}}"#,
            r#"[]"#,
            " ",
            "\r",
        ] {
            let error = ToAgent::decode(line).unwrap_err();
            assert!(matches!(error, DecodeError::Envelope(_)), "{line}: {error}");
        }
        let error = ToAgent::decode(
            r#"{"jsonrpc":"2.0","id":7,"method":"cancel","params":{"id":1,"x":2}}"#,
        )
        .unwrap_err();
        assert!(matches!(error, DecodeError::Params { id: Some(7), .. }), "{error}");
    }

    #[test]
    fn only_the_controller_sends_heartbeats() {
        assert_eq!(ToAgent::decode("").unwrap(), ToAgent::Heartbeat);
        assert_eq!(ToAgent::Heartbeat.encode().unwrap(), HEARTBEAT);
        assert!(matches!(FromAgent::decode(""), Err(DecodeError::Envelope(_))));
    }

    #[test]
    fn an_answer_has_a_result_or_an_error_and_an_id() {
        for line in [
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"","data":{"kind":"busy"}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"log","params":{"level":"print","text":""}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":null}"#,
            r#"{"jsonrpc":"2.0","id":1,"stream":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","stream":1,"method":"credit","params":{"stream":1,"bytes":1}}"#,
        ] {
            assert!(FromAgent::decode(line).is_err(), "{line}");
        }
    }

    #[test]
    fn messages_come_back_as_they_went() {
        for request in [Request::from(Cancel { id: 3, at_once: false }), Request::from(Shutdown {})]
        {
            let message = ToAgent::Request { id: u64::MAX, request, stream: None };
            let line = String::from_utf8(message.encode().unwrap()).unwrap();
            assert_eq!(ToAgent::decode(line.trim_end()).unwrap(), message);
        }
        let line = FromAgent::encode_reply(4, Ok(ControlReply { found: true })).unwrap();
        let line = String::from_utf8(line).unwrap();
        let FromAgent::Reply { id: 4, result: Ok(raw) } =
            FromAgent::decode(line.trim_end()).unwrap()
        else {
            panic!("{line}")
        };
        assert_eq!(raw.get(), r#"{"found":true}"#);
    }

    #[test]
    fn what_becomes_of_a_kept_command_is_notified_by_its_agent_alone() {
        for line in [
            r#"{"jsonrpc":"2.0","method":"started","params":{"request":4,"pid":15}}"#,
            r#"{"jsonrpc":"2.0","method":"exited","params":{"request":4,"end":{"signaled":9},"stopped":"timeout"}}"#,
        ] {
            let message = FromAgent::decode(line).unwrap();
            assert_eq!(message.encode().unwrap(), format!("{line}\n").into_bytes());
            assert!(ToAgent::decode(line).is_err(), "{line}");
        }
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"method":"started","params":{"request":4,"pid":15}}"#,
            r#"{"jsonrpc":"2.0","method":"started","params":{"request":4,"pid":-1}}"#,
            r#"{"jsonrpc":"2.0","method":"started","params":{"request":4,"pid":15,"more":1}}"#,
            r#"{"jsonrpc":"2.0","method":"exited","params":{"request":4,"end":{"exited":256}}}"#,
            r#"{"jsonrpc":"2.0","method":"exited","params":{"request":4}}"#,
        ] {
            assert!(FromAgent::decode(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_method_is_named_as_it_is_however_it_was_escaped() {
        let line = r#"{"jsonrpc":"2.0","id":7,"method":"\u0063ancel","params":{}}"#;
        let error = ToAgent::decode(line).unwrap_err();
        assert!(
            matches!(&error, DecodeError::Params { method, .. } if method == "cancel"),
            "{error}"
        );
    }

    #[test]
    fn numbers_of_args_arrive_as_they_were_written() {
        for (text, number) in
            [("31.245270191439438", 31.245270191439438_f64), ("5e-324", 5e-324), ("0.3", 0.3)]
        {
            let line = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"run","params":{{"source":"","args":{{"x":{text}}},"timeout_ms":1}}}}"#
            );
            let ToAgent::Request { request: Request::Run(run), .. } =
                ToAgent::decode(&line).unwrap()
            else {
                panic!("{line}")
            };
            assert_eq!(run.args["x"].as_f64().map(f64::to_bits), Some(number.to_bits()), "{text}");
        }
    }

    #[test]
    fn the_longest_page_fits_into_a_frame() {
        use crate::limits::LIST_PAGE_BYTES;
        use crate::path::MAX_PATH_BYTES;
        let longest = Entry {
            name: "\u{1}".repeat(MAX_PATH_BYTES).into(),
            kind: EntryKind::Directory,
            size: u64::MAX,
            modified: Some(Timestamp { seconds: i64::MIN, nanoseconds: 999_999_999 }),
            details: None,
        };
        let short =
            Entry { name: "a".repeat(LIST_PAGE_BYTES / LIST_PAGE).into(), ..longest.clone() };
        let mut entries = vec![short; LIST_PAGE - 1];
        entries.push(longest);
        let names: usize = entries.iter().map(|entry| entry.name.encoded_len()).sum();
        assert!(names > LIST_PAGE_BYTES, "the last one ends the page");
        let line = FromAgent::Page(Page { request: u64::MAX, entries }).encode().unwrap();
        assert!(line.len() <= MAX_FRAME_BYTES);
    }

    #[test]
    fn a_file_operation_takes_exactly_its_options() {
        let right = r#"{"path":"a","parents":true}"#;
        let line = |params: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":7,"method":"mkdir","params":{params}}}"#)
        };
        assert!(ToAgent::decode(&line(right)).is_ok());
        assert!(ToAgent::decode(&line(r#"{"path":"a"}"#)).is_ok(), "the rest has defaults");
        for wrong in [
            r#"{"parents":true}"#,
            r#"{"path":"a","parents":1}"#,
            r#"{"path":"a","parents":true,"mode":511}"#,
            r#"{"path":1,"parents":true}"#,
            r#"{"path":{"b64":"?"},"parents":true}"#,
            r#"{"path":{"b64":"YQ==","text":"a"},"parents":true}"#,
            r#"{"path":"a","path":"b","parents":true}"#,
        ] {
            let error = ToAgent::decode(&line(wrong)).unwrap_err();
            assert!(matches!(error, DecodeError::Params { id: Some(7), .. }), "{wrong}: {error}");
        }
    }

    #[test]
    fn the_number_of_a_stream_is_beside_the_operations_that_open_one() {
        let line = |stream: &str, method: &str, params: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":7,{stream}"method":"{method}","params":{params}}}"#)
        };
        let path = r#"{"path":"a"}"#;
        for method in ["read", "view", "write"] {
            let read = ToAgent::decode(&line(r#""stream":3,"#, method, path)).unwrap();
            assert!(matches!(read, ToAgent::Request { stream: Some(3), .. }), "{method}");
        }
        for (wrong, why) in [
            (line("", "read", path), "missing field `stream`"),
            (line("", "read", r#"{"path":"a","stream":3}"#), "unknown field `stream`"),
            (line(r#""stream":3,"#, "stat", path), "unknown field `stream`"),
            (line(r#""stream":3,"#, "cancel", r#"{"id":1}"#), "unknown field `stream`"),
        ] {
            let error = ToAgent::decode(&wrong).unwrap_err();
            assert!(matches!(error, DecodeError::Params { id: Some(7), .. }), "{wrong}: {error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    proptest! {
        #[test]
        fn file_operations_come_back_as_they_went(
            name in any::<Vec<u8>>(),
            text in any::<String>(),
            number in any::<u64>(),
            some in any::<Option<u64>>(),
            flag in any::<bool>(),
        ) {
            for request in requests(&name, &text, number, some, flag) {
                let stream = request.has_stream().then_some(3);
                let message = ToAgent::Request { id: number, request, stream };
                let line = String::from_utf8(message.encode().unwrap()).unwrap();
                prop_assert_eq!(ToAgent::decode(line.trim_end()).unwrap(), message);
            }
        }

        #[test]
        fn a_chunk_is_written_as_serde_would_and_comes_back_as_it_went(
            stream in any::<u32>(),
            seq in any::<u64>(),
            data in proptest::collection::vec(any::<u8>(), 0..300),
            last in any::<bool>(),
        ) {
            let chunk = Chunk { stream, seq, data: Base64(data), last };
            let line = ToAgent::Chunk(chunk.clone()).encode().unwrap();
            prop_assert_eq!(&line, &FromAgent::Chunk(chunk.clone()).encode().unwrap());
            prop_assert_eq!(&line, &notification("chunk", &chunk).unwrap());
            let line = String::from_utf8(line).unwrap();
            prop_assert_eq!(ToAgent::decode(line.trim_end()).unwrap(), ToAgent::Chunk(chunk));
        }

        #[test]
        fn a_page_of_entries_comes_back_as_it_went(
            names in proptest::collection::vec(any::<Vec<u8>>(), 0..8),
            seconds in any::<i64>(),
        ) {
            let entries = names.into_iter().map(|name| Entry {
                name: name.into(),
                kind: EntryKind::File,
                size: u64::MAX,
                modified: Some(Timestamp { seconds, nanoseconds: 999_999_999 }),
                details: None,
            });
            let page = Page { request: 1, entries: entries.collect() };
            let line = FromAgent::Page(page.clone()).encode().unwrap();
            let line = String::from_utf8(line).unwrap();
            let FromAgent::Page(read) = FromAgent::decode(line.trim_end()).unwrap() else {
                panic!("{line}")
            };
            prop_assert_eq!(read, page);
        }

        #[test]
        fn garbage_is_refused_and_never_panics(line in "\\PC{1,200}") {
            prop_assert!(ToAgent::decode(&line).is_err());
            prop_assert!(FromAgent::decode(&line).is_err());
        }

        #[test]
        fn a_broken_message_never_panics(at in 0_usize..60, byte in 0_u8..128) {
            let mut line = br#"{"jsonrpc":"2.0","id":7,"method":"cancel","params":{"id":1}}"#.to_vec();
            line[at.min(58)] = byte;
            if let Ok(line) = std::str::from_utf8(&line) {
                _ = ToAgent::decode(line);
                _ = FromAgent::decode(line);
            }
        }
    }
}
