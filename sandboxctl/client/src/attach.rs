//! A process's output and input over one connection: a WebSocket of the service.

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::Method;
use hyper::body::Bytes;
use hyper::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use sandbox_api::attach::{
    AttachRefusal, AttachRequest, MAX_MESSAGE, SUBPROTOCOL, read_output_message,
};
use sandbox_api::{EventRecord, OutputStream, Problem, TerminalSize};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::client::{Call, Client};
use super::error::{BoxedError, Error};
use super::sandboxes::ProcessRef;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// What a process is sent.
pub struct AttachInput(SplitSink<Socket, Message>);

/// What comes of a process.
pub struct AttachOutput(SplitStream<Socket>);

/// A message of the service.
#[derive(Debug)]
pub enum Received {
    /// Output, with the number of its event.
    Output(OutputStream, u64, Vec<u8>),
    /// Any other event.
    Event(EventRecord),
    /// What was sent is refused.
    Refused(Problem),
}

impl Client {
    /// Connects to a process: its events after the one with this number come, and input goes.
    ///
    /// # Errors
    ///
    /// [`Error`]. It is not tried again.
    pub async fn attach(
        &self,
        process: &ProcessRef,
        after: u64,
    ) -> Result<(AttachInput, AttachOutput), Error> {
        let key = generate_key();
        let path = process.path("/attach");
        let call = Call::new(Method::GET, format!("{path}&after={after}"))
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &key)
            .header(SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL);
        let (headers, upgraded) = self.switch(&call).await?;
        let is = |name, value: &str| headers.get(name).is_some_and(|it| it == value);
        if !is(SEC_WEBSOCKET_ACCEPT, &derive_accept_key(key.as_bytes()))
            || !is(SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL)
        {
            return Err(self.unexpected("a WebSocket of another protocol"));
        }
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE));
        let upgraded = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await;
        let (input, output) = socket.split();
        Ok((AttachInput(input), AttachOutput(output)))
    }
}

impl AttachInput {
    /// Sends input for its stdin. It waits while the service waits for the process to read.
    ///
    /// # Errors
    ///
    /// If the connection is lost.
    pub async fn write(&mut self, input: Vec<u8>) -> Result<(), BoxedError> {
        let mut input = Bytes::from(input);
        while !input.is_empty() {
            let piece = input.split_to(input.len().min(MAX_MESSAGE));
            self.0.send(Message::Binary(piece)).await?;
        }
        Ok(())
    }

    /// Says that there is no more input.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub async fn close(&mut self) -> Result<(), BoxedError> {
        self.request(AttachRequest::Eof(true)).await
    }

    /// Sends the size of its terminal.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub async fn resize(&mut self, size: TerminalSize) -> Result<(), BoxedError> {
        self.request(AttachRequest::Resize(size)).await
    }

    async fn request(&mut self, request: AttachRequest) -> Result<(), BoxedError> {
        Ok(self.0.send(Message::text(serde_json::to_string(&request)?)).await?)
    }
}

impl AttachOutput {
    /// The next message; `None` when the service has closed the connection. It may be dropped and called
    /// again.
    ///
    /// # Errors
    ///
    /// If the connection is lost, or the service sends something else.
    pub async fn next(&mut self) -> Result<Option<Received>, BoxedError> {
        while let Some(message) = self.0.next().await {
            match message? {
                Message::Binary(bytes) => {
                    let read = read_output_message(&bytes).ok_or("output of an unknown form")?;
                    let (stream, seq, output) = read;
                    return Ok(Some(Received::Output(stream, seq, output.to_vec())));
                }
                Message::Text(text) => return received(&text).map(Some),
                Message::Close(_) => return Ok(None),
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
        Ok(None)
    }
}

/// What a text message says.
fn received(text: &str) -> Result<Received, BoxedError> {
    match serde_json::from_str::<AttachRefusal>(text) {
        Ok(AttachRefusal { problem }) => Ok(Received::Refused(problem)),
        Err(_) => Ok(Received::Event(serde_json::from_str(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_an_event_or_says_what_was_refused() {
        let event = r#"{"seq":3,"time":"2026-11-22T06:11:28Z","event":"exit","exit_code":7}"#;
        assert!(matches!(received(event), Ok(Received::Event(EventRecord { seq: 3, .. }))));
        assert!(received("{}").is_err());
    }
}
