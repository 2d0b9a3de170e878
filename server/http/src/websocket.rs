//! WebSockets (RFC 6455): the handshake, and connections whose messages and waits are bounded.
//!
//! A WebSocket keeps the place of its connection, and of its request, until it ends.

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, Version};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use sandbox_api::ProblemKind;
use sandbox_api::attach::{MAX_MESSAGE, PING_INTERVAL};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, sink};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::app::App;
use crate::lists::{items, only};
use crate::refusal::{Refusal, Result};
use crate::serve::{Places, places};

const WEBSOCKET: &str = "websocket";
/// The only version.
const VERSION: HeaderValue = HeaderValue::from_static("13");
/// A key is 16 bytes in base64.
const KEY_LENGTH: usize = 24;
/// What is read at a time.
const READ_BUFFER: usize = 16 << 10;
/// How long a client may take nothing of a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// How long nothing may come from a client, though it answers pings.
const SILENCE: Duration = PING_INTERVAL.saturating_mul(3);
/// How long a client may take to confirm a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How much of what it still sends is read.
const MAX_DRAIN_BYTES: u64 = 4 << 20;
/// The most bytes of a reason.
const MAX_REASON: usize = 123;

/// Why a server closes a WebSocket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Closing {
    /// What it was for has ended.
    Ended,
    /// The server stops.
    Stopping,
    /// The client has sent what is no message of the protocol.
    Invalid(String),
    /// The client has sent a message that is too long.
    TooLong,
    /// The server cannot go on.
    Failed(String),
    /// The client is gone, or has closed it.
    Gone,
}

impl Closing {
    fn frame(self) -> Option<CloseFrame> {
        let (code, reason) = match self {
            Self::Ended => (CloseCode::Normal, String::new()),
            Self::Stopping => (CloseCode::Away, "the server stops".to_owned()),
            Self::Invalid(reason) => (CloseCode::Policy, reason),
            Self::TooLong => {
                (CloseCode::Size, format!("a message has more than {MAX_MESSAGE} bytes"))
            }
            Self::Failed(reason) => (CloseCode::Error, reason),
            Self::Gone => return None,
        };
        let end = (0..=reason.len().min(MAX_REASON)).rev().find(|&at| reason.is_char_boundary(at));
        let reason = reason[..end.unwrap_or_default()].to_owned();
        Some(CloseFrame { code, reason: reason.into() })
    }
}

/// A request for a WebSocket.
pub(crate) struct WebSocketUpgrade {
    on_upgrade: OnUpgrade,
    accept: HeaderValue,
    protocols: Vec<String>,
    held: Places,
}

impl FromRequestParts<App> for WebSocketUpgrade {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self> {
        let headers = &parts.headers;
        let is_asked_for = parts.version == Version::HTTP_11
            && items(headers, CONNECTION).any(|item| item.eq_ignore_ascii_case("upgrade"))
            && items(headers, UPGRADE).any(|item| item.eq_ignore_ascii_case(WEBSOCKET));
        let key = only(headers, SEC_WEBSOCKET_KEY).filter(|key| key.len() == KEY_LENGTH);
        let (true, Some(key)) = (is_asked_for, key) else {
            return Err(refused("this is a WebSocket: ask for it as one, over HTTP/1.1"));
        };
        if headers.get(SEC_WEBSOCKET_VERSION) != Some(&VERSION) {
            return Err(refused("the only version of WebSockets is 13"));
        }
        let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()))
            .map_err(|_| Refusal::internal("a key cannot be confirmed"))?;
        let protocols = items(headers, SEC_WEBSOCKET_PROTOCOL).map(str::to_owned).collect();
        let held = places(&parts.extensions);
        let on_upgrade = parts.extensions.remove::<OnUpgrade>();
        let on_upgrade =
            on_upgrade.ok_or_else(|| refused("this connection cannot become a WebSocket"))?;
        Ok(Self { on_upgrade, accept, protocols, held })
    }
}

fn refused(detail: &str) -> Refusal {
    Refusal::new(ProblemKind::Malformed, detail).header(SEC_WEBSOCKET_VERSION, VERSION)
}

impl WebSocketUpgrade {
    /// Checks that the client speaks this subprotocol.
    pub fn speaks(&self, protocol: &str) -> Result<()> {
        if self.protocols.iter().any(|it| it == protocol) {
            return Ok(());
        }
        let detail = format!("the subprotocol is {protocol}");
        let hint = format!("send Sec-WebSocket-Protocol: {protocol}");
        Err(Refusal::new(ProblemKind::Malformed, detail).hint(Some(hint)))
    }

