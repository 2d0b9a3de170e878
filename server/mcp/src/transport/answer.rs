//! How a request over HTTP is answered: with JSON, or where something else comes before its answer, with
//! events. Clients exist that take an event of 1 MiB at most, and answers as JSON of any length.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use futures_util::StreamExt as _;
use memchr::memmem;
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::tools::may_take_long;

const JSON_TYPE: &str = "application/json";
const JSON: HeaderValue = HeaderValue::from_static(JSON_TYPE);
const EVENTS: &str = "text/event-stream";
/// What a client takes that does not say it.
const ANYTHING: &str = "*/*";
/// What ends an event.
const EVENT_END: &[u8] = b"\n\n";

/// What a request is answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerForm {
    /// Events as they come.
    Events,
    /// JSON, unless something else comes before the answer.
    JsonIfAlone,
    /// JSON, and nothing else is sent: the client takes no events.
    Json,
}

impl AnswerForm {
    /// The form for a request with these headers. What takes long is answered with events, which keep the
    /// connection alive and can be resumed.
    pub fn of(message: &ClientJsonRpcMessage, headers: &HeaderMap) -> Self {
        let JsonRpcMessage::Request(request) = message else { return Self::Events };
        let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|it| it.to_str().ok());
        let accepted = accepted.flat_map(|it| it.split(','));
        let mut kinds: Vec<_> =
            accepted.map(|kind| kind.split(';').next().unwrap_or_default().trim()).collect();
        if !headers.contains_key(header::ACCEPT) {
            kinds.push(ANYTHING);
        }
        let takes = |what: &str| kinds.contains(&what);
        // Events are for clients that name them.
        let takes_json = [JSON_TYPE, "application/*", ANYTHING].into_iter().any(takes);
        match &request.request {
            // It has no answer before its client goes away.
            ClientRequest::SubscriptionsListenRequest(_) => Self::Events,
            _ if takes_json && !takes(EVENTS) => Self::Json,
            ClientRequest::CallToolRequest(call) if may_take_long(&call.params.name) => {
                Self::Events
            }
            _ => Self::JsonIfAlone,
        }
    }

    /// The headers with which the protocol's SDK serves the request.
    pub fn ask(self, headers: &mut HeaderMap) {
        if self == Self::Json {
            let both = HeaderValue::from_static("application/json, text/event-stream");
            headers.insert(header::ACCEPT, both);
        }
    }

    /// The SDK's response in this form.
    pub async fn apply(self, response: Response) -> Response {
        let is_stream = response.headers().get(header::CONTENT_TYPE).is_some_and(|it| it == EVENTS);
        if self == Self::Events || !is_stream {
            return response;
        }
        let (mut parts, body) = response.into_parts();
        let mut pieces = body.into_data_stream();
        // What was read, of which events end before `read`.
        let (mut held, mut read) = (Vec::new(), 0);
        while let Some(Ok(piece)) = pieces.next().await {
            let from = held.len().saturating_sub(1).max(read);
            held.extend_from_slice(&piece);
            let mut is_alone = true;
            for end in memmem::find_iter(&held[from..], EVENT_END).map(|at| from + at) {
                let event = data(&held[read..end]);
                read = end + EVENT_END.len();
                match event {
                    Some(message) if is_answer(message) => {
                        let answer = Bytes::copy_from_slice(message);
                        parts.headers.insert(header::CONTENT_TYPE, JSON);
                        // As a stream: its share of the memory for answers is waited for.
                        let once = futures_util::stream::iter([Ok::<_, axum::Error>(answer)]);
                        return Response::from_parts(parts, Body::from_stream(once));
                    }
                    Some(_) => is_alone = false,
                    None => {}
                }
            }
            match self {
                // It has no reader.
                Self::Json => _ = held.drain(..std::mem::take(&mut read)),
                _ if !is_alone => break,
                _ => {}
            }
        }
        let first = futures_util::stream::iter([Ok(Bytes::from(held))]);
        Response::from_parts(parts, Body::from_stream(first.chain(pieces)))
    }
}

