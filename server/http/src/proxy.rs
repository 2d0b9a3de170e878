//! HTTP to a port of a sandbox: one connection a request, whose head is written anew both ways.
//!
//! What a guest answers is not trusted: on the API's own origin it is no page, and it sets nothing there. What a
//! client sends is the guest's, but for credentials that are ours.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, COOKIE, HOST,
    REFERRER_POLICY, SET_COOKIE, TRANSFER_ENCODING, UPGRADE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, Version};
use axum::response::Response;
use futures_util::TryFutureExt as _;
use http_body_util::{BodyStream, StreamBody};
use hyper::body::Body as _;
use hyper::client::conn::http1;
use hyper::ext::on_informational;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use sandbox_api::{ErrorKind, PORT_TOKEN, ProblemKind};
use sandbox_service::PortStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::forward::head::drop_hop_by_hop;
use crate::forward::tunnel;
use crate::mount;
use crate::refusal::Refusal;
use crate::serve::places;

/// How long nothing may come or go on a connection.
const IDLE: Duration = Duration::from_secs(300);
/// The same once it is a WebSocket, or any other tunnel.
const TUNNEL_IDLE: Duration = Duration::from_secs(3600);
/// The most bytes of an answer's head.
const MAX_HEAD: usize = 32 << 10;
const MAX_HEADERS: usize = 100;
/// The most interim answers (1xx) before the one to a request: a guest may not send them for ever.
const MAX_INTERIM: usize = 16;

/// What never reaches a guest. A credential of the API in `Authorization` was removed when a request was let in.
const OURS: [&str; 5] = [
    "x-api-key",
    "x-access-token",
    PORT_TOKEN,
    "e2b-traffic-access-token",
    sandbox_auth::FORWARDED,
];
/// What of an answer may be on the API's own origin: what says how to read it, and no header that a browser, a client
/// that follows it with its token, or a proxy in front obeys.
const OF_CONTENT: [&str; 26] = [
    "accept-ranges", "age", "allow", "cache-control", "connection", "content-disposition",
    "content-encoding", "content-language", "content-length", "content-range", "content-type",
    "date", "etag", "expires", "last-modified", "retry-after", "sec-websocket-accept",
    "sec-websocket-extensions", "sec-websocket-protocol", "server", "upgrade", "vary",
    "content-digest", "ratelimit", "x-request-id", "x-total-count",
];
/// What a proxy says of a request: what a client says is not passed on as if it were ours.
const X_FORWARDED: &str = "x-forwarded-";
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// How a request is passed on.
#[derive(Debug, Clone)]
pub struct ProxyOptions {
    /// The `Host` that the guest sees.
    pub host: HostHeader,
    /// Whose origin the answer is on.
    pub guard: Guard,
    /// By which scheme a browser reaches this host, if that is known.
    pub scheme: Option<&'static str>,
    /// When upgraded connections end: with the server.
    pub stop: CancellationToken,
}

/// The `Host` that a guest sees. The one of the request is in `X-Forwarded-Host`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostHeader {
    /// `localhost:PORT`, which development servers answer.
    Local(u16),
    /// That of the request.
    Original,
    /// This one.
    Named(HeaderValue),
}

/// Whose origin an answer is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// The API's: it is no page, and changes nothing there.
    Api,
    /// One that this port of this sandbox has alone.
    Open,
}

