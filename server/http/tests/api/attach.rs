//! WebSockets that are attached to processes, over real connections.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use futures_util::{SinkExt as _, StreamExt as _};
use sandbox_api::attach::{MAX_MESSAGE, SUBPROTOCOL, read_output_message};
use sandbox_api::service::{CommandRequest, KeptSpec, SandboxRef, SandboxRequest, Subject};
use sandbox_api::{OutputStream, ProcessRequest, Processes, PtyRequest};
use sandbox_http::ConnectionLimits;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::World;
use super::sockets::{Running, serve};

pub(super) type Socket = WebSocketStream<TcpStream>;

impl World {
    /// A sandbox of alice with a process: its id.
    pub(super) async fn with_process(&self, shell: &str, pty: Option<PtyRequest>) -> String {
        let alice = Subject::new("alice").unwrap();
        let image = Some("debian:13".to_owned());
        let spec = KeptSpec { image, processes: Processes::Kept, ..KeptSpec::default() };
        let request = SandboxRequest { spec, ..SandboxRequest::default() };
        let id = self.service.create_sandbox(&alice, request).await.unwrap().sandbox.id;
        let sandbox = SandboxRef { id: id.clone(), generation: None };
        let shell = Some(serde_json::from_value(json!(shell)).unwrap());
        let command = CommandRequest { shell, ..CommandRequest::default() };
        let request = ProcessRequest { command, stdin: true, pty, ..ProcessRequest::default() };
        self.service.start_process(&alice, &sandbox, request, None).await.unwrap();
        id
    }
}