/// The message of an event; none if it has none, as the first one of a stream that can be resumed.
fn data(event: &[u8]) -> Option<&[u8]> {
    let mut lines = event.split(|byte| *byte == b'\n');
    let data = lines.find_map(|line| line.strip_prefix(b"data:"))?.trim_ascii();
    (!data.is_empty()).then_some(data)
}

/// Whether a message answers a request.
fn is_answer(message: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Message {
        method: Option<IgnoredAny>,
    }
    serde_json::from_slice::<Message>(message).is_ok_and(|message| message.method.is_none())
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use serde_json::{Value, json};

    use super::*;

    fn form(message: Value, accept: &str) -> AnswerForm {
        let message = serde_json::from_value(message).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        AnswerForm::of(&message, &headers)
    }

    #[test]
    fn scripts_and_commands_are_answered_with_events_and_all_else_with_json() {
        let call = |tool: &str| {
            let params = json!({ "name": tool, "arguments": {} });
            json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params })
        };
        let read = json!({
            "jsonrpc": "2.0", "id": 1, "method": "resources/read",
            "params": { "uri": "sandbox:///io/a" },
        });
        let listen = json!({
            "jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen",
            "params": { "notifications": {} },
        });
        let both = "application/json, text/event-stream";
        for (message, accept, expected) in [
            (call("exec"), both, AnswerForm::Events),
            (call("execute_script"), "text/event-stream;q=1,application/json", AnswerForm::Events),
            (call("execute_script"), "application/json", AnswerForm::Json),
            (call("read_file"), both, AnswerForm::JsonIfAlone),
            (read.clone(), both, AnswerForm::JsonIfAlone),
            (read.clone(), "application/json;q=0.9", AnswerForm::Json),
            (read.clone(), "text/html, */*;q=0.8", AnswerForm::Json),
            (read, "text/html", AnswerForm::JsonIfAlone),
            (listen.clone(), both, AnswerForm::Events),
            (listen, "application/json", AnswerForm::Events),
        ] {
            assert_eq!(form(message.clone(), accept), expected, "{message} {accept}");
        }
    }

    #[test]
    fn client_that_says_nothing_of_events_gets_json() {
        let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
        let message = serde_json::from_value(list).unwrap();
        let mut headers = HeaderMap::new();
        let form = AnswerForm::of(&message, &headers);
        assert_eq!(form, AnswerForm::Json);
        form.ask(&mut headers);
        assert_eq!(headers[header::ACCEPT], "application/json, text/event-stream");
    }

    const PRIMING: &str = "id: 0/1\nretry: 3000\ndata:\n\n";
    const KEEP_ALIVE: &str = ":\n\n";
    const PROGRESS: &str = "data: {\"method\":\"notifications/progress\"}\n\n";

    /// What becomes of events in small pieces: its type, and its content.
    async fn applied(form: AnswerForm, events: &str) -> (String, String) {
        let pieces = events.as_bytes().chunks(5).map(Bytes::copy_from_slice);
        let pieces: Vec<_> = pieces.map(Ok::<_, axum::Error>).collect();
        let body = Body::from_stream(futures_util::stream::iter(pieces));
        let response = Response::builder().header(header::CONTENT_TYPE, EVENTS).body(body).unwrap();
        let (parts, body) = form.apply(response).await.into_parts();
        let content_type = parts.headers[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        (content_type, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn answer_that_is_alone_is_json_and_one_after_something_else_is_an_event() {
        let answer = r#"{"id":1,"result":{"text":"a\n\nb"}}"#;
        let event = format!("data: {answer}\n\n");
        let alone = format!("{PRIMING}{KEEP_ALIVE}{event}");
        let after = format!("{PRIMING}{PROGRESS}{event}");
        for (form, events, content_type, content) in [
            (AnswerForm::JsonIfAlone, &alone, "application/json", answer),
            (AnswerForm::JsonIfAlone, &after, EVENTS, &after),
            (AnswerForm::Json, &after, "application/json", answer),
            (AnswerForm::Events, &alone, EVENTS, &alone),
            // It ends without an answer, to be resumed.
            (AnswerForm::JsonIfAlone, &PRIMING.to_owned(), EVENTS, PRIMING),
        ] {
            let found = applied(form, events).await;
            assert_eq!((&*found.0, &*found.1), (content_type, content), "{form:?} {events}");
        }
    }
}