/// Why a guest has not answered a request.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The request cannot be passed on.
    #[error("{0}")]
    Malformed(&'static str),
    /// What listens there has not answered in HTTP.
    #[error("what listens at this port has not answered in HTTP")]
    Broken(#[source] axum::BoxError),
}

impl From<ProxyError> for Refusal {
    fn from(error: ProxyError) -> Self {
        let kind = match error {
            ProxyError::Malformed(_) => ProblemKind::Malformed,
            // Not a closed port: a client repeats a request to one, and this one may have been performed.
            ProxyError::Broken(_) => ErrorKind::AgentLost.into(),
        };
        Self::new(kind, error.to_string())
    }
}

/// Sends one request, whose URI is the guest's, over a connection to a port, and returns the answer as it comes.
///
/// # Errors
///
/// [`ProxyError`]. The guest may have done something.
pub async fn proxy(
    stream: PortStream,
    request: Request,
    options: ProxyOptions,
) -> Result<Response, ProxyError> {
    let (mut head, body) = request.into_parts();
    let upgrade = head.extensions.remove::<OnUpgrade>();
    let held = places(&head.extensions);
    let host = head.uri.authority().map(|it| it.as_str().to_owned());
    write_head(&mut head.headers, head.version, host.as_deref(), &options)?;
    head.uri =
        Uri::from(head.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/")));
    head.version = Version::HTTP_11;
    head.extensions.clear();

    let broken = |error: hyper::Error| ProxyError::Broken(error.into());
    let traffic = Arc::<Traffic>::default();
    let stream = TokioIo::new(IdleGuard::new(stream, traffic.clone()));
    let mut client = http1::Builder::new();
    client.max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    // Simple servers look for `Host`, as most clients write it.
    client.title_case_headers(true);
    let (mut sender, connection) = client.handshake(stream).await.map_err(broken)?;
    // It ends with its answer, or when the request is dropped.
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to a port broke off");
        }
    });
    let mut request = Request::from_parts(head, body);
    let counted = traffic.clone();
    on_informational(&mut request, move |_| _ = counted.interim.fetch_add(1, Ordering::Relaxed));
    let answer = sender.send_request(request).await.map_err(broken)?;
    let (mut head, body) = answer.into_parts();
    let upgrades = head.status == StatusCode::SWITCHING_PROTOCOLS;
    let guest = head.extensions.remove::<OnUpgrade>();
    guard_head(&mut head.headers, upgrades, options.guard);
    head.version = Version::HTTP_11;
    head.extensions.clear();
    if !upgrades {
        // What passes piece by piece takes memory by the piece, however long it says that it is.
        let body = match body.size_hint().exact() {
            Some(0) => Body::new(body),
            _ => Body::new(StreamBody::new(BodyStream::new(body))),
        };
        return Ok(Response::from_parts(head, body));
    }
    let (Some(caller), Some(guest)) = (upgrade, guest) else {
        return Err(ProxyError::Broken("it changes to a protocol that was not asked for".into()));
    };
    traffic.is_tunnel.store(true, Ordering::Relaxed);
    tunnel::join(caller, guest.map_ok(TokioIo::new), options.stop, held);
    Ok(Response::from_parts(head, Body::empty()))
}

