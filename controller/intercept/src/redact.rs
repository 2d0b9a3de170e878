//! Secrets in what a host answers, replaced by as many stars, so that lengths and ranges stay what they are.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use futures_util::{Sink, SinkExt as _, StreamExt as _};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::HeaderMap;
use hyper::body::{Frame, Incoming};
use hyper::header::HeaderValue;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use crate::forms::{Forms, Progress};

/// How long the end of what a host has sent is held back while it sends nothing more.
pub const PAUSE: Duration = Duration::from_millis(250);
/// How long a program may take to answer that a WebSocket is closed.
const FAREWELL: Duration = Duration::from_secs(1);
/// The largest message of a WebSocket.
const MAX_MESSAGE: usize = 1 << 20;

pub type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// A header whose name is secret is dropped.
pub fn headers(headers: &mut HeaderMap, forms: &Forms) {
    let mut cleaned = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers.iter() {
        if forms.replaced(name.as_str().as_bytes()).is_some() {
            continue;
        }
        let value = match forms.replaced(value.as_bytes()) {
            Some(replaced) => HeaderValue::from_bytes(&replaced).ok(),
            None => Some(value.clone()),
        };
        if let Some(value) = value {
            cleaned.append(name.clone(), value);
        }
    }
    *headers = cleaned;
}

/// The secrets in a body that arrives in pieces. Its end is held back, as many bytes as a secret can have,
/// whatever they are: neither what is passed on nor when depends on a part of a secret.
struct Redactor {
    forms: Arc<Forms>,
    progress: Progress,
    /// The end of what has arrived, and the same without secrets.
    tail: Vec<u8>,
    shown: Vec<u8>,
    /// How many bytes of it were passed on.
    sent: usize,
}

impl Redactor {
    fn new(forms: Arc<Forms>) -> Self {
        let (progress, tail, shown) = (forms.progress(), Vec::new(), Vec::new());
        Self { forms, progress, tail, shown, sent: 0 }
    }

    fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let from = self.tail.len();
        self.tail.extend_from_slice(bytes);
        self.shown.extend_from_slice(bytes);
        self.forms.mask(&mut self.progress, &self.tail, from, &mut self.shown);
        let decided = self.tail.len().saturating_sub(self.forms.longest().saturating_sub(1));
        self.tail.drain(..decided);
        let sent = self.sent.min(decided);
        self.sent -= sent;
        self.shown.drain(..decided).skip(sent).collect()
    }

    /// All that is held back. What of it is the beginning of a secret is remembered: the rest is still replaced.
    fn flush(&mut self) -> Vec<u8> {
        let sent = std::mem::replace(&mut self.sent, self.tail.len());
        self.shown[sent..].to_vec()
    }

    /// What comes next; `None` if nothing does for so long that what is held back is passed on.
    async fn next<T>(&self, next: impl Future<Output = T>) -> Option<T> {
        match self.sent < self.tail.len() {
            true => timeout(PAUSE, next).await.ok(),
            false => Some(next.await),
        }
    }
}

/// A body without secrets and without trailers.
pub fn body(body: Incoming, forms: Arc<Forms>) -> Body {
    let state = Some((body, Redactor::new(forms)));
    let pieces = stream::try_unfold(state, |state| async move {
        let Some((mut body, mut redactor)) = state else { return Ok(None) };
        loop {
            let piece = match redactor.next(body.frame()).await {
                None => redactor.flush(),
                Some(None) => return Ok(Some((Frame::data(redactor.flush().into()), None))),
                Some(Some(frame)) => match frame?.into_data() {
                    Ok(data) => redactor.push(&data),
                    Err(_trailers) => continue,
                },
            };
            if !piece.is_empty() {
                return Ok(Some((Frame::data(Bytes::from(piece)), Some((body, redactor)))));
            }
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Passes on the messages of a WebSocket, those of the host without secrets, until one side ends.
pub async fn messages<P, H>(program: P, host: H, forms: &Forms)
where
    P: AsyncRead + AsyncWrite + Unpin,
    H: AsyncRead + AsyncWrite + Unpin,
{
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    let program = WebSocketStream::from_raw_socket(program, Role::Server, Some(config)).await;
    let host = WebSocketStream::from_raw_socket(host, Role::Client, Some(config)).await;
    let (mut to_program, mut from_program) = program.split();
    let (mut to_host, mut from_host) = host.split();
    tokio::select! {
        () = pass(&mut from_program, &mut to_host, |message| message) => {}
        () = pass(&mut from_host, &mut to_program, |message| redacted(message, forms)) => {
            // It may still be saying something, and reads the close after that.
            let rest = async { while let Some(Ok(_)) = from_program.next().await {} };
            _ = timeout(FAREWELL, rest).await;
        }
    }
    if let (Ok(program), Ok(host)) = (to_program.reunite(from_program), to_host.reunite(from_host))
    {
        let (mut program, mut host) = (program.into_inner(), host.into_inner());
        _ = tokio::join!(program.shutdown(), host.shutdown());
    }
}

/// Passes on one side's messages. Where nothing more can be said to the other, it still ends by itself.
async fn pass(
    from: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
    to: &mut (impl Sink<Message, Error = Error> + Unpin),
    change: impl Fn(Message) -> Message,
) {
    while let Some(Ok(message)) = from.next().await {
        _ = to.send(change(message)).await;
    }
}

/// A message without secrets.
fn redacted(message: Message, forms: &Forms) -> Message {
    let bytes = |bytes: Bytes| forms.replaced(&bytes).map_or(bytes, Bytes::from);
    let text = |text: Utf8Bytes| {
        let mut text = text.to_string();
        forms.text(&mut text);
        Utf8Bytes::from(text)
    };
    match message {
        Message::Text(it) => Message::Text(text(it)),
        Message::Binary(it) => Message::Binary(bytes(it)),
        Message::Ping(it) => Message::Ping(bytes(it)),
        Message::Pong(it) => Message::Pong(bytes(it)),
        Message::Close(Some(mut frame)) => {
            frame.reason = text(frame.reason);
            Message::Close(Some(frame))
        }
        other => other,
    }
}
