//! Ports of sandboxes: by a path of the API, as a tunnel, and at hosts of their own.

use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::future::BoxFuture;
use hyper_util::rt::TokioIo;
use sandbox_api::service::{KeptSpec, SandboxRequest, Subject};
use sandbox_api::{ByteSize, Ports};
use sandbox_http::{
    Admit, Admitted, ByHost, Caller, ConnectionLimits, Http, HttpConfig, Mount, MountAccess, Peer,
    Refusal, Scope, Shutdown,
};
use sandbox_service::{PreviewConfig, ServiceConfig, Target};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;
use tower::ServiceExt as _;

use super::nodes::{Map, Node, has, nothing_mounted, two_nodes};
use super::sockets::{Running, serve};
use super::{Answer, Api, Tokens, World, request};

const PORT: u16 = 8080;
const DOMAIN: &str = "preview.example.net";

fn previews(may_be_public: bool) -> Option<PreviewConfig> {
    Some(PreviewConfig { domain: DOMAIN.to_owned(), scheme: "https", port: None, may_be_public })
}

impl World {
    /// A sandbox of alice whose port may be reached, and what is connected there.
    pub(super) async fn with_port(&self) -> (String, UnboundedReceiver<DuplexStream>) {
        let alice = Subject::new("alice").unwrap();
        let ports: Ports = "8080".parse().unwrap();
        let spec = KeptSpec { image: Some("debian:13".to_owned()), ports, ..KeptSpec::default() };
        let request = SandboxRequest { spec, ..SandboxRequest::default() };
        let id = self.service.create_sandbox(&alice, request).await.unwrap().sandbox.id;
        (id, self.launcher.listen(PORT))
    }
}

/// An API with previews.
async fn api_with_previews(may_be_public: bool, has_auth: bool) -> Api {
    let dir = tempfile::tempdir().unwrap();
    let with =
        |config: ServiceConfig| ServiceConfig { previews: previews(may_be_public), ..config };
    let (world, shutdown) = (World::with_config(dir, with).await, Shutdown::default());
    let hosts = vec!["api.example.org".to_owned()];
    let config = HttpConfig { hosts, has_auth, ..HttpConfig::default() };
    let service = world.service.clone();
    let http = Http::new(config, service, Arc::new(Tokens), Vec::new(), shutdown.clone());
    Api { router: http.router(), world, shutdown }
}

/// Answers each request at the port with its head and its body, and with headers that do harm elsewhere.
pub(super) fn echo(mut connections: UnboundedReceiver<DuplexStream>) {
    let answer = async |request: Request<Body>| {
        let (head, body) = request.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let mut names: Vec<String> =
            head.headers.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
        names.sort();
        let seen = json!({ "method": head.method.as_str(), "uri": head.uri.to_string(),
            "headers": names, "body": String::from_utf8_lossy(&body) });
        let harm = [
            ("set-cookie", "a=b; Domain=example.net"),
            ("access-control-allow-origin", "*"),
            ("service-worker-allowed", "/"),
            ("clear-site-data", "\"*\""),
        ];
        (StatusCode::IM_A_TEAPOT, harm, seen.to_string())
    };
    let router = Router::new().fallback(any(answer));
    tokio::spawn(async move {
        while let Some(connection) = connections.recv().await {
            let service = hyper_util::service::TowerToHyperService::new(router.clone());
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(connection), service));
        }
    });
}

/// What the guest saw of a request.
pub(super) fn seen(answer: &Answer) -> Value {
    assert_eq!(answer.status, 418, "{answer:?}");
    answer.json()
}

pub(super) fn has_header(seen: &Value, start: &str) -> bool {
    let headers = seen["headers"].as_array().unwrap();
    headers.iter().any(|header| header.as_str().unwrap().starts_with(start))
}

impl Api {
    /// The answer, of which the document says nothing.
    pub(super) async fn ask(&self, request: Request<Body>) -> Answer {
        use http_body_util::BodyExt as _;
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }
}

