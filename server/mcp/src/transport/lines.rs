//! One client over a pair of byte streams, such as stdin and stdout: one JSON-RPC message a line.
//!
//! Everything is bounded. At most [`IN_FLIGHT`] requests of each [`Lane`] are worked on; more wait in a
//! queue, and when that is full, nothing is read. A cancellation passes the queue. A line that is too
//! long is skipped, and answered with its id where that was found. When the client's stream ends, what is
//! in progress is cancelled; a client that does not read is not waited for either.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, ErrorData, GetMeta as _,
    JsonRpcError, JsonRpcMessage, PaginatedRequestParams, RequestId, ServerJsonRpcMessage,
};
use rmcp::service::{RoleServer, RxJsonRpcMessage, ServerInitializeError, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::{ServerHandler, ServiceExt as _};
use sandbox_api::{IdReader, MessageLine, MessageLines, without_bom};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::lock;
use crate::server::McpServer;
use crate::tools::may_take_long;

/// The longest message.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// How many requests of a lane are worked on.
const IN_FLIGHT: usize = 64;
/// How many requests wait.
const MAX_QUEUED: usize = 4096;
/// How many bytes of requests wait.
const MAX_QUEUED_BYTES: usize = 32 << 20;
/// Size of one read.
const BUFFER_BYTES: usize = 64 << 10;
/// How long a client may take to read one message.
const READ_WAIT: Duration = Duration::from_secs(60);
/// How long it may take to read the last ones, after the end.
const END_WAIT: Duration = Duration::from_secs(2);

/// Why serving a client ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The client did not begin as the protocol says.
    #[error("the client's first message violates the protocol: {0}")]
    Handshake(String),
    /// The task that serves it has ended.
    #[error("internal error: the connection's task ended unexpectedly")]
    GivenUp,
}

/// Serves one client until its stream ends, or `stop` does.
///
/// # Errors
///
/// [`ServeError`] if the client is not one.
pub async fn serve_lines(
    server: McpServer,
    reader: impl AsyncRead + Send + Unpin + 'static,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let ended = server.connection().clone();
    serve(server, ended, reader, writer, stop).await
}

/// The same with any handler. `ended` ends its calls.
async fn serve(
    handler: impl ServerHandler,
    ended: CancellationToken,
    reader: impl AsyncRead + Send + Unpin + 'static,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let token = CancellationToken::new();
    let transport = Lines::new(reader, writer, ended.clone());
    let broken = transport.shared.broken.clone();
    let serve = async {
        match handler.serve_with_ct(transport, token.clone()).await {
            Ok(running) => running.waiting().await.map(drop).map_err(|_| ServeError::GivenUp),
            // A client that disconnects without a message is not an error.
            Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => {
                Ok(())
            }
            Err(error) => {
                let text: String = error.to_string().chars().take(200).collect();
                Err(ServeError::Handshake(text))
            }
        }
    };
    tokio::pin!(serve, stop);
    tokio::select! {
        served = &mut serve => return served,
        () = ended.cancelled() => {}
        () = &mut stop => token.cancel(),
    }
    if let Ok(served) = tokio::time::timeout(END_WAIT, &mut serve).await {
        return served;
    }
    broken.cancel();
    serve.await
}

/// What does not wait for each other: scripts that wait for a container, and other servers, hold up no file
/// tool, and none of them a ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    Ping,
    /// Calls that may take long.
    Long,
    Other,
}

impl Lane {
    fn of(request: &ClientRequest) -> Self {
        match request {
            ClientRequest::PingRequest(_) => Self::Ping,
            ClientRequest::CallToolRequest(call) if may_take_long(&call.params.name) => Self::Long,
            _ => Self::Other,
        }
    }
}

