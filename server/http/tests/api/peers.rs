//! The port for nodes, as callers see it that are not nodes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use sandbox_api::service::{Subject, Time};
use sandbox_auth::{ForwardKey, Receiver};
use sandbox_http::{Caller, Scope};
use sandbox_service::Target;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use super::World;
use super::nodes::{KEY, Map, Node};

/// Takes any server for the one that it wants.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Sends a request to a node over TLS, with these headers. Its answer.
async fn send(node: &Node, target: &str, headers: &[&str]) -> String {
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    let stream = TcpStream::connect(&node.session.address).await.unwrap();
    let name = ServerName::try_from("any").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let head = format!("GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    _ = stream.read_to_string(&mut answer).await;
    answer
}

fn caller(subject: &str) -> Caller {
    Caller { subject: Subject::new(subject).unwrap(), scopes: vec![Scope::Sandboxes] }
}

/// The header of a request to this target.
fn signed(key: [u8; 32], receiver: &Receiver, target: &str, now: Time) -> String {
    let header = ForwardKey::new(&key).sign(receiver, "GET", target, &caller("alice"), now);
    format!("x-sandboxctl-forwarded: {header}")
}

fn mounted() -> Router {
    Router::new().route("/mcp", get(async || "let in"))
}

async fn node() -> (Node, Arc<Mutex<Map>>) {
    let map = Arc::default();
    (Node::start(&map, World::new().await, mounted()).await, map)
}

const TARGET: &str = "/v1/sandboxes";

#[tokio::test]
async fn request_is_let_in_with_the_header_of_a_node_alone() {
    let (node, _map) = node().await;
    let (receiver, now) = (node.session.certificate, Time::now());
    let valid = signed(KEY, &receiver, TARGET, now);
    let let_in = send(&node, TARGET, &[&valid]).await;
    assert!(let_in.starts_with("HTTP/1.1 200 "), "{let_in}");
    let long_ago = now.before(Duration::from_secs(3600));
    let some_day = now.after(Duration::from_secs(3600));
    let fresh = || signed(KEY, &receiver, TARGET, Time::now());
    let other_node = signed(KEY, &[1; 32], TARGET, now);
    let tampered = fresh().replace(" sandboxes ", " admin ");
    for (headers, reason) in [
        (vec![], "does not have one header"),
        (vec!["authorization: Bearer admin".to_owned()], "does not have one header"),
        (vec![fresh(), fresh()], "does not have one header"),
        (vec![valid], "a second time"),
        (vec![signed([0; 32], &receiver, TARGET, now)], "forged"),
        (vec![signed(KEY, &receiver, "/v1/executions", now)], "forged"),
        (vec![other_node], "forged"),
        (vec![tampered], "forged"),
        (vec![signed(KEY, &receiver, TARGET, long_ago)], "expired"),
        (vec![signed(KEY, &receiver, TARGET, some_day)], "future"),
        (vec!["x-sandboxctl-forwarded: v1 a b c d e".to_owned()], "unknown form"),
    ] {
        let headers: Vec<_> = headers.iter().map(String::as_str).collect();
        let refused = send(&node, TARGET, &headers).await;
        assert!(refused.starts_with("HTTP/1.1 401 "), "{reason}: {refused}");
        assert!(!refused.contains(reason), "{refused}");
        let (status, logged) = node.audit.lock().unwrap().pop().unwrap();
        assert_eq!(status, 401);
        assert!(logged.as_deref().unwrap().contains(reason), "{reason}: {logged:?}");
    }
}

#[tokio::test]
async fn public_routes_are_not_public_there() {
    let (node, _map) = node().await;
    for target in ["/healthz", "/docs", "/v1/openapi.json", "/metrics", "/mcp", "/nothing"] {
        let refused = send(&node, target, &["authorization: Bearer admin"]).await;
        assert!(refused.starts_with("HTTP/1.1 401 "), "{target}: {refused}");
    }
}

#[tokio::test]
async fn header_gives_the_scopes_that_it_has() {
    let (node, _map) = node().await;
    let receiver = node.session.certificate;
    let ask = async |target: &str| {
        let header = signed(KEY, &receiver, target, Time::now());
        send(&node, target, &[&header]).await
    };
    assert!(ask("/mcp").await.ends_with("let in"));
    assert!(ask("/v1/executions").await.starts_with("HTTP/1.1 403 "));
    assert!(ask("/metrics").await.starts_with("HTTP/1.1 403 "));
}

#[tokio::test]
async fn forwarded_request_is_not_sent_on() {
    let (node, map) = node().await;
    let other = Node::start(&map, World::new().await, mounted()).await;
    let target = Target::Sandbox("0f7c".to_owned());
    map.lock().unwrap().at.push((target, other.session.id));
    let header = signed(KEY, &node.session.certificate, "/v1/sandboxes/0f7c", Time::now());
    let refused = send(&node, "/v1/sandboxes/0f7c", &[&header]).await;
    assert!(refused.starts_with("HTTP/1.1 421 "), "{refused}");
    assert!(other.audit.lock().unwrap().is_empty());
}

#[tokio::test]
async fn time_is_that_of_the_cluster() {
    let (node, map) = node().await;
    map.lock().unwrap().later = Duration::from_secs(3600);
    let receiver = node.session.certificate;
    let header = signed(KEY, &receiver, TARGET, Time::now());
    assert!(send(&node, TARGET, &[&header]).await.starts_with("HTTP/1.1 401 "));
    let later = Time::now().after(Duration::from_secs(3600));
    let header = signed(KEY, &receiver, TARGET, later);
    assert!(send(&node, TARGET, &[&header]).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn plain_http_is_refused() {
    let (node, _map) = node().await;
    let mut stream = TcpStream::connect(&node.session.address).await.unwrap();
    let header = signed(KEY, &node.session.certificate, TARGET, Time::now());
    let head = format!("GET {TARGET} HTTP/1.1\r\nhost: x\r\n{header}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    _ = stream.read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

/// On the ports for callers the header is nothing.
#[tokio::test]
async fn header_of_a_node_gives_nothing_on_the_ports_for_callers() {
    let (node, _map) = node().await;
    let header = signed(KEY, &node.session.certificate, TARGET, Time::now());
    let (_, value) = header.split_once(": ").unwrap();
    let mut request = super::request(axum::http::Method::GET, TARGET)
        .header("x-sandboxctl-forwarded", value)
        .body(axum::body::Body::empty())
        .unwrap();
    request.headers_mut().remove("authorization");
    assert_eq!(node.api.send(request).await.problem().status, 401);
}
