//! Real connections: versions, TLS, UNIX sockets, and what a peer can take of the server.

use std::fs::Permissions;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::{Request, Response, StatusCode, Version};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sandbox_http::{ConnectionLimits, Endpoint, Http, HttpConfig, Listener, Shutdown, Tls};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};

use super::{Tokens, World, hold_clock};

const GET_HEALTH: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

pub(super) struct Running {
    pub endpoint: Endpoint,
    pub world: World,
    pub shutdown: Shutdown,
    task: JoinHandle<()>,
}

impl Running {
    pub async fn connect(&self) -> TcpStream {
        let Endpoint::Tcp(address) = self.endpoint else { panic!("{}", self.endpoint) };
        TcpStream::connect(address).await.unwrap()
    }

    async fn connect_unix(&self) -> UnixStream {
        let Endpoint::Unix(path) = &self.endpoint else { panic!("{}", self.endpoint) };
        UnixStream::connect(path).await.unwrap()
    }

    /// Sends this, and reads until the server closes.
    pub async fn exchange(&self, sent: &[u8]) -> String {
        match &self.endpoint {
            Endpoint::Tcp(_) => exchange(self.connect().await, sent).await,
            Endpoint::Unix(_) => exchange(self.connect_unix().await, sent).await,
        }
    }