    /// Answers that it becomes one, and lets `serve` have it then.
    pub fn accept<F>(
        self,
        protocol: &'static str,
        serve: impl FnOnce(WebSocket) -> F + Send + 'static,
    ) -> Response
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Self { on_upgrade, accept, held, .. } = self;
        tokio::spawn(async move {
            match on_upgrade.await {
                Ok(upgraded) => serve(WebSocket::new(upgraded).await).await,
                Err(error) => tracing::debug!(%error, "a connection did not become a WebSocket"),
            }
            drop(held);
        });
        let headers = [
            (CONNECTION, HeaderValue::from_static("upgrade")),
            (UPGRADE, HeaderValue::from_static(WEBSOCKET)),
            (SEC_WEBSOCKET_ACCEPT, accept),
            (SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol)),
        ];
        (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
    }
}

type Stream = WebSocketStream<TokioIo<Upgraded>>;

/// A WebSocket.
pub(crate) struct WebSocket {
    pub sender: Sender,
    pub receiver: Receiver,
}

/// The half of a WebSocket that sends.
pub(crate) struct Sender(SplitSink<Stream, Message>);

/// The half that receives.
pub(crate) struct Receiver(SplitStream<Stream>);

/// What a client has sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Text(String),
    Binary(Bytes),
}

impl WebSocket {
    async fn new(upgraded: Upgraded) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            // Every message is sent at once.
            .write_buffer_size(0)
            .max_write_buffer_size(4 * MAX_MESSAGE)
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE));
        let upgraded = TokioIo::new(upgraded);
        let stream = WebSocketStream::from_raw_socket(upgraded, Role::Server, Some(config)).await;
        let (sender, receiver) = stream.split();
        Self { sender: Sender(sender), receiver: Receiver(receiver) }
    }

    /// Closes it, and waits a little for the client to see it.
    pub async fn close(self, why: Closing) {
        let Some(frame) = why.frame() else { return };
        let Self { sender: Sender(mut sender), receiver: Receiver(mut receiver) } = self;
        let closed = async {
            if sender.send(Message::Close(Some(frame))).await.is_err() {
                return;
            }
            while let Some(Ok(_)) = receiver.next().await {}
            // With what is not read the connection would be reset, and the client might not see the last messages.
            let Ok(stream) = sender.reunite(receiver) else { return };
            let mut stream = stream.into_inner();
            if stream.shutdown().await.is_ok() {
                _ = copy(&mut stream.take(MAX_DRAIN_BYTES), &mut sink()).await;
            }
        };
        _ = timeout(CLOSE_TIMEOUT, closed).await;
    }
}

impl Sender {
    pub async fn text(&mut self, text: String) -> Result<(), Closing> {
        self.send(Message::text(text)).await
    }

    pub async fn binary(&mut self, bytes: Bytes) -> Result<(), Closing> {
        self.send(Message::Binary(bytes)).await
    }

    pub async fn ping(&mut self) -> Result<(), Closing> {
        self.send(Message::Ping(Bytes::new())).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Closing> {
        match timeout(SEND_TIMEOUT, self.0.send(message)).await {
            Ok(Ok(())) => Ok(()),
            // A client that takes nothing is gone, or as good as that.
            Ok(Err(_)) | Err(_) => Err(Closing::Gone),
        }
    }
}

impl Receiver {
    /// The next message.
    pub async fn next(&mut self) -> Result<Received, Closing> {
        loop {
            let message = timeout(SILENCE, self.0.next()).await.map_err(|_| Closing::Gone)?;
            return match message {
                Some(Ok(Message::Text(text))) => Ok(Received::Text(text.as_str().to_owned())),
                Some(Ok(Message::Binary(bytes))) => Ok(Received::Binary(bytes)),
                // Pings and a close are answered while the next message is waited for.
                Some(Ok(_)) => continue,
                Some(Err(Error::Capacity(_))) => Err(Closing::TooLong),
                Some(Err(Error::Protocol(error))) => Err(Closing::Invalid(error.to_string())),
                Some(Err(Error::Utf8(_))) => Err(Closing::Invalid("text is UTF-8".to_owned())),
                Some(Err(_)) | None => Err(Closing::Gone),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_of_a_close_is_short() {
        let frame = Closing::Invalid("é".repeat(100)).frame().unwrap();
        assert_eq!((frame.code, frame.reason.len()), (CloseCode::Policy, 122));
        assert_eq!(Closing::Ended.frame().unwrap().code, CloseCode::Normal);
        assert_eq!(Closing::Gone.frame(), None);
    }
}