/// The transport: messages by line.
struct Lines<R, W> {
    reader: BufReader<R>,
    lines: MessageLines,
    /// There was an `initialize`.
    is_initialized: bool,
    /// Cancelled when the stream has ended: ends the calls.
    ended: CancellationToken,
    queue: VecDeque<Waiting>,
    queued_bytes: usize,
    shared: Arc<Shared<W>>,
    /// An answer to a line that is no message, on its way.
    refusal: Option<JoinHandle<()>>,
}

/// A request that waits.
struct Waiting {
    id: RequestId,
    lane: Lane,
    message: ClientJsonRpcMessage,
    bytes: usize,
}

/// How the SDK's refusal of a request outside of a session begins.
const NO_METADATA: &str = "request _meta is missing";

/// What is shared with the answers on their way.
struct Shared<W> {
    writer: tokio::sync::Mutex<Option<W>>,
    in_flight: Mutex<HashMap<RequestId, Lane>>,
    /// A request was answered.
    answered: Notify,
    /// The replies have no reader any more.
    broken: CancellationToken,
}

impl<W: AsyncWrite + Send + Unpin> Shared<W> {
    /// Writes a message. The id of the request that it answers is free from then on.
    async fn write(
        &self,
        message: &ServerJsonRpcMessage,
        answers: Option<&RequestId>,
    ) -> io::Result<()> {
        let line = match message {
            JsonRpcMessage::Error(JsonRpcError { id: None, error, .. }) => {
                serde_json::to_vec(&error_message(None, error))
            }
            message => serde_json::to_vec(message),
        }?;
        self.write_line(line, answers).await
    }

    async fn write_line(&self, mut line: Vec<u8>, answers: Option<&RequestId>) -> io::Result<()> {
        line.push(b'\n');
        let write = async {
            let mut writer = self.writer.lock().await;
            let Some(writer) = &mut *writer else { return Err(io::ErrorKind::NotConnected.into()) };
            // Before its reply is visible, and in order: replies that wait to be written are
            // bounded.
            if let Some(id) = answers {
                self.end(id);
            }
            let write = async {
                writer.write_all(&line).await?;
                writer.flush().await
            };
            tokio::time::timeout(READ_WAIT, write).await?
        };
        let written = tokio::select! {
            written = write => written,
            () = self.broken.cancelled() => Err(io::ErrorKind::BrokenPipe.into()),
        };
        if written.is_err() {
            self.broken.cancel();
        }
        written
    }

    fn end(&self, id: &RequestId) {
        lock(&self.in_flight).remove(id);
        self.answered.notify_one();
    }
}

/// An error. JSON-RPC gives what has no id that could be answered the id null.
fn error_message(id: Option<&Value>, error: &ErrorData) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": error })
}

/// A message with a method, and the id null: a request without a possible reply. It would silently
/// be read as a notification.
fn is_without_id(text: &[u8]) -> bool {
    fn is_null<'de, D: Deserializer<'de>>(id: D) -> Result<bool, D::Error> {
        Option::<IgnoredAny>::deserialize(id).map(|id| id.is_none())
    }
    #[derive(Deserialize)]
    struct Message {
        #[serde(default, deserialize_with = "is_null")]
        id: bool,
        method: Option<IgnoredAny>,
    }
    serde_json::from_slice::<Message>(text).is_ok_and(|it| it.id && it.method.is_some())
}

/// A request for a list whose params have another form: it would be read as one without any, and
/// answered with the whole list. Or such an `initialize`: it would be read as any request before one.
fn has_wrong_params(request: &ClientRequest, text: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Message {
        #[serde(rename = "params")]
        _params: Option<PaginatedRequestParams>,
    }
    let has_none = match request {
        ClientRequest::ListToolsRequest(list) => list.params.is_none(),
        ClientRequest::ListPromptsRequest(list) => list.params.is_none(),
        ClientRequest::ListResourcesRequest(list) => list.params.is_none(),
        ClientRequest::ListResourceTemplatesRequest(list) => list.params.is_none(),
        ClientRequest::ListSkillsRequest(list) => list.params.is_none(),
        // The revisions whose requests say which one they are of have no `initialize`.
        ClientRequest::CustomRequest(custom) => {
            return custom.method == "initialize" && custom.get_meta().protocol_version().is_none();
        }
        _ => false,
    };
    has_none && serde_json::from_slice::<Message>(text).is_err()
}