    pub async fn stop(self) {
        self.shutdown.stop.cancel();
        self.task.await.unwrap();
    }
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, sent: &[u8]) -> String {
    // It may be refused before it is all sent.
    _ = stream.write_all(sent).await;
    let mut answer = Vec::new();
    _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn serve_at(endpoint: &Endpoint, limits: ConnectionLimits, tls: Option<Arc<Tls>>) -> Running {
    let listener = Listener::bind(endpoint).unwrap();
    let endpoint = listener.endpoint().unwrap();
    let (world, shutdown) = (World::new().await, Shutdown::default());
    let config = HttpConfig { connections: limits, ..HttpConfig::default() };
    let service = world.service.clone();
    let http = Http::new(config, service, Arc::new(Tokens), Vec::new(), shutdown.clone());
    let task = tokio::spawn(http.serve(vec![listener], tls));
    Running { endpoint, world, shutdown, task }
}

pub(super) async fn serve(limits: ConnectionLimits) -> Running {
    serve_at(&"127.0.0.1:0".parse().unwrap(), limits, None).await
}

/// For a clock that is stopped, which goes on where there is nothing to read. What is sent to a UNIX socket
/// can be read at once; over TCP a busy kernel delivers it later.
async fn serve_with_stopped_clock() -> (Running, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::Unix(dir.path().join("api"));
    (serve_at(&endpoint, ConnectionLimits::default(), None).await, dir)
}

/// The connection was closed on what was not read, and its peer saw that in place of the answer.
#[tokio::test(start_paused = true)]
async fn peer_that_sends_on_after_a_refusal_gets_it_and_may_ask_again() {
    let server = serve(ConnectionLimits::default()).await;
    // What is sent on is read for two seconds, which a busy machine may let pass.
    let held = hold_clock();
    let mut stream = server.connect().await;
    let piece = [b'x'; 64 << 10];
    let head = format!(
        "POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        32 * piece.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut refused = [0; 12];
    stream.read_exact(&mut refused).await.unwrap();
    assert_eq!(refused, *b"HTTP/1.1 401");
    for _ in 0..32 {
        stream.write_all(&piece).await.unwrap();
    }
    let next = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(next.as_bytes()).await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    assert!(answers.contains("HTTP/1.1 200"), "{answers}");
    drop(held);
    server.stop().await;
}

fn health() -> Request<Empty<bytes::Bytes>> {
    Request::get("http://localhost/healthz").body(Empty::new()).unwrap()
}

async fn ask_http1(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Response<Incoming> {
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request =
        Request::get("/healthz").header("host", "localhost").body(Empty::<bytes::Bytes>::new());
    sender.send_request(request.unwrap()).await.unwrap()
}

async fn ask_http2(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Response<Incoming> {
    let (io, executor) = (TokioIo::new(stream), TokioExecutor::new());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    sender.send_request(health()).await.unwrap()
}

#[tokio::test]
async fn both_versions_are_recognized_by_their_first_bytes() {
    let server = serve(ConnectionLimits::default()).await;
    let one = ask_http1(server.connect().await).await;
    assert_eq!((one.status(), one.version()), (StatusCode::OK, Version::HTTP_11));
    let two = ask_http2(server.connect().await).await;
    assert_eq!((two.status(), two.version()), (StatusCode::OK, Version::HTTP_2));
    drop((one, two));
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn peer_that_sends_too_slowly_is_cut_off() {
    let (server, _dir) = serve_with_stopped_clock().await;
    for begun in [
        "",
        "GET / HT",
        "PRI * HT",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a",
    ] {
        let start = Instant::now();
        server.exchange(begun.as_bytes()).await;
        assert!(start.elapsed() < Duration::from_secs(20), "{begun:?}: {:?}", start.elapsed());
    }
    // A byte in a second is no better.
    let mut stream = server.connect_unix().await;
    let start = Instant::now();
    let mut one_by_one = GET_HEALTH.bytes().cycle();
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if stream.write_all(&[one_by_one.next().unwrap()]).await.is_err() {
            break;
        }
        let mut byte = [0];
        match stream.try_read(&mut byte) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            _ => break,
        }
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    // Nor is a connection that is kept for nothing.
    let mut kept = server.connect_unix().await;
    kept.write_all(GET_HEALTH.as_bytes()).await.unwrap();
    let mut answer = String::new();
    kept.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(start.elapsed() < Duration::from_secs(100), "{:?}", start.elapsed());
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stream_of_events_lives_for_as_long_as_it_is_read() {
    let (server, _dir) = serve_with_stopped_clock().await;
    let post = |script: &str| {
        let body = format!(r#"{{"script":"{script}"}}"#);
        format!(
            "POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\n\
             Content-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let held = hold_clock();
    let accepted = server.exchange(post("wait").as_bytes()).await;
    drop(held);
    let (_, id) = accepted.split_once("\"id\":\"").unwrap_or_else(|| panic!("{accepted}"));
    let (id, _) = id.split_once('"').unwrap();
    let mut stream = server.connect_unix().await;
    let events = format!(
        "GET /v1/executions/{id}/events HTTP/1.1\r\nHost: localhost\r\n\
         Authorization: Bearer alice\r\n\r\n"
    );
    stream.write_all(events.as_bytes()).await.unwrap();
    let start = Instant::now();
    let mut comments = 0;
    while start.elapsed() < Duration::from_secs(2000) {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).await.unwrap();
        assert!(length > 0, "it ended after {:?}", start.elapsed());
        comments += 1;
    }
    assert!(comments > 100, "{comments}");
    server.world.finish();
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn slow_body_is_answered_408() {
    let (server, _dir) = serve_with_stopped_clock().await;
    let head = "POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\n\
        Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    let start = Instant::now();
    let answer = server.exchange(head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("application/problem+json"), "{answer}");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    server.stop().await;
}

#[tokio::test]
async fn flood_of_headers_is_refused() {
    let server = serve(ConnectionLimits::default()).await;
    let many: String = (0..200).map(|number| format!("x-{number}: a\r\n")).collect();
    let large = format!("x-large: {}\r\n", "a".repeat(100_000));
    for headers in [many, large] {
        let request = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        let answer = server.exchange(request.as_bytes()).await;
        // The kernel may drop the answer with what was not read.
        assert!(answer.starts_with("HTTP/1.1 431") || answer.is_empty(), "{answer}");
    }
    for garbage in ["\0\0\0\0\r\n\r\n", "GET /healthz\r\n\r\n", "GET /healthz HTTP/3.0\r\n\r\n"] {
        let answer = server.exchange(garbage.as_bytes()).await;
        assert!(!answer.contains("200 OK"), "{answer}");
    }
    let no_host = server.exchange(b"GET /healthz HTTP/1.0\r\n\r\n").await;
    assert!(no_host.contains(" 400 "), "{no_host}");
    server.stop().await;
}

#[tokio::test]
async fn address_has_so_many_connections_and_others_wait_in_the_kernel() {
    let server = serve(ConnectionLimits { connections: 100, of_an_address: 3 }).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = server.connect().await;
        stream.write_all(GET_HEALTH.as_bytes()).await.unwrap();
        stream.read_exact(&mut [0; 12]).await.unwrap();
        held.push(stream);
    }
    let refused = server.exchange(GET_HEALTH.as_bytes()).await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(
        refused.contains("retry-after: 1\r\n") && refused.contains("\"kind\":\"full\""),
        "{refused}"
    );
    held.pop();
    // It is noticed soon.
    let answered = async {
        while !matches!(
            read_some(server.connect().await).await,
            Some(answer) if answer.starts_with("HTTP/1.1 200")
        ) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), answered).await.unwrap();
    server.stop().await;

    let server = serve(ConnectionLimits { connections: 2, of_an_address: 100 }).await;
    let (one, _two) = (server.connect().await, server.connect().await);
    let mut third = server.connect().await;
    third.write_all(GET_HEALTH.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    let mut waiting = std::pin::pin!(third.read_exact(&mut answer));
    let soon = tokio::time::timeout(Duration::from_millis(100), waiting.as_mut()).await;
    assert!(soon.is_err(), "it is answered, though two are connected");
    drop(one);
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap().unwrap();
    server.stop().await;
}

/// Asks, and reads what comes first.
async fn read_some(mut stream: TcpStream) -> Option<String> {
    stream.write_all(GET_HEALTH.as_bytes()).await.ok()?;
    let mut answer = [0; 1000];
    let length = stream.read(&mut answer).await.ok()?;
    Some(String::from_utf8_lossy(&answer[..length]).into_owned())
}

#[tokio::test]
async fn server_that_stops_answers_who_waits_and_drops_who_does_not_end() {
    let server = serve(ConnectionLimits::default()).await;
    let _idle = server.connect().await;
    let body = r#"{"script":"wait"}"#;
    let request = format!(
        "POST /v1/executions?wait=300 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut waiting = server.connect().await;
    waiting.write_all(request.as_bytes()).await.unwrap();
    let mut upload = server.connect().await;
    let begun = "POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\n\
        Content-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n";
    upload.write_all(begun.as_bytes()).await.unwrap();
    // Its body is waited for.
    let mut goes_on = [0; 12];
    upload.read_exact(&mut goes_on).await.unwrap();
    assert_eq!(goes_on, *b"HTTP/1.1 100");
    while server.world.launcher.runs.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    server.shutdown.stop.cancel();
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    assert!(!server.task.is_finished(), "an upload is in progress");
    server.shutdown.kill.cancel();
    tokio::time::timeout(Duration::from_secs(60), server.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn socket_of_a_user_needs_no_name_and_is_gone_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api");
    let endpoint = Endpoint::Unix(path.clone());
    let server = serve_at(&endpoint, ConnectionLimits::default(), None).await;
    let answer = ask_http1(UnixStream::connect(&path).await.unwrap()).await;
    assert_eq!(answer.status(), StatusCode::OK);
    answer.into_body().collect().await.unwrap();
    server.stop().await;
    assert!(!path.exists());
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api/tls").join(name)
}

/// Copies a private key, and gives it this mode.
fn copy_key(name: &str, to: &Path, mode: u32) {
    std::fs::copy(fixture(name), to).unwrap();
    std::fs::set_permissions(to, Permissions::from_mode(mode)).unwrap();
}

/// A client that trusts this certificate alone.
fn trusting(certificate: &str, protocol: &[u8]) -> TlsConnector {
    use rustls_pki_types::pem::PemObject as _;
    let mut roots = RootCertStore::empty();
    let certificate =
        rustls_pki_types::CertificateDer::from_pem_file(fixture(certificate)).unwrap();
    roots.add(certificate).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(config).into()
}

#[tokio::test]
async fn certificate_is_read_again_while_the_server_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("cert"), dir.path().join("key"));
    let put = |name: &str| {
        std::fs::copy(fixture(&format!("{name}.cert.pem")), &certificate).unwrap();
        copy_key(&format!("{name}.key.pem"), &key, 0o600);
    };
    put("one");
    let tls = Arc::new(Tls::load(&certificate, &key).unwrap());
    let server = serve_at(
        &"127.0.0.1:0".parse().unwrap(),
        ConnectionLimits::default(),
        Some(Arc::clone(&tls)),
    )
    .await;
    let connect = async |trusted: &str, protocol: &[u8]| {
        let name = "localhost".try_into().unwrap();
        trusting(trusted, protocol).connect(name, server.connect().await).await
    };
    let one = ask_http1(connect("one.cert.pem", b"http/1.1").await.unwrap()).await;
    assert_eq!(one.status(), StatusCode::OK);
    let two = ask_http2(connect("one.cert.pem", b"h2").await.unwrap()).await;
    assert_eq!((two.status(), two.version()), (StatusCode::OK, Version::HTTP_2));
    assert!(connect("two.cert.pem", b"h2").await.is_err());
    // A client of plain HTTP gets the error in plain HTTP.
    for request in [GET_HEALTH.to_owned(), format!("POST / HTTP/1.1\r\n\r\n{}", "x".repeat(50_000))]
    {
        let answer = server.exchange(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        let problem = answer.split_once("\r\n\r\n").unwrap().1;
        let problem: sandbox_api::Problem = serde_json::from_str(problem).unwrap();
        assert!(problem.hint.unwrap().contains("https://"), "{answer}");
    }
    // What is neither is not answered as either.
    assert!(!server.exchange(b"\x80\x2e\x01\x03\x01").await.contains("HTTP"));
    std::fs::copy(fixture("two.cert.pem"), &certificate).unwrap();
    let error = tls.reload().unwrap_err();
    assert!(error.to_string().contains("cannot be used"), "{error}");
    assert!(connect("one.cert.pem", b"h2").await.is_ok(), "the old one stays");
    put("two");
    tls.reload().unwrap();
    assert!(connect("one.cert.pem", b"h2").await.is_err());
    let two = ask_http2(connect("two.cert.pem", b"h2").await.unwrap()).await;
    assert_eq!(two.status(), StatusCode::OK);
    drop((one, two));
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn silent_handshake_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    copy_key("one.key.pem", &key, 0o600);
    let tls = Tls::load(&fixture("one.cert.pem"), &key).unwrap();
    let endpoint = "127.0.0.1:0".parse().unwrap();
    let server = serve_at(&endpoint, ConnectionLimits::default(), Some(Arc::new(tls))).await;
    let Endpoint::Tcp(address) = server.endpoint else { panic!("{}", server.endpoint) };
    // Over TCP a busy kernel may deliver what was sent when a clock by itself had gone on.
    let held = hold_clock();
    let mut silent = std::net::TcpStream::connect(address).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // It was accepted before another one that is answered.
    let name = "localhost".try_into().unwrap();
    let other = trusting("one.cert.pem", b"http/1.1").connect(name, server.connect().await).await;
    assert_eq!(ask_http1(other.unwrap()).await.status(), StatusCode::OK);
    tokio::time::advance(Duration::from_secs(20)).await;
    let read = tokio::task::spawn_blocking(move || silent.read(&mut [0])).await.unwrap();
    assert_eq!(read.unwrap(), 0);
    drop(held);
    server.stop().await;
}

#[test]
fn unusable_certificate_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let [empty, one, two, open] = ["empty", "one", "two", "open"].map(|name| dir.path().join(name));
    std::fs::write(&empty, "").unwrap();
    std::fs::set_permissions(&empty, Permissions::from_mode(0o600)).unwrap();
    copy_key("one.key.pem", &one, 0o600);
    copy_key("two.key.pem", &two, 0o400);
    copy_key("one.key.pem", &open, 0o640);
    let load = |certificate: &Path, key: &Path| {
        let error = Tls::load(certificate, key).unwrap_err();
        assert!(!error.hint().is_empty());
        error.to_string()
    };
    assert!(load(&empty, &one).contains("has no certificate"));
    assert!(load(&dir.path().join("none"), &empty).starts_with("cannot read "));
    assert!(load(&fixture("one.cert.pem"), &empty).starts_with("cannot read "));
    assert!(load(&fixture("one.cert.pem"), &two).contains("cannot be used"));
    let answer = load(&fixture("one.cert.pem"), &open);
    assert!(answer.contains("open has a secret and is open to others"), "{answer}");
}