/// Makes the headers of a request those that a guest gets.
fn write_head(
    headers: &mut HeaderMap,
    version: Version,
    host: Option<&str>,
    options: &ProxyOptions,
) -> Result<(), ProxyError> {
    let has_body = headers.contains_key(TRANSFER_ENCODING)
        || headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0");
    drop_hop_by_hop(headers, version == Version::HTTP_11);
    let upgrades = headers.contains_key(UPGRADE);
    if upgrades && has_body {
        // Where it ends, and the other protocol begins, is not one thing for everybody.
        return Err(ProxyError::Malformed("a request to change the protocol has no body"));
    }
    // The length is that of the body that is sent.
    for name in ["content-length", "expect", "forwarded"].into_iter().chain(OURS) {
        headers.remove(name);
    }
    remove_all(headers, |name| name.as_str().starts_with(X_FORWARDED));
    mount::forget_target(headers);
    if options.guard == Guard::Api {
        headers.remove(AUTHORIZATION);
        headers.remove(COOKIE);
    }
    let original = host.and_then(|host| HeaderValue::from_str(host).ok());
    if let Some(original) = original.or_else(|| headers.get(HOST).cloned()) {
        headers.insert(HOST, original.clone());
        headers.insert(X_FORWARDED_HOST, original);
    }
    let host = match &options.host {
        HostHeader::Local(port) => HeaderValue::try_from(format!("localhost:{port}")).ok(),
        HostHeader::Named(host) => Some(host.clone()),
        HostHeader::Original => None,
    };
    if let Some(host) = host {
        headers.insert(HOST, host);
    }
    if let Some(scheme) = options.scheme {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
    }
    if !upgrades {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(())
}

/// Removes all headers with such names.
fn remove_all(headers: &mut HeaderMap, is_meant: impl Fn(&HeaderName) -> bool) {
    let found: Vec<_> = headers.keys().filter(|name| is_meant(name)).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

/// Makes the headers of an answer those that may be on this origin.
fn guard_head(headers: &mut HeaderMap, upgrades: bool, guard: Guard) {
    // It was read as the coding says it.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    drop_hop_by_hop(headers, upgrades);
    match guard {
        Guard::Api => {
            remove_all(headers, |name| !OF_CONTENT.contains(&name.as_str()));
            headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
            headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        }
        Guard::Open => {
            let cookies: Vec<_> =
                headers.get_all(SET_COOKIE).iter().filter_map(own_cookie).collect();
            headers.remove(SET_COOKIE);
            for cookie in cookies {
                headers.append(SET_COOKIE, cookie);
            }
            // A host may have a token in it, which other sites are not to get.
            headers.entry(REFERRER_POLICY).or_insert(HeaderValue::from_static("same-origin"));
        }
    }
}

/// A cookie without its domain: other previews do not get it.
fn own_cookie(cookie: &HeaderValue) -> Option<HeaderValue> {
    let is_domain = |attribute: &&[u8]| {
        let name = attribute.split(|&byte| byte == b'=').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(b"domain")
    };
    let mut parts = cookie.as_bytes().split(|&byte| byte == b';');
    // The first is its name and its value.
    let first = parts.next()?;
    let rest = parts.filter(|attribute| !is_domain(attribute));
    let kept: Vec<_> = std::iter::once(first).chain(rest).collect();
    HeaderValue::from_bytes(&kept.join(&b';')).ok()
}

/// What a connection is used for.
#[derive(Default)]
struct Traffic {
    is_tunnel: AtomicBool,
    /// How many interim answers have come.
    interim: AtomicUsize,
}

/// A connection that fails once nothing has come or gone for some time, or after too many interim answers.
pub(crate) struct IdleGuard {
    stream: PortStream,
    traffic: Arc<Traffic>,
    since: Instant,
    until: Pin<Box<Sleep>>,
}

impl IdleGuard {
    fn new(stream: PortStream, traffic: Arc<Traffic>) -> Self {
        let since = Instant::now();
        Self { stream, traffic, since, until: Box::pin(sleep_until(since + IDLE)) }
    }

    /// One that is a tunnel from its beginning.
    pub fn tunnel(stream: PortStream) -> Self {
        let is_tunnel = true.into();
        Self::new(stream, Arc::new(Traffic { is_tunnel, ..Traffic::default() }))
    }

    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.since = Instant::now();
            return result;
        }
        while self.until.as_mut().poll(context).is_ready() {
            let idle =
                if self.traffic.is_tunnel.load(Ordering::Relaxed) { TUNNEL_IDLE } else { IDLE };
            let due = self.since + idle;
            if due <= Instant::now() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.until.as_mut().reset(due);
        }
        Poll::Pending
    }
}

impl AsyncRead for IdleGuard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.traffic.interim.load(Ordering::Relaxed) > MAX_INTERIM {
            let error = io::Error::new(io::ErrorKind::InvalidData, "too many interim answers");
            return Poll::Ready(Err(error));
        }
        let result = Pin::new(&mut self.stream.connection).poll_read(context, buffer);
        self.watch(context, result)
    }
}