/// Asks for a WebSocket, with these headers.
pub(super) async fn ask(
    stream: TcpStream,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<Socket, u16> {
    let mut request = format!("ws://localhost{path}").into_client_request().unwrap();
    for (name, value) in headers {
        let name: HeaderName = name.parse().unwrap();
        request.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
    }
    match client_async(request, stream).await {
        Ok((socket, response)) => {
            assert_eq!(response.headers()["sec-websocket-protocol"], SUBPROTOCOL);
            Ok(socket)
        }
        Err(Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

/// What alice sends.
const OF_ALICE: [(&str, &str); 2] =
    [("authorization", "Bearer alice"), ("sec-websocket-protocol", SUBPROTOCOL)];

async fn attach(server: &Running, sandbox: &str, query: &str) -> Socket {
    let path = format!("/v1/sandboxes/{sandbox}/processes/1/attach{query}");
    ask(server.connect().await, &path, &OF_ALICE).await.unwrap()
}

pub(super) async fn next(socket: &mut Socket) -> Message {
    let message = timeout(Duration::from_secs(30), socket.next()).await.unwrap();
    message.unwrap().unwrap()
}

/// The next message, which is text.
async fn next_json(socket: &mut Socket) -> Value {
    match next(socket).await {
        Message::Text(text) => serde_json::from_str(text.as_str()).unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn close_code(socket: &mut Socket) -> CloseCode {
    loop {
        if let Message::Close(frame) = next(socket).await {
            return frame.unwrap().code;
        }
    }
}

#[tokio::test]
async fn attached_client_has_output_events_and_refusals_and_sends_input() {
    let server = serve(ConnectionLimits::default()).await;
    let sandbox = server.world.with_process("cat", None).await;
    let mut socket = attach(&server, &sandbox, "").await;
    let start = next_json(&mut socket).await;
    assert_eq!((&start["seq"], &start["event"]), (&json!(1), &json!("start")));
    socket.send(Message::binary(&b"\xff\n"[..])).await.unwrap();
    let Message::Binary(output) = next(&mut socket).await else { panic!() };
    assert_eq!(read_output_message(&output), Some((OutputStream::Stdout, 2, &b"\xff\n"[..])));
    // It has no terminal: it gets an error, and goes on.
    socket.send(Message::text(r#"{"resize":{"cols":1,"rows":1}}"#)).await.unwrap();
    let refused = next_json(&mut socket).await;
    assert_eq!(refused["problem"]["kind"], "conflict");
    // Another one reads the same, from where it wants.
    let mut other = attach(&server, &sandbox, "?after=1&mode=lossy&generation=1").await;
    assert!(matches!(next(&mut other).await, Message::Binary(_)));
    socket.send(Message::text(r#"{"eof":true}"#)).await.unwrap();
    for socket in [&mut socket, &mut other] {
        assert_eq!(next_json(socket).await["event"], "exit");
        let end = next_json(socket).await;
        assert_eq!((&end["event"], &end["document"]["state"]), (&json!("end"), &json!("ended")));
        assert_eq!(close_code(socket).await, CloseCode::Normal);
    }
    // An ended one is read once more.
    let mut socket = attach(&server, &sandbox, "?after=3").await;
    assert_eq!(next_json(&mut socket).await["event"], "end");
    assert_eq!(close_code(&mut socket).await, CloseCode::Normal);
    drop((socket, other));
    server.stop().await;
}

#[tokio::test]
async fn terminal_is_resized_and_signalled_and_lives_on_without_its_client() {
    let server = serve(ConnectionLimits::default()).await;
    let pty = PtyRequest { cols: 80, rows: 24, term: None };
    let sandbox = server.world.with_process("sleep", Some(pty)).await;
    let mut socket = attach(&server, &sandbox, "").await;
    assert_eq!(next_json(&mut socket).await["event"], "start");
    socket.close(None).await.unwrap();
    drop(socket);
    let mut socket = attach(&server, &sandbox, "?after=now").await;
    socket.send(Message::text(r#"{"resize":{"cols":120,"rows":40}}"#)).await.unwrap();
    socket.send(Message::text(r#"{"signal":{"signal":"INT","to":"foreground"}}"#)).await.unwrap();
    let exit = next_json(&mut socket).await;
    assert_eq!((&exit["event"], &exit["signal"]), (&json!("exit"), &json!(2)));
    drop(socket);
    server.stop().await;
}

#[tokio::test]
async fn message_that_is_none_closes_the_connection_and_not_the_process() {
    let server = serve(ConnectionLimits::default()).await;
    let sandbox = server.world.with_process("cat", None).await;
    for (message, code) in [
        (Message::text("resize"), CloseCode::Policy),
        (Message::text(r#"{"resize":{"cols":1}}"#), CloseCode::Policy),
        (Message::text(r#"{"eof":true,"signal":{"signal":"KILL"}}"#), CloseCode::Policy),
        (Message::binary(vec![0; MAX_MESSAGE + 1]), CloseCode::Size),
    ] {
        let mut socket = attach(&server, &sandbox, "?after=now").await;
        socket.send(message).await.unwrap();
        assert_eq!(close_code(&mut socket).await, code);
    }
    let mut socket = attach(&server, &sandbox, "?after=now").await;
    socket.send(Message::binary(vec![b'x'; MAX_MESSAGE])).await.unwrap();
    assert!(matches!(next(&mut socket).await, Message::Binary(_)));
    drop(socket);
    server.stop().await;
}

#[tokio::test]
async fn who_may_not_attach_gets_an_answer_of_http() {
    let server = serve(ConnectionLimits::default()).await;
    let sandbox = server.world.with_process("cat", None).await;
    let path = format!("/v1/sandboxes/{sandbox}/processes/1/attach");
    let [token, protocol] = OF_ALICE;
    let own = format!("http://{}", server.endpoint);
    let host = server.endpoint.to_string();
    let host = ("host", &*host);
    let page = ("sec-websocket-protocol", "sandboxctl.process.1, bearer.alice");
    let asked = async |path: &str, headers: &[(&str, &str)]| {
        ask(server.connect().await, path, headers).await.map(drop)
    };
    // A page of the server's own has its token in a subprotocol.
    assert_eq!(asked(&path, &[host, ("origin", &own), page]).await, Ok(()));
    for (headers, status) in [
        (vec![protocol], 401),
        (vec![("authorization", "Bearer bob"), protocol], 404),
        (vec![("authorization", "Bearer reader"), protocol], 403),
        (vec![("sec-websocket-protocol", "sandboxctl.process.1, bearer.nobody")], 401),
        (vec![token], 400),
        (vec![token, ("sec-websocket-protocol", "chat")], 400),
        (vec![token, protocol, ("sec-websocket-version", "8")], 400),
        (vec![token, protocol, ("upgrade", "h2c")], 400),
        (vec![host, page, ("origin", "https://evil.example")], 403),
        (vec![host, page, ("origin", "null")], 403),
    ] {
        assert_eq!(asked(&path, &headers).await, Err(status), "{headers:?}");
    }
    for (query, status) in [("?after=x", 422), ("?mode=slow", 422), ("?generation=9", 410)] {
        assert_eq!(asked(&format!("{path}{query}"), &OF_ALICE).await, Err(status), "{query}");
    }
    let missing = format!("/v1/sandboxes/{sandbox}/processes/9/attach");
    assert_eq!(asked(&missing, &OF_ALICE).await, Err(404));
    let plain = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\n\
                         Connection: close\r\n\r\n"
    );
    let answer = server.exchange(plain.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn websocket_has_a_place_among_the_connections_until_it_ends() {
    let server = serve(ConnectionLimits { connections: 16, of_an_address: 1 }).await;
    let sandbox = server.world.with_process("cat", None).await;
    let mut socket = attach(&server, &sandbox, "").await;
    assert_eq!(next_json(&mut socket).await["event"], "start");
    let health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let refused = server.exchange(health).await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    drop(socket);
    let mut tries = 0;
    while !server.exchange(health).await.starts_with("HTTP/1.1 200 ") {
        tries += 1;
        assert!(tries < 1000);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn server_that_stops_closes_its_websockets() {
    let server = serve(ConnectionLimits::default()).await;
    let sandbox = server.world.with_process("cat", None).await;
    let mut socket = attach(&server, &sandbox, "").await;
    server.shutdown.stop.cancel();
    assert_eq!(close_code(&mut socket).await, CloseCode::Away);
    assert!(socket.next().await.is_none());
    server.stop().await;
}