/// What it is answered.
fn no_id() -> ErrorData {
    ErrorData::invalid_request("the id of a request is a string or an integer, never null", None)
}

/// What a second request with an id in use is answered.
pub(super) fn id_in_progress() -> ErrorData {
    ErrorData::invalid_request("a request with this id is in progress", None)
}

/// The id of the request that a message answers. It may be reused as soon as that can be seen.
pub(super) fn answered_id(message: &ServerJsonRpcMessage) -> Option<&RequestId> {
    match message {
        JsonRpcMessage::Response(response) => Some(&response.id),
        JsonRpcMessage::Error(error) => error.id.as_ref(),
        JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
    }
}

/// A message of the protocol, or the reply to an invalid text.
pub(crate) fn message_of(text: &[u8]) -> Result<Box<ClientJsonRpcMessage>, Value> {
    let (id, error) = match parse(text) {
        Line::Message(message, _) => return Ok(message),
        Line::Refused(id, error) => (id, error),
        Line::Empty => (None, ErrorData::parse_error("not JSON: there is nothing", None)),
    };
    Err(error_message(id.as_ref(), &error))
}

/// How a message that is too long is answered, of which this is the beginning.
pub(crate) fn error_of_too_long(beginning: &[u8]) -> Value {
    error_message(IdReader::id_of(beginning).as_ref(), &too_long())
}

fn too_long() -> ErrorData {
    let message = format!("a message has at most {MAX_MESSAGE_BYTES} bytes");
    ErrorData::invalid_request(message, None)
}

/// What a line has.
enum Line {
    Message(Box<ClientJsonRpcMessage>, usize),
    Refused(Option<Value>, ErrorData),
    Empty,
}

fn parse(line: &[u8]) -> Line {
    let text = without_bom(line).trim_ascii();
    if text.is_empty() {
        return Line::Empty;
    }
    match serde_json::from_slice(text) {
        Ok(JsonRpcMessage::Notification(_)) if is_without_id(text) => Line::Refused(None, no_id()),
        Ok(JsonRpcMessage::Request(request)) if has_wrong_params(&request.request, text) => {
            let message = format!("invalid params of {}", request.request.method());
            let id = request.id.into_json_value();
            Line::Refused(Some(id), ErrorData::invalid_params(message, None))
        }
        Ok(message) => Line::Message(Box::new(message), text.len()),
        Err(error) if error.is_data() && is_without_id(text) => Line::Refused(None, no_id()),
        Err(error) => {
            // Its sender waits for an answer with its id.
            let id = IdReader::id_of(text);
            let is_wrong = |id: &Value| RequestId::deserialize(id).is_err();
            let refusal = match error.is_data() {
                true if id.as_ref().is_some_and(is_wrong) => no_id(),
                true => ErrorData::invalid_request("not a message of the protocol", None),
                false => ErrorData::parse_error(format!("not JSON: {error}"), None),
            };
            Line::Refused(id, refusal)
        }
    }
}