impl AsyncWrite for IdleGuard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream.connection).poll_write(context, data);
        self.watch(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(guard: Guard) -> ProxyOptions {
        let (host, stop) = (HostHeader::Local(8080), CancellationToken::new());
        ProxyOptions { host, guard, scheme: None, stop }
    }

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        all.iter()
            .map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    fn shown(headers: &HeaderMap) -> Vec<String> {
        let mut all: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn credentials_of_the_service_do_not_reach_a_guest() {
        let sent = headers(&[
            ("host", "8080-a.preview.example.org"),
            ("x-api-key", "k"),
            ("x-access-token", "t"),
            ("sandbox-port-token", "t"),
            ("e2b-traffic-access-token", "t"),
            ("x-sandboxctl-forwarded", "v1"),
            ("sandboxctl-target", "a"),
            ("cookie", "a=b"),
            ("accept", "*/*"),
            ("connection", "keep-alive, x-private"),
            ("x-private", "1"),
            ("transfer-encoding", "chunked"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-host", "forged"),
            ("forwarded", "for=192.0.2.1"),
        ]);
        let mut open = sent.clone();
        write_head(&mut open, Version::HTTP_11, None, &options(Guard::Open)).unwrap();
        let forwarded = "x-forwarded-host: 8080-a.preview.example.org";
        let expected =
            ["accept: */*", "connection: close", "cookie: a=b", "host: localhost:8080", forwarded];
        assert_eq!(shown(&open), expected);
        // Cookies of the API's origin are for that alone, and so is whatever is in this header.
        let mut api = sent;
        api.insert(AUTHORIZATION, HeaderValue::from_static("Basic eA=="));
        write_head(&mut api, Version::HTTP_11, None, &options(Guard::Api)).unwrap();
        let expected = ["accept: */*", "connection: close", "host: localhost:8080", forwarded];
        assert_eq!(shown(&api), expected);
        // A preview has authentication of its own, if it likes.
        let mut own = headers(&[("authorization", "Basic eA==")]);
        write_head(&mut own, Version::HTTP_11, None, &options(Guard::Open)).unwrap();
        assert!(own.contains_key(AUTHORIZATION));
        // The host that was asked for, whatever the guest sees.
        let named = HostHeader::Named(HeaderValue::from_static("localhost:3000"));
        let options = ProxyOptions { host: named, scheme: Some("https"), ..options(Guard::Open) };
        let mut masked = headers(&[("host", "8080-a.preview.example.org")]);
        write_head(&mut masked, Version::HTTP_11, None, &options).unwrap();
        let proto = "x-forwarded-proto: https";
        assert_eq!(shown(&masked), ["connection: close", "host: localhost:3000", forwarded, proto]);
    }

    #[test]
    fn upgrade_with_a_body_is_refused() {
        let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
        for body in [("content-length", "5"), ("transfer-encoding", "chunked")] {
            let mut sent = headers(&[upgrade[0], upgrade[1], body]);
            let written = write_head(&mut sent, Version::HTTP_11, None, &options(Guard::Open));
            assert!(matches!(written, Err(ProxyError::Malformed(_))), "{body:?}");
        }
        let mut sent = headers(&upgrade);
        write_head(&mut sent, Version::HTTP_11, None, &options(Guard::Open)).unwrap();
        let expected = ["connection: upgrade", "host: localhost:8080", "upgrade: websocket"];
        assert_eq!(shown(&sent), expected);
    }

    #[test]
    fn answer_sets_nothing_for_the_origin_of_the_api() {
        let mut answer = headers(&[
            ("content-type", "text/html"),
            ("set-cookie", "a=b"),
            ("clear-site-data", "*"),
            ("location", "/v1/sandboxes"),
            ("service-worker-allowed", "/"),
            ("access-control-allow-origin", "*"),
            ("access-control-allow-credentials", "true"),
            ("content-security-policy", "default-src *"),
            ("strict-transport-security", "max-age=1"),
            ("alt-svc", "h3=\":1\""),
            // What a proxy in front would obey, and a header that is not known yet.
            ("x-accel-redirect", "/internal/"),
            ("sec-new", "1"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
        ]);
        guard_head(&mut answer, false, Guard::Api);
        let expected = [
            "content-security-policy: sandbox",
            "content-type: text/html",
            "x-content-type-options: nosniff",
        ];
        assert_eq!(shown(&answer), expected);
    }

    #[test]
    fn cookie_of_a_preview_is_for_its_host_alone() {
        let mut answer =
            headers(&[("set-cookie", "domain=x; Path=/; DOMAIN = .example.org; Secure")]);
        answer.append(SET_COOKIE, HeaderValue::from_static("b=c;domain"));
        guard_head(&mut answer, false, Guard::Open);
        let expected = [
            "referrer-policy: same-origin",
            "set-cookie: b=c",
            "set-cookie: domain=x; Path=/; Secure",
        ];
        assert_eq!(shown(&answer), expected);
        let mut own = headers(&[("referrer-policy", "unsafe-url")]);
        guard_head(&mut own, false, Guard::Open);
        assert_eq!(shown(&own), ["referrer-policy: unsafe-url"]);
    }
}