#[tokio::test]
async fn request_goes_to_the_port_and_no_credential_with_it() {
    let api = api_with_previews(false, true).await;
    let (id, connections) = api.world.with_port().await;
    echo(connections);
    let path = format!("/v1/sandboxes/{id}/ports/8080/http/a%2Fb//c?x=1&y=%20");
    let request = request(Method::PATCH, &path)
        .header("cookie", "session=1")
        .header("x-api-key", "k")
        .header("content-encoding", "gzip")
        .header("x-own", "1")
        .body("a body".into())
        .unwrap();
    let answer = api.ask(request).await;
    let seen = seen(&answer);
    assert_eq!((&seen["method"], &seen["body"]), (&json!("PATCH"), &json!("a body")));
    assert_eq!(seen["uri"], "/a%2Fb//c?x=1&y=%20");
    for there in ["host=\"localhost:8080\"", "x-own=", "content-encoding=", "content-length=\"6\""]
    {
        assert!(has_header(&seen, there), "{there}: {seen:#}");
    }
    for secret in ["authorization", "cookie", "x-api-key", "transfer-encoding"] {
        assert!(!has_header(&seen, secret), "{secret}: {seen:#}");
    }
    // Its root has a path too.
    let root = format!("/v1/sandboxes/{id}/ports/8080/http/");
    let answer = api.ask(super::request(Method::GET, &root).body(Body::empty()).unwrap()).await;
    assert_eq!(super::ports::seen(&answer)["uri"], "/");
}

#[tokio::test]
async fn answer_of_a_port_is_no_page_on_the_origin_of_the_api() {
    let api = api_with_previews(false, true).await;
    let (id, connections) = api.world.with_port().await;
    echo(connections);
    let path = format!("/v1/sandboxes/{id}/ports/8080/http/");
    let ask = async |name: &str, value: &str| {
        let request = request(Method::GET, &path).header(name, value).body(Body::empty()).unwrap();
        api.ask(request).await
    };
    let answer = ask("accept", "*/*").await;
    assert_eq!(answer.status, 418);
    assert_eq!(answer.header("content-security-policy"), "sandbox");
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    for name in
        ["set-cookie", "access-control-allow-origin", "service-worker-allowed", "clear-site-data"]
    {
        assert!(!answer.headers.contains_key(name), "{name}");
    }
    for (name, value) in [("origin", "http://api.example.org"), ("sec-fetch-mode", "navigate")] {
        assert_eq!(ask(name, value).await.problem().status, 403, "{name}");
    }
    // Other subjects have no such sandbox.
    let mut bobs = request(Method::GET, &path).body(Body::empty()).unwrap();
    bobs.headers_mut().insert("authorization", "Bearer bob".parse().unwrap());
    assert_eq!(api.ask(bobs).await.problem().status, 404);
    // Without authentication any page could be the caller.
    let open = api_with_previews(false, false).await;
    let (id, connections) = open.world.with_port().await;
    echo(connections);
    let path = format!("/v1/sandboxes/{id}/ports/8080/http/");
    let refused = open.ask(request(Method::GET, &path).body(Body::empty()).unwrap()).await;
    assert_eq!(refused.problem().status, 403);
}

