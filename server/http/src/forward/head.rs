//! The head of a request that is sent on, and of its answer.

use axum::http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, Version};

use opentelemetry::global;
use opentelemetry_http::HeaderInjector;
use sandbox_service::Target;

use crate::request::id::{self, X_REQUEST_ID};

/// What is of one connection alone (RFC 9110, 7.6.1).
const HOP_BY_HOP: [&str; 9] = [
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization",
    "te", "trailer", "transfer-encoding", "upgrade",
];

/// The path and the query, which a node signs and another one verifies.
pub(super) fn target(uri: &Uri) -> &str {
    uri.path_and_query().map_or("/", PathAndQuery::as_str)
}

/// Makes the head of a request what another node gets, but for who sends it.
pub(super) fn prepare(head: &mut Parts) {
    let host = head.uri.authority().and_then(|it| HeaderValue::from_str(it.as_str()).ok());
    let host = host.or_else(|| head.headers.get(HOST).cloned());
    drop_hop_by_hop(&mut head.headers, head.version == Version::HTTP_11);
    // The credentials of the caller are for the node that it called, which also asked for the body. What is mounted
    // has removed its own, and may have something else there.
    if head.extensions.get::<Target>().is_none() {
        head.headers.remove(AUTHORIZATION);
    }
    head.headers.remove(EXPECT);
    // The length is that of the body that is sent, which may have none: with that of another one, the node would
    // take the beginning of the next request on the connection for it.
    head.headers.remove(CONTENT_LENGTH);
    if let Some(host) = host {
        head.headers.insert(HOST, host);
    }
    if let Some(id) = id::current().and_then(|id| id.header()) {
        head.headers.insert(X_REQUEST_ID, id);
    }
    // The span of this node is the parent of that of the other one; without telemetry the caller's stays.
    global::get_text_map_propagator(|it| it.inject(&mut HeaderInjector(&mut head.headers)));
    head.uri =
        Uri::from(head.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/")));
    head.version = Version::HTTP_11;
}

/// Drops the headers of one connection from those that a decision is made by. What says how the request is read
/// stays.
pub(crate) fn drop_undecided(head: &mut Parts) {
    let headers = &mut head.headers;
    let kept =
        [HOST, CONTENT_LENGTH, TRANSFER_ENCODING].map(|name| (headers.get(&name).cloned(), name));
    drop_hop_by_hop(headers, head.version == Version::HTTP_11);
    for (value, name) in kept {
        if let Some(value) = value {
            headers.insert(name, value);
        }
    }
}

/// Drops the headers of one connection. What it changes to stays, where it may.
pub(crate) fn drop_hop_by_hop(headers: &mut HeaderMap, may_upgrade: bool) {
    let named = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named = named.flat_map(|value| value.split(','));
    let named: Vec<_> = named.filter_map(|name| name.trim().parse::<HeaderName>().ok()).collect();
    let upgrade = headers.get(UPGRADE).filter(|_| may_upgrade && named.contains(&UPGRADE)).cloned();
    for name in named.iter().map(HeaderName::as_str).chain(HOP_BY_HOP) {
        headers.remove(name);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, upgrade);
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn prepared(request: axum::http::request::Builder) -> Vec<(String, String)> {
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        prepare(&mut head);
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let mut all: Vec<_> =
            head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        all.push(("target".to_owned(), head.uri.to_string()));
        all.sort();
        all
    }

    #[test]
    fn headers_of_the_connection_and_credentials_stay_behind() {
        let request = Request::get("/v1/x?a=b")
            .header("connection", "close, X-Private , host")
            .header("x-private", "1")
            .header("keep-alive", "timeout=5")
            .header("transfer-encoding", "chunked")
            .header("authorization", "Bearer secret")
            .header("expect", "100-continue")
            .header("content-length", "40")
            .header("upgrade", "websocket")
            .header("host", "api.example.org")
            .header("idempotency-key", "k")
            .header("traceparent", "00-1-2-01");
        let expected = [
            ("host", "api.example.org"),
            ("idempotency-key", "k"),
            ("target", "/v1/x?a=b"),
            ("traceparent", "00-1-2-01"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(prepared(request), expected);
    }

    #[test]
    fn host_of_http2_is_in_the_target_and_becomes_a_header() {
        let request = Request::get("https://api.example.org/v1").version(Version::HTTP_2);
        let expected = [("host", "api.example.org"), ("target", "/v1")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(prepared(request), expected);
    }

    #[test]
    fn upgrade_that_is_asked_for_goes_on() {
        let request = Request::get("/")
            .header("connection", "keep-alive, Upgrade")
            .header("upgrade", "websocket")
            .header("host", "h");
        let expected =
            [("connection", "upgrade"), ("host", "h"), ("target", "/"), ("upgrade", "websocket")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(prepared(request), expected);
    }
}