impl<R, W> Lines<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    /// `ended` is cancelled when there is no client any more.
    fn new(reader: R, writer: W, ended: CancellationToken) -> Self {
        Self {
            reader: BufReader::with_capacity(BUFFER_BYTES, reader),
            lines: MessageLines::new(MAX_MESSAGE_BYTES),
            is_initialized: false,
            ended,
            queue: VecDeque::new(),
            queued_bytes: 0,
            shared: Arc::new(Shared {
                writer: tokio::sync::Mutex::new(Some(writer)),
                in_flight: Mutex::default(),
                answered: Notify::new(),
                broken: CancellationToken::new(),
            }),
            refusal: None,
        }
    }

    /// The next line; none at the end. Cancel-safe.
    async fn next_line(&mut self) -> Option<Line> {
        loop {
            let buffer = match self.reader.fill_buf().await {
                Ok(buffer) if !buffer.is_empty() => buffer,
                Ok(_) => return None,
                Err(error) => {
                    tracing::warn!("the client's stream cannot be read: {error}");
                    return None;
                }
            };
            let (taken, line) = self.lines.take(buffer);
            self.reader.consume(taken);
            match line {
                Some(MessageLine::Whole(line)) => return Some(parse(&line)),
                Some(MessageLine::TooLong(id)) => return Some(Line::Refused(id, too_long())),
                None => {}
            }
        }
    }

    /// Answers a line that is no message. The next line is not read before that is written.
    fn refuse(&mut self, id: Option<Value>, error: ErrorData) {
        let shared = self.shared.clone();
        let line = error_message(id.as_ref(), &error).to_string().into_bytes();
        self.refusal = Some(tokio::spawn(async move {
            _ = shared.write_line(line, None).await;
        }));
    }

    /// A request that may be worked on now.
    fn admit(&mut self) -> Option<ClientJsonRpcMessage> {
        let mut in_flight = lock(&self.shared.in_flight);
        let has_room = [Lane::Ping, Lane::Long, Lane::Other]
            .map(|lane| in_flight.values().filter(|it| **it == lane).count() < IN_FLIGHT);
        let may_begin = |lane: Lane| has_room[lane as usize];
        let at = self.queue.iter().position(|waiting| may_begin(waiting.lane))?;
        let Waiting { id, lane, message, bytes } = self.queue.remove(at)?;
        self.queued_bytes -= bytes;
        in_flight.insert(id, lane);
        Some(message)
    }

    /// Takes a message of the client: one that does not wait is returned.
    fn accept(
        &mut self,
        message: ClientJsonRpcMessage,
        bytes: usize,
    ) -> Option<ClientJsonRpcMessage> {
        match &message {
            JsonRpcMessage::Request(request) => {
                let (id, lane) = (request.id.clone(), Lane::of(&request.request));
                self.is_initialized |=
                    matches!(request.request, ClientRequest::InitializeRequest(_));
                let is_known = lock(&self.shared.in_flight).contains_key(&id)
                    || self.queue.iter().any(|waiting| waiting.id == id);
                if is_known {
                    self.refuse(None, id_in_progress());
                } else {
                    self.queue.push_back(Waiting { id, lane, message, bytes });
                    self.queued_bytes += bytes;
                }
                None
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    if let Some(at) = self.queue.iter().position(|waiting| waiting.id == *id) {
                        // It has not begun: it never will.
                        if let Some(waiting) = self.queue.remove(at) {
                            self.queued_bytes -= waiting.bytes;
                        }
                        return None;
                    }
                    // Its answer, if there is one, is not sent.
                    self.shared.end(id);
                }
                Some(message)
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => Some(message),
        }
    }

    fn is_full(&self) -> bool {
        self.queue.len() >= MAX_QUEUED || self.queued_bytes >= MAX_QUEUED_BYTES
    }
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        mut item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let shared = self.shared.clone();
        if let JsonRpcMessage::Error(JsonRpcError { error, .. }) = &mut item
            && !self.is_initialized
            && error.code == ErrorCode::INVALID_PARAMS
            && error.message.starts_with(NO_METADATA)
        {
            // The SDK names what a request without a session lacks, and most clients want one.
            error.message = format!("there was no `initialize`, and the {}", error.message).into();
        }
        async move { shared.write(&item, answered_id(&item)).await }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if let Some(refusal) = &mut self.refusal {
                _ = refusal.await;
                self.refusal = None;
            }
            if let Some(message) = self.admit() {
                return Some(message);
            }
            let may_read = !self.is_full();
            let shared = self.shared.clone();
            let line = tokio::select! {
                () = shared.broken.cancelled() => {
                    self.ended.cancel();
                    return None;
                }
                () = shared.answered.notified() => continue,
                line = self.next_line(), if may_read => line,
            };
            match line {
                None => {
                    self.ended.cancel();
                    return None;
                }
                Some(Line::Empty) => {}
                Some(Line::Refused(id, error)) => self.refuse(id, error),
                Some(Line::Message(message, bytes)) => {
                    if let Some(message) = self.accept(*message, bytes) {
                        return Some(message);
                    }
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        drop(self.shared.writer.lock().await.take());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ListPromptsResult, Prompt};
    use rmcp::service::RequestContext;
    use tokio::io::{DuplexStream, duplex};
    use tokio::time::Instant;

    use super::*;

    fn lines() -> (Lines<DuplexStream, DuplexStream>, DuplexStream, BufReader<DuplexStream>) {
        let (input, reader) = duplex(1 << 20);
        let (writer, output) = duplex(1 << 20);
        let ended = CancellationToken::new();
        (Lines::new(reader, writer, ended), input, BufReader::new(output))
    }

    fn request(id: usize) -> String {
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list" }).to_string() + "\n"
    }

    fn id(message: &ClientJsonRpcMessage) -> u32 {
        match message {
            JsonRpcMessage::Request(request) => request.id.to_string().parse().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn answer(output: &mut BufReader<DuplexStream>) -> Value {
        let mut line = String::new();
        output.read_line(&mut line).await.unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[tokio::test]
    async fn line_that_is_no_message_is_answered_and_the_next_one_is_read() {
        let (mut lines, mut input, mut output) = lines();
        input.write_all(b"\n nonsense\n{\"id\":7,\"method\":5}\n[]\n").await.unwrap();
        input.write_all(request(1).as_bytes()).await.unwrap();
        assert_eq!(id(&lines.receive().await.unwrap()), 1);
        assert_eq!(answer(&mut output).await["error"]["code"], -32700);
        let wrong = answer(&mut output).await;
        assert_eq!((&wrong["error"]["code"], &wrong["id"]), (&json!(-32600), &json!(7)));
        assert_eq!(answer(&mut output).await["error"]["code"], -32600);
        // It would be taken for a notification.
        input.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}\n").await.unwrap();
        input.write_all(request(2).as_bytes()).await.unwrap();
        assert_eq!(id(&lines.receive().await.unwrap()), 2);
        let without_id = answer(&mut output).await;
        assert_eq!(without_id["error"], serde_json::to_value(no_id()).unwrap());
        assert_eq!(without_id.get("id"), Some(&Value::Null));
        drop(input);
        // The request that was read is in progress; there is nothing else.
        assert!(lines.receive().await.is_none());
    }

    /// They got the whole list.
    #[test]
    fn list_with_params_of_a_wrong_type_is_refused() {
        let ask = |method: &str, params: Value| {
            let message = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
            message_of(message.to_string().as_bytes()).err()
        };
        for list in [
            "tools/list", "prompts/list", "resources/list", "resources/templates/list",
            "skills/list",
        ] {
            for wrong in [json!({ "cursor": 5 }), json!({ "cursor": ["a"] })] {
                let error = ask(list, wrong.clone()).unwrap_or_else(|| panic!("{list} {wrong}"));
                assert_eq!((&error["id"], &error["error"]["code"]), (&json!(7), &json!(-32602)));
                assert_eq!(error["error"]["message"], format!("invalid params of {list}"));
            }
            for right in [json!({}), json!({ "cursor": "a" }), json!({ "_meta": {} }), json!(null)]
            {
                assert_eq!(ask(list, right.clone()), None, "{list} {right}");
            }
        }
        let message = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/list" }).to_string();
        assert!(message_of(message.as_bytes()).is_ok());
    }

    /// It was answered with what a request lacks that has no `initialize` before it.
    #[test]
    fn initialize_with_params_of_a_wrong_type_is_refused_as_that() {
        let whole = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": { "name": "x", "version": "1" },
        });
        let ask = |params: &Value| {
            let message =
                json!({ "jsonrpc": "2.0", "id": 7, "method": "initialize", "params": params });
            message_of(message.to_string().as_bytes()).err()
        };
        assert_eq!(ask(&whole), None);
        for wrong in ["protocolVersion", "capabilities", "clientInfo"] {
            let mut params = whole.clone();
            params[wrong] = json!(5);
            let error = ask(&params).unwrap();
            assert_eq!((&error["id"], &error["error"]["code"]), (&json!(7), &json!(-32602)));
            assert_eq!(error["error"]["message"], "invalid params of initialize");
        }
        // The revision without sessions has no such method.
        let meta = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28" });
        assert_eq!(ask(&json!({ "_meta": meta })), None);
    }

    /// What `JSON.stringify` and `json.dumps` write, and what no reader takes: its sender waited for ever.
    #[tokio::test]
    async fn request_that_cannot_be_read_is_answered_with_its_id() {
        let call = |content: &str| {
            let params = r#""name":"write_file","arguments":{"path":"a","content":"#;
            format!(
                r#"{{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{{{params}{content}}}}}}}"#
            )
        };
        let nested = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let last = r#"{"jsonrpc":"2.0","method":"tools/call","params":{"x":1e999},"id":77}"#;
        let wrong = r#"{"jsonrpc":"1.0","id":77,"method":"ping"}"#;
        let of_other_types = r#"{"jsonrpc":"2.0","id":77.5,"method":"ping"}"#;
        for (line, code, id) in [
            (call(r#""\ud83d""#), -32700, json!(77)),
            (call(&nested), -32700, json!(77)),
            (call("1e999"), -32700, json!(77)),
            (call("nonsense"), -32700, json!(77)),
            (last.to_owned(), -32700, json!(77)),
            (wrong.to_owned(), -32600, json!(77)),
            (of_other_types.to_owned(), -32600, json!(77.5)),
        ] {
            let (mut lines, mut input, mut output) = lines();
            input.write_all(format!("{line}\n{}", request(1)).as_bytes()).await.unwrap();
            assert_eq!(self::id(&lines.receive().await.unwrap()), 1, "{line}");
            let refused = answer(&mut output).await;
            assert_eq!((&refused["id"], &refused["error"]["code"]), (&id, &json!(code)), "{line}");
        }
    }

    #[tokio::test]
    async fn message_that_is_too_long_is_answered_with_its_id_wherever_that_stands() {
        for (head, tail) in [
            (r#"{"id":77,"method":"tools/call","params":""#, r#""}"#),
            (r#"{"method":"tools/call","params":""#, r#"","jsonrpc":"2.0","id":77}"#),
        ] {
            let (mut lines, mut input, mut output) = lines();
            let line = format!("{head}{}{tail}\n{}", "x".repeat(17 << 20), request(1));
            let writing = tokio::spawn(async move {
                input.write_all(line.as_bytes()).await.unwrap();
                input
            });
            assert_eq!(id(&lines.receive().await.unwrap()), 1);
            let refused = answer(&mut output).await;
            assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(77), &json!(-32600)));
            drop(writing.await.unwrap());
        }
    }

    #[tokio::test]
    async fn message_of_64_mib_is_skipped_and_answered() {
        let (mut lines, mut input, mut output) = lines();
        let writing = tokio::spawn(async move {
            let piece = vec![b'x'; 1 << 20];
            for _ in 0..64 {
                input.write_all(&piece).await.unwrap();
            }
            input.write_all(b"\n").await.unwrap();
            input.write_all(request(2).as_bytes()).await.unwrap();
            input
        });
        assert_eq!(id(&lines.receive().await.unwrap()), 2);
        let refused = answer(&mut output).await;
        assert_eq!(refused["error"]["message"], "a message has at most 16777216 bytes");
        assert_eq!(refused.get("id"), Some(&Value::Null));
        drop(writing.await.unwrap());
    }

    #[tokio::test]
    async fn requests_beyond_a_number_wait_and_cancellations_do_not() {
        let (mut lines, mut input, _output) = lines();
        for number in 0..IN_FLIGHT + 2 {
            input.write_all(request(number).as_bytes()).await.unwrap();
        }
        for number in 0..IN_FLIGHT {
            assert_eq!(id(&lines.receive().await.unwrap()), number as u32);
        }
        let cancel = |id: usize| {
            let params = json!({ "requestId": id });
            let method = "notifications/cancelled";
            json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string() + "\n"
        };
        // It waits: it is gone. The other is in progress: the handler hears of it.
        input.write_all(cancel(IN_FLIGHT).as_bytes()).await.unwrap();
        input.write_all(cancel(3).as_bytes()).await.unwrap();
        let cancelled = lines.receive().await.unwrap();
        assert!(matches!(cancelled, JsonRpcMessage::Notification(_)), "{cancelled:?}");
        // One that ended makes room for the next.
        assert_eq!(id(&lines.receive().await.unwrap()), IN_FLIGHT as u32 + 1);
    }

    #[tokio::test]
    async fn scripts_that_wait_hold_up_neither_a_ping_nor_a_file_tool() {
        let (mut lines, mut input, _output) = lines();
        let mut send = async |id: usize, method: &str, tool: Option<&str>| {
            let params = tool.map_or(json!({}), |tool| json!({ "name": tool }));
            let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
            input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        };
        for number in 0..2 * IN_FLIGHT {
            let tool = if number % 2 == 0 { "execute_script" } else { "exec" };
            send(number, "tools/call", Some(tool)).await;
        }
        send(1001, "tools/call", Some("stat")).await;
        send(1002, "ping", None).await;
        for number in 0..IN_FLIGHT {
            assert_eq!(id(&lines.receive().await.unwrap()), number as u32);
        }
        assert_eq!(id(&lines.receive().await.unwrap()), 1001);
        assert_eq!(id(&lines.receive().await.unwrap()), 1002);
        // One that ended makes room for the next of its lane.
        lines.shared.end(&RequestId::Number(5));
        assert_eq!(id(&lines.receive().await.unwrap()), IN_FLIGHT as u32);
    }

    #[tokio::test]
    async fn second_request_with_an_id_in_progress_is_refused() {
        let (mut lines, mut input, mut output) = lines();
        input.write_all(request(1).as_bytes()).await.unwrap();
        assert_eq!(id(&lines.receive().await.unwrap()), 1);
        input.write_all(request(1).as_bytes()).await.unwrap();
        input.write_all(request(2).as_bytes()).await.unwrap();
        assert_eq!(id(&lines.receive().await.unwrap()), 2);
        let refused = answer(&mut output).await;
        assert_eq!(refused["error"]["message"], "a request with this id is in progress");
    }

    #[tokio::test]
    async fn id_is_free_before_its_answer_can_be_read() {
        let ((mut input, reader), (writer, output)) = (duplex(1 << 20), duplex(64));
        let mut lines = Lines::new(reader, writer, CancellationToken::new());
        let mut output = BufReader::new(output);
        input.write_all(request(1).as_bytes()).await.unwrap();
        assert_eq!(id(&lines.receive().await.unwrap()), 1);
        // Longer than what the client has read of it.
        let error = ErrorData::internal_error("x".repeat(1 << 10), None);
        let answer = ServerJsonRpcMessage::error(error, Some(RequestId::Number(1)));
        let sending = tokio::spawn(lines.send(answer));
        output.fill_buf().await.unwrap();
        input.write_all(request(1).as_bytes()).await.unwrap();
        assert_eq!(id(&lines.receive().await.unwrap()), 1);
        sending.abort();
    }

    #[tokio::test]
    async fn request_before_initialize_is_refused_with_what_is_missing() {
        let ((mut input, reader), (writer, output)) = (duplex(1 << 20), duplex(1 << 20));
        let mut output = BufReader::new(output);
        let stop = std::future::pending();
        let served = tokio::spawn(serve(Long, CancellationToken::new(), reader, writer, stop));
        input.write_all(request(1).as_bytes()).await.unwrap();
        let refused = answer(&mut output).await;
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(
            message.starts_with("there was no `initialize`, and the request _meta"),
            "{message}"
        );
        drop(input);
        served.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn end_of_the_stream_ends_the_calls_and_begins_none_that_waits() {
        let (mut lines, mut input, _output) = lines();
        for number in 0..IN_FLIGHT + 1 {
            input.write_all(request(number).as_bytes()).await.unwrap();
        }
        for _ in 0..IN_FLIGHT {
            lines.receive().await.unwrap();
        }
        assert!(!lines.ended.is_cancelled());
        drop(input);
        assert!(lines.receive().await.is_none());
        assert!(lines.ended.is_cancelled());
    }

    #[tokio::test]
    async fn client_that_does_not_read_any_more_ends_the_stream() {
        let (mut lines, input, output) = lines();
        drop(output);
        let error = ErrorData::internal_error("x", None);
        lines.send(ServerJsonRpcMessage::error(error, None)).await.unwrap_err();
        assert!(lines.receive().await.is_none());
        drop(input);
    }

    /// A server whose list of prompts is longer than the streams here.
    struct Long;

    impl ServerHandler for Long {
        async fn list_prompts(
            &self,
            _request: Option<PaginatedRequestParams>,
            _context: RequestContext<RoleServer>,
        ) -> Result<ListPromptsResult, ErrorData> {
            let prompt = Prompt::new("x".repeat(1 << 10), None::<String>, None);
            Ok(ListPromptsResult::with_all_items(vec![prompt]))
        }
    }

    /// A client that asks for more than it reads, and what it is served by.
    async fn client_that_does_not_read(
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> (DuplexStream, DuplexStream, JoinHandle<Result<(), ServeError>>) {
        let ((mut input, reader), (writer, output)) = (duplex(1 << 20), duplex(64));
        let ended = CancellationToken::new();
        let served = tokio::spawn(serve(Long, ended, reader, writer, stop));
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" },
        });
        let mut output = BufReader::new(output);
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        input.write_all(format!("{hello}\n{ready}\n").as_bytes()).await.unwrap();
        answer(&mut output).await;
        for id in 1..=2 {
            let list = json!({ "jsonrpc": "2.0", "id": id, "method": "prompts/list" });
            input.write_all(format!("{list}\n").as_bytes()).await.unwrap();
        }
        // The first one is on its way.
        output.fill_buf().await.unwrap();
        (input, output.into_inner(), served)
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_does_not_read_holds_up_no_end() {
        let begun = Instant::now();
        let (input, output, served) = client_that_does_not_read(std::future::pending()).await;
        drop(input);
        served.await.unwrap().unwrap();
        assert_eq!(begun.elapsed(), END_WAIT);
        drop(output);

        let (begun, stop) = (Instant::now(), CancellationToken::new());
        let (input, output, served) =
            client_that_does_not_read(stop.clone().cancelled_owned()).await;
        stop.cancel();
        served.await.unwrap().unwrap();
        assert_eq!(begun.elapsed(), END_WAIT);
        drop((input, output));

        // It is there, and does not read for long.
        let begun = Instant::now();
        let (input, output, served) = client_that_does_not_read(std::future::pending()).await;
        served.await.unwrap().unwrap();
        assert!(begun.elapsed() >= READ_WAIT && begun.elapsed() <= READ_WAIT + END_WAIT);
        drop((input, output));
    }
}