#[tokio::test]
async fn port_is_one_that_the_spec_lists_and_at_which_something_listens() {
    let api = api_with_previews(false, true).await;
    let (id, connections) = api.world.with_port().await;
    let ask = async |port: &str| {
        let path = format!("/v1/sandboxes/{id}/ports/{port}/http/");
        api.ask(request(Method::GET, &path).body(Body::empty()).unwrap()).await.problem()
    };
    assert_eq!(ask("22").await.status, 403);
    for none in ["0", "65536", "x", "-1"] {
        assert_eq!(ask(none).await.status, 404, "{none}");
    }
    drop(connections);
    let closed = ask("8080").await;
    assert_eq!((closed.status, closed.kind.as_str()), (502, "port_closed"));
    // What it speaks is no HTTP.
    let mut connections = api.world.launcher.listen(PORT);
    tokio::spawn(async move {
        while let Some(mut connection) = connections.recv().await {
            _ = connection.write_all(b"220 mail.example.org ESMTP\r\n").await;
        }
    });
    assert_eq!(ask("8080").await.status, 502);
    // Nor has it an end.
    for (interim, status) in [(16, 200), (usize::MAX, 502)] {
        let mut connections = api.world.launcher.listen(PORT);
        tokio::spawn(async move {
            let mut connection = connections.recv().await.unwrap();
            _ = connection.read(&mut [0; 1024]).await;
            let (hints, last) = (b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n");
            for _ in 0..interim {
                if connection.write_all(hints).await.is_err() {
                    return;
                }
            }
            _ = connection.write_all(last).await;
        });
        let path = format!("/v1/sandboxes/{id}/ports/8080/http/");
        let answer = api.ask(request(Method::GET, &path).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, status, "{interim}");
    }
    // A body passes piece by piece: its length takes no memory.
    let mut connections = api.world.launcher.listen(PORT);
    let guest = tokio::spawn(async move {
        let mut connection = connections.recv().await.unwrap();
        _ = connection.read(&mut [0; 1024]).await;
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n";
        connection.write_all(head).await.unwrap();
        connection
    });
    let path = format!("/v1/sandboxes/{id}/ports/8080/http/");
    let asked = request(Method::GET, &path).body(Body::empty()).unwrap();
    let answer = api.router.clone().oneshot(asked).await.unwrap();
    assert_eq!(
        (answer.status(), &answer.headers()["content-length"]),
        (StatusCode::OK, &HeaderValue::from_static("1099511627776"))
    );
    drop(guest);
}

/// The host of a preview, and its token.
async fn open(api: &Api, id: &str, request: &Value) -> (String, Option<String>) {
    let answer = api.post(&format!("/v1/sandboxes/{id}/ports/8080/previews"), request).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let answer = answer.json();
    let url = answer["url"].as_str().unwrap();
    let host = url.strip_prefix("https://").unwrap().trim_end_matches('/').to_owned();
    (host, answer["token"].as_str().map(str::to_owned))
}

/// A request to a host, with this token.
fn to(host: &str, path: &str, token: Option<&str>) -> Request<Body> {
    let mut request = Request::get(path)
        .header("host", host)
        .extension(Peer::Tcp(([127, 0, 0, 1], 7).into()))
        .body(Body::empty())
        .unwrap();
    if let Some(token) = token {
        request.headers_mut().insert("sandbox-port-token", token.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn preview_needs_its_token_and_has_an_origin_of_its_own() {
    let api = api_with_previews(false, true).await;
    let (id, connections) = api.world.with_port().await;
    echo(connections);
    let (host, token) = open(&api, &id, &json!({})).await;
    let token = token.unwrap();
    assert_eq!(host, format!("8080-{id}.{DOMAIN}"));
    // A page of it, its cookies, and its authentication: all are its own.
    let mut request = to(&host.to_uppercase(), "/v1/sandboxes?a=b", Some(&token));
    let headers: [(&str, &str); 4] = [
        ("origin", "https://elsewhere.example"),
        ("sec-fetch-mode", "navigate"),
        ("cookie", "a=b; sandboxctl_session=x; __Host-sandboxctl_session=y"),
        ("authorization", "Basic eA=="),
    ];
    for (name, value) in headers {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    // As an attached page sends its token; what is not ours is the guest's.
    let token_of_ours = format!("sbx_{}_{}", "0".repeat(16), "1".repeat(64));
    let protocols = format!("chat, bearer.{token_of_ours}, bearer.of-an-issuer,bearer.own");
    request.headers_mut().insert("sec-websocket-protocol", protocols.parse().unwrap());
    let answer = api.ask(request).await;
    let seen = seen(&answer);
    assert_eq!(seen["uri"], "/v1/sandboxes?a=b");
    assert!(has_header(&seen, "sec-websocket-protocol=\"chat, bearer.own\""), "{seen:#}");
    for there in ["origin=", "cookie=\"a=b\"", "authorization=", "x-forwarded-host=\"8080-"] {
        assert!(has_header(&seen, there), "{there}: {seen:#}");
    }
    assert!(!has_header(&seen, "sandbox-port-token") && !has_header(&seen, "sandboxctl-target"));
    assert_eq!(answer.header("set-cookie"), "a=b");
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    assert!(!answer.headers.contains_key("content-security-policy"));

    let status = async |host: &str, token: Option<&str>| {
        api.ask(to(host, "/", token)).await.problem().status
    };
    assert_eq!(status(&host, None).await, 401);
    // Of another port, another sandbox, another time.
    assert_eq!(status(&host.replacen("8080", "8081", 1), Some(&token)).await, 401);
    let (other, _) = api.world.with_port().await;
    assert_eq!(status(&host.replace(&id, &other), Some(&token)).await, 401);
    let later = format!("9{token}");
    assert_eq!(status(&host, Some(&later)).await, 401);
    let (_, over) = open(&api, &id, &json!({ "ttl_ms": 0 })).await;
    assert_eq!(status(&host, over.as_deref()).await, 401);
    // Two of them are none.
    let mut twice = to(&host, "/", Some(&token));
    twice.headers_mut().append("sandbox-port-token", token.parse().unwrap());
    assert_eq!(api.ask(twice).await.status, 401);
    // A sandbox that is gone.
    api.world.service.delete_sandbox(&Subject::new("alice").unwrap(), &id).await.unwrap();
    assert_eq!(status(&host, Some(&token)).await, 401);
}

#[tokio::test]
async fn token_in_any_form_of_authorization_does_not_reach_a_guest() {
    let api = api_with_previews(false, true).await;
    let (id, connections) = api.world.with_port().await;
    echo(connections);
    let (host, token) = open(&api, &id, &json!({})).await;
    let ours = format!("sbx_{}_{}", "0".repeat(16), "1".repeat(64));
    let basic = |text: String| format!("Basic {}", BASE64.encode(text));
    let unpadded = |text: String| basic(text).trim_end_matches('=').to_owned();
    for (value, arrives) in [
        (format!("Bearer {ours}"), false),
        (format!("Bearer\t{ours}"), false),
        (format!("Bearer \"{ours}\""), false),
        (format!("Bearer={ours}"), false),
        (format!("Token token={ours}, x=y"), false),
        (basic(format!("x:{ours}")), false),
        (basic(format!("{ours}:")), false),
        (unpadded(format!("{ours}:")), false),
        (basic("of-an-issuer:".to_owned()), false),
        // Others are the guest's.
        (basic("x:y".to_owned()), true),
        ("Bearer sbx_of-the-guest".to_owned(), true),
    ] {
        let mut request = to(&host, "/", token.as_deref());
        request.headers_mut().insert("authorization", value.parse().unwrap());
        let seen = seen(&api.ask(request).await);
        assert_eq!(has_header(&seen, "authorization"), arrives, "{value}: {seen:#}");
    }
}

#[tokio::test]
async fn host_of_previews_has_nothing_of_the_api_and_the_api_nothing_of_previews() {
    let api = api_with_previews(false, true).await;
    let (id, connections) = api.world.with_port().await;
    echo(connections);
    let (host, token) = open(&api, &id, &json!({})).await;
    for other in
        [DOMAIN.to_owned(), format!("api.{DOMAIN}"), format!("a.{host}"), format!("x-{host}")]
    {
        let answer = api.ask(to(&other, "/healthz", token.as_deref())).await;
        assert_eq!(answer.problem().status, 421, "{other}");
    }
    assert_eq!(api.ask(to(&format!("{host}."), "/", token.as_deref())).await.status, 421);
    let mut of_server = to(&host, "*", token.as_deref());
    *of_server.method_mut() = Method::OPTIONS;
    assert_eq!(api.ask(of_server).await.problem().status, 400);
    // The way of a preview's request inside is none from outside.
    for path in [format!("/.preview/8080/{id}/"), "/.preview/".to_owned(), "/.preview".to_owned()] {
        let mut request = to("api.example.org", &path, token.as_deref());
        request.headers_mut().insert("authorization", "Bearer alice".parse().unwrap());
        assert_eq!(api.ask(request).await.problem().status, 404, "{path}");
    }
    // Not one that is public where that is not allowed, nor one of a port that is not listed.
    let path = |port: u16| format!("/v1/sandboxes/{id}/ports/{port}/previews");
    assert_eq!(api.post(&path(8080), &json!({ "public": true })).await.problem().status, 403);
    assert_eq!(api.post(&path(22), &json!({})).await.problem().status, 403);
    let without = super::api().await;
    let (id, _) = without.world.with_port().await;
    let path = format!("/v1/sandboxes/{id}/ports/8080/previews");
    assert_eq!(without.post(&path, &json!({})).await.problem().status, 422);
}

#[tokio::test]
async fn public_preview_has_its_token_in_its_host() {
    let api = api_with_previews(true, true).await;
    let (id, connections) = api.world.with_port().await;
    echo(connections);
    let (host, token) = open(&api, &id, &json!({ "public": true })).await;
    assert_eq!(token, None);
    assert!(host.split('.').next().unwrap().len() <= 63, "{host}");
    assert_eq!(seen(&api.ask(to(&host, "/a", None)).await)["uri"], "/a");
    // A browser asks there before it sends something: that is for the guest.
    let mut preflight = to(&host, "/a", None);
    *preflight.method_mut() = Method::OPTIONS;
    preflight.headers_mut().insert("origin", "https://elsewhere.example".parse().unwrap());
    preflight.headers_mut().insert("access-control-request-method", "PUT".parse().unwrap());
    assert_eq!(seen(&api.ask(preflight).await)["method"], "OPTIONS");
    // Each character of it counts, and so do the port and the sandbox.
    let (label, _) = host.split_once('.').unwrap();
    for at in ["8080-".len() + id.len() + 1, label.len() - 1] {
        let mut changed = label.as_bytes().to_vec();
        changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
        let changed = format!("{}.{DOMAIN}", String::from_utf8(changed).unwrap());
        assert_eq!(api.ask(to(&changed, "/", None)).await.status, 401, "{changed}");
    }
    let other = host.replacen("8080", "8081", 1);
    assert_eq!(api.ask(to(&other, "/", None)).await.status, 401);
    let (_, over) = (open(&api, &id, &json!({})).await, json!({ "public": true, "ttl_ms": 0 }));
    let (over, _) = open(&api, &id, &over).await;
    assert_eq!(api.ask(to(&over, "/", None)).await.status, 401);
}

/// What comes of this, up to the end of a head.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = timeout(Duration::from_secs(30), stream.read_u8()).await.unwrap();
        match byte {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

async fn connect(server: &Running, id: &str, headers: &str) -> (TcpStream, String) {
    let mut stream = server.connect().await;
    let head = format!(
        "POST /v1/sandboxes/{id}/ports/8080/connect HTTP/1.1\r\nHost: localhost\r\n\
         Authorization: Bearer alice\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_head(&mut stream).await;
    (stream, answer)
}

#[tokio::test]
async fn tunnel_passes_bytes_and_each_end_of_them() {
    let server = serve(ConnectionLimits::default()).await;
    let (id, mut connections) = server.world.with_port().await;
    let upgrade = "Connection: Upgrade\r\nUpgrade: sandboxctl-tcp\r\n";
    let (mut stream, answer) = connect(&server, &id, upgrade).await;
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    let mut inside = connections.recv().await.unwrap();
    stream.write_all(b"not HTTP\0\xff").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut sent = Vec::new();
    inside.read_to_end(&mut sent).await.unwrap();
    assert_eq!(sent, b"not HTTP\0\xff");
    // The other direction is open.
    inside.write_all(b"an answer").await.unwrap();
    drop(inside);
    let mut answer = Vec::new();
    timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, b"an answer");
    for other in
        ["", "Connection: Upgrade\r\nUpgrade: websocket\r\n", "Upgrade: sandboxctl-tcp\r\n"]
    {
        let (_, answer) = connect(&server, &id, other).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{other}: {answer}");
    }
    drop(connections);
    let (_, answer) = connect(&server, &id, upgrade).await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn protocol_that_a_guest_changes_to_passes_through() {
    let server = serve(ConnectionLimits::default()).await;
    let (id, mut connections) = server.world.with_port().await;
    let mut stream = server.connect().await;
    let head = format!(
        "GET /v1/sandboxes/{id}/ports/8080/http/ws HTTP/1.1\r\nHost: localhost\r\n\
         Authorization: Bearer alice\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut inside = connections.recv().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(inside.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    assert!(
        head.starts_with("get /ws http/1.1\r\n") && head.contains("upgrade: websocket"),
        "{head}"
    );
    assert!(!head.contains("authorization"), "{head}");
    let answer =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    inside.write_all(answer.as_bytes()).await.unwrap();
    let answer = read_head(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    stream.write_all(b"ping").await.unwrap();
    let mut ping = [0; 4];
    inside.read_exact(&mut ping).await.unwrap();
    assert_eq!(&ping, b"ping");
    inside.write_all(b"pong").await.unwrap();
    stream.read_exact(&mut ping).await.unwrap();
    assert_eq!(&ping, b"pong");
    // When the client is gone the guest sees it.
    drop(stream);
    let mut rest = Vec::new();
    timeout(Duration::from_secs(30), inside.read_to_end(&mut rest)).await.unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn request_that_two_would_read_differently_is_refused_or_written_anew() {
    let server = serve(ConnectionLimits::default()).await;
    let (id, connections) = server.world.with_port().await;
    echo(connections);
    let ask = async |method: &str, rest: &str| {
        let head = format!(
            "{method} /v1/sandboxes/{id}/ports/8080/http/ HTTP/1.1\r\nAuthorization: Bearer alice\r\n\
             Connection: close\r\n{rest}"
        );
        server.exchange(head.as_bytes()).await
    };
    let host = "Host: localhost\r\n";
    for (rest, why) in [
        ("Host: localhost\r\nHost: localhost\r\n\r\n".to_owned(), "two hosts"),
        (format!("{host}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"), "two codings"),
        (format!("{host}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), "another coding"),
        (format!("{host}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"), "two lengths"),
        (format!("{host}Content-Length: +1\r\n\r\na"), "a sign"),
        (format!("{host}X-Folded: a\r\n b: c\r\n\r\n"), "a folded line"),
        (format!("{host}X-Space : a\r\n\r\n"), "a space before the colon"),
        (
            "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 4\r\n\r\nGET "
                .to_owned(),
            "an upgrade with a body",
        ),
    ] {
        let answer = ask("POST", &rest).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{why}: {answer}");
    }
    // Of both lengths one goes on: the body is what the chunks say.
    let both = format!(
        "{host}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
    );
    let answer = ask("POST", &both).await;
    let is_refused = answer.starts_with("HTTP/1.1 400");
    let has_one = answer.contains(r#""body":"body""#) && !answer.contains("content-length=\\\"3");
    assert!(is_refused || has_one, "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn other_node_answers_for_its_ports() {
    let (gateway, owner, map) = two_nodes(nothing_mounted()).await;
    let (id, connections) = owner.api.world.with_port().await;
    has(&map, Target::Sandbox(id.clone()), &owner);
    echo(connections);
    let path = format!("/v1/sandboxes/{id}/ports/8080/http/x");
    let request = request(Method::POST, &path).header("content-encoding", "gzip");
    let answer = gateway.api.ask(request.body("a body".into()).unwrap()).await;
    let seen = seen(&answer);
    assert_eq!((&seen["uri"], &seen["body"]), (&json!("/x"), &json!("a body")));
    for ours in ["authorization", "x-sandboxctl-forwarded"] {
        assert!(!has_header(&seen, ours), "{ours}: {seen:#}");
    }
    assert_eq!(answer.header("content-security-policy"), "sandbox");
    assert!(!answer.headers.contains_key("set-cookie"));
}

/// Lets those in who have a key, to the sandbox that they name.
struct ByKey;

impl Admit for ByKey {
    fn route<'a>(&'a self, host: &'a str, head: &'a mut Parts) -> BoxFuture<'a, bool> {
        let is_its = host == format!("own.{DOMAIN}");
        if is_its {
            head.uri = format!("/own{}", head.uri.path()).parse().unwrap();
        }
        Box::pin(ready(is_its))
    }

    fn admit<'a>(
        &'a self,
        head: &'a mut Parts,
        _: Peer,
    ) -> BoxFuture<'a, Result<Admitted, Response>> {
        let admitted = match head.headers.remove("x-own-key") {
            _ if head.method == Method::OPTIONS => Err(StatusCode::NO_CONTENT.into_response()),
            Some(subject) => {
                let is_by_host = head.extensions.get::<ByHost>().is_some();
                head.headers.insert("x-by-host", HeaderValue::from(u16::from(is_by_host)));
                let subject = Subject::new(subject.to_str().unwrap()).unwrap();
                let target = match head.headers.get("x-sandbox") {
                    Some(id) => Target::Sandbox(id.to_str().unwrap().to_owned()),
                    None => Target::Here,
                };
                let caller = Some(Caller { subject, scopes: vec![Scope::Sandboxes] });
                let is_public = head.headers.contains_key("x-stranger");
                Ok(Admitted { caller, is_public, target })
            }
            None => Err((StatusCode::UNAUTHORIZED, "its own words").into_response()),
        };
        Box::pin(ready(admitted))
    }

    fn refuse(&self, refusal: Refusal) -> Response {
        let status = StatusCode::from_u16(refusal.problem().status).unwrap();
        (status, format!("in its own words: {refusal}")).into_response()
    }
}

/// What is mounted says what it gets of a request, and where it is.
fn mounted(at: &'static str) -> Mount {
    let answer = async move |request: Request<Body>| {
        let (head, body) = request.into_parts();
        let subject =
            head.extensions.get::<Caller>().map(|caller| caller.subject.as_str().to_owned());
        let target = format!("{:?}", head.extensions.get::<Target>().unwrap());
        let header =
            |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let headers = ["authorization", "content-encoding", "x-by-host", "x-own-key"].map(header);
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap().len();
        json!({ "at": at, "path": head.uri.path(), "subject": subject,
            "target": target, "headers": headers, "bytes": bytes })
        .to_string()
    };
    Mount {
        path: "/own",
        service: Router::new().route("/own/{*path}", any(answer)),
        access: MountAccess::Own(Arc::new(ByKey)),
        max_request: ByteSize::b(1 << 20),
    }
}

#[tokio::test]
async fn mount_with_access_of_its_own_decides_who_may_use_it() {
    let dir = tempfile::tempdir().unwrap();
    let with = |config: ServiceConfig| ServiceConfig { previews: previews(false), ..config };
    let (world, shutdown) = (World::with_config(dir, with).await, Shutdown::default());
    let (service, mounts) = (world.service.clone(), vec![mounted("here")]);
    let config = HttpConfig { max_requests_of_a_subject: 1, ..HttpConfig::default() };
    let http = Http::new(config, service, Arc::new(Tokens), mounts, shutdown.clone());
    let api = Api { router: http.router(), world, shutdown };
    let page = |method: Method, path: &str| {
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", "rebound.example")
            .header("origin", "https://page.example")
            .header("sandboxctl-target", "forged")
    };
    // Any host and any page, and no header of the server around it.
    let preflight = page(Method::OPTIONS, "/own/a").header("access-control-request-method", "PUT");
    let answer = api.ask(preflight.body(Body::empty()).unwrap()).await;
    assert_eq!(
        (answer.status.as_u16(), answer.headers.contains_key("cache-control")),
        (204, false)
    );
    let unknown = api.ask(page(Method::GET, "/own/a").body(Body::empty()).unwrap()).await;
    assert_eq!((unknown.status.as_u16(), &unknown.body[..]), (401, &b"its own words"[..]));
    let known = page(Method::PUT, "/own/a")
        .header("x-own-key", "carol")
        .header("authorization", "Basic eA==")
        .header("content-encoding", "gzip");
    let answer = api.ask(known.body("12345".into()).unwrap()).await.json();
    assert_eq!(
        answer,
        json!({ "at": "here", "path": "/own/a", "subject": "carol", "target": "Here",
            "headers": ["Basic eA==", "gzip", "0", null], "bytes": 5 })
    );
    // By its host, below the domain of previews.
    let by_host = Request::get("/b").header("host", format!("own.{DOMAIN}:443"));
    let by_host = by_host.header("x-own-key", "carol").body(Body::empty()).unwrap();
    let answer = api.ask(by_host).await.json();
    assert_eq!((&answer["path"], &answer["headers"][2]), (&json!("/own/b"), &json!("1")));
    // What the server refuses, it says as the mount does.
    let large = page(Method::PUT, "/own/a").header("x-own-key", "carol");
    let large = api.ask(large.header("content-length", 2 << 20).body(Body::empty()).unwrap()).await;
    let text = String::from_utf8_lossy(&large.body).into_owned();
    assert!(large.status == 413 && text.starts_with("in its own words"), "{text}");
    // Other paths are the API's, with its checks.
    let elsewhere = api.ask(page(Method::GET, "/owned").body(Body::empty()).unwrap()).await;
    assert_eq!(elsewhere.problem().status, 421);
}

#[tokio::test]
async fn strangers_take_no_place_of_the_owner_and_have_no_name() {
    let world = World::new().await;
    let (service, mounts) = (world.service.clone(), vec![mounted("here")]);
    let audited = Arc::<Mutex<Vec<_>>>::default();
    let audit = audited.clone();
    let config = HttpConfig {
        max_requests_of_a_subject: 1,
        audit: Some(Arc::new(move |decision| {
            let subject = decision.subject.map(|subject| subject.as_str().to_owned());
            audit.lock().unwrap().push((decision.status, subject));
        })),
        ..HttpConfig::default()
    };
    let http = Http::new(config, service, Arc::new(Tokens), mounts, Shutdown::default());
    let ask = async |is_stranger: bool| {
        let mut request = Request::get("/own/a").header("x-own-key", "carol");
        if is_stranger {
            request = request.header("x-stranger", "1");
        }
        let request = request.header("authorization", "Bearer of-an-issuer");
        http.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    };
    // In flight until its body is read.
    let held = ask(true).await;
    assert_eq!((held.status().as_u16(), ask(true).await.status().as_u16()), (200, 429));
    assert_eq!(ask(false).await.status(), StatusCode::OK);
    let body = axum::body::to_bytes(held.into_body(), usize::MAX).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    // A credential of the API does not reach what is mounted.
    assert_eq!((&body["subject"], &body["headers"][0]), (&json!("carol"), &Value::Null));
    assert_eq!(ask(true).await.status(), StatusCode::OK);
    let expected = [(200, None), (429, None), (200, Some("carol".to_owned())), (200, None)];
    assert_eq!(*audited.lock().unwrap(), expected);
}

#[tokio::test]
async fn what_a_mount_admits_goes_to_the_node_that_has_it() {
    let map = Arc::<Mutex<Map>>::default();
    let gateway = Node::start_with(&map, World::new().await, vec![mounted("gateway")]).await;
    let owner = Node::start_with(&map, World::new().await, vec![mounted("owner")]).await;
    has(&map, Target::Sandbox("s".to_owned()), &owner);
    let ask = async |sandbox: Option<&str>| {
        let mut request = request(Method::POST, "/own/a").header("x-own-key", "carol");
        if let Some(sandbox) = sandbox {
            request = request.header("x-sandbox", sandbox);
        }
        let mut request = request.header("sandboxctl-target", "s").body("123".into()).unwrap();
        request.headers_mut().insert("authorization", HeaderValue::from_static("Basic eA=="));
        gateway.api.ask(request).await
    };
    let answer = ask(Some("s")).await.json();
    assert_eq!(
        answer,
        json!({ "at": "owner", "path": "/own/a", "subject": "carol", "bytes": 3,
            "target": "Sandbox(\"s\")", "headers": ["Basic eA==", null, "0", null] })
    );
    assert_eq!(ask(None).await.json()["at"], "gateway");
    // What a client takes off for the next node was never there: what is decided here is what goes there.
    let dropped = request(Method::POST, "/own/a")
        .header("x-own-key", "carol")
        .header("x-sandbox", "s")
        .header("connection", "x-sandbox, sandboxctl-target, x-by-host");
    let answer = gateway.api.ask(dropped.body(Body::empty()).unwrap()).await.json();
    assert_eq!((&answer["at"], &answer["target"]), (&json!("gateway"), &json!("Here")));
    // A stranger's goes there too.
    let stranger = request(Method::POST, "/own/a")
        .header("x-own-key", "carol")
        .header("x-sandbox", "s")
        .header("x-stranger", "1");
    let answer = gateway.api.ask(stranger.body(Body::empty()).unwrap()).await.json();
    assert_eq!((&answer["at"], &answer["target"]), (&json!("owner"), &json!("Sandbox(\"s\")")));
    // A node that is away, in the mount's words.
    map.lock().unwrap().at.push((Target::Sandbox("away".to_owned()), 99));
    let away = ask(Some("away")).await;
    let text = String::from_utf8_lossy(&away.body).into_owned();
    assert!(away.status == 503 && text.starts_with("in its own words"), "{text}");
}
