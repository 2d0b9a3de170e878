//! One request: whether it may be sent, and what is sent. Pure.
//!
//! hyper parses each request and writes it anew, so a server reads the request that was checked here, however
//! the program framed its own.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{
    ACCEPT_CHARSET, ACCEPT_ENCODING, ALT_SVC, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH,
    CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, IF_RANGE, RANGE,
    SEC_WEBSOCKET_EXTENSIONS, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::{request, response};
use hyper::{Method, StatusCode, Uri, Version};
use sandbox_api::Injection;
use sandbox_api::hosts::{Allowlist, Target};
use sandbox_api::injection::Place;
use url::form_urlencoded;

/// The largest head of a request or an answer.
pub const MAX_HEAD: usize = 64 << 10;
/// What concerns one connection only (RFC 9110, 7.6.1).
const HOP: [&str; 9] = [
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
    "te", "trailer", "transfer-encoding", "upgrade",
];
/// What some servers take a path from, in place of the request's own.
const PATHS: [&str; 2] = ["x-original-url", "x-rewrite-url"];
/// Encodings of characters in which a secret is not found.
const CHARSETS: [&str; 8] =
    ["utf-16", "utf16", "utf-32", "utf32", "utf-7", "utf7", "ucs-2", "ucs-4"];
/// What rules call a request for a WebSocket.
const WEBSOCKET: &str = "WEBSOCKET";

/// A request is not sent, or its answer not passed on.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub words: String,
    /// The rule that would allow it.
    pub rule: Option<String>,
    /// Whether the host cannot be spoken with.
    pub is_unreached: bool,
}

impl Refusal {
    pub fn new(status: StatusCode, words: impl Into<String>) -> Self {
        Self { status, words: words.into(), rule: None, is_unreached: false }
    }
}

/// Whether a connection becomes a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upgrade {
    No,
    WebSocket,
}

/// The method as rules have it.
pub fn method(parts: &request::Parts) -> &str {
    match upgrade(&parts.headers) {
        Upgrade::WebSocket if parts.method == Method::GET => WEBSOCKET,
        _ => parts.method.as_str(),
    }
}

/// Checks a request: its form, and whether a rule allows it.
pub fn check(
    parts: &request::Parts,
    target: &Target,
    list: &Allowlist,
) -> Result<Upgrade, Refusal> {
    let refuse = |status, words: &str| Err(Refusal::new(status, words));
    let bad = |words: &str| refuse(StatusCode::BAD_REQUEST, words);
    if parts.version != Version::HTTP_11 {
        return refuse(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 is passed on");
    }
    let target_bytes = parts.uri.path_and_query().map_or(0, |it| it.as_str().len());
    if target_bytes + size(&parts.headers) > MAX_HEAD {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return refuse(status, "the head of the request is too large");
    }
    let is_method = |name: &&str| name.eq_ignore_ascii_case(parts.method.as_str());
    if ["CONNECT", "TRACE", "TRACK", WEBSOCKET].iter().any(is_method) {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "this method is not passed on");
    }
    let path = parts.uri.path();
    if parts.uri.scheme().is_some() || parts.uri.authority().is_some() || !path.starts_with('/') {
        return bad("the target of the request is not a path");
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    if !hosts.next().is_some_and(|host| names(host, target)) || hosts.next().is_some() {
        return bad("the request has not exactly one Host header, with the host of the connection");
    }
    if !is_chunked_only(&parts.headers) {
        return refuse(StatusCode::NOT_IMPLEMENTED, "this Transfer-Encoding is not passed on");
    }
    let method = method(parts);
    if !list.allows_request(target, method, path) {
        let rule = target.request_rule(method, path).map(|rule| rule.to_string());
        let hint = match &rule {
            Some(rule) => format!("; the rule that allows it: --allow '{rule}'"),
            None => ": its path or method is one that servers may read as another".to_owned(),
        };
        let words = format!("no rule allows this {method} request to {target}{hint}");
        return Err(Refusal { rule, ..Refusal::new(StatusCode::FORBIDDEN, words) });
    }
    Ok(if method == WEBSOCKET { Upgrade::WebSocket } else { Upgrade::No })
}

/// The bytes of the names and values.
fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

/// Whether a body is encoded in no other way. hyper lets this one win over a length.
fn is_chunked_only(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
}

/// Whether a `Host` header is that of the target.
fn names(header: &HeaderValue, target: &Target) -> bool {
    let Ok(text) = header.to_str() else { return false };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (text, Some(443)),
    };
    host.parse().is_ok_and(|host| target.host == host) && port == Some(target.port)
}

fn upgrade(headers: &HeaderMap) -> Upgrade {
    let mut asked = headers.get_all(UPGRADE).iter();
    let is_it = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"websocket");
    match (asked.next(), asked.next()) {
        (Some(one), None) if is_it(one) && named(headers).any(|name| name == UPGRADE) => {
            Upgrade::WebSocket
        }
        _ => Upgrade::No,
    }
}

/// The headers that `Connection` names.
fn named(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok())
}

fn remove_hops(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = named(headers).collect();
    // A length frames a body, and who names it in `Connection` must not change that.
    for name in named.iter().filter(|name| **name != CONTENT_LENGTH && **name != HOST) {
        headers.remove(name);
    }
    HOP.iter().for_each(|name| _ = headers.remove(*name));
}

fn set_upgrade(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    // Compressed messages would hide what they repeat.
    headers.remove(SEC_WEBSOCKET_EXTENSIONS);
}

/// Makes a checked request the one that is sent.
pub fn prepare(
    parts: &mut request::Parts,
    target: &Target,
    upgrade: Upgrade,
    injections: &[Injection],
) -> Result<(), Refusal> {
    parts.extensions.clear();
    let headers = &mut parts.headers;
    let is_chunked = headers.contains_key(TRANSFER_ENCODING);
    remove_hops(headers);
    if is_chunked {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    // hyper has answered it.
    headers.remove(EXPECT);
    PATHS.iter().for_each(|name| remove_all(headers, name));
    let host = match target.port {
        443 => target.host.to_string(),
        _ => target.to_string(),
    };
    headers.insert(HOST, HeaderValue::from_str(&host).expect("a name is ASCII"));
    if !injections.is_empty() {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.remove(ACCEPT_CHARSET);
        // A part of an answer could have a part of a secret.
        headers.remove(RANGE);
        headers.remove(IF_RANGE);
    }
    if upgrade == Upgrade::WebSocket {
        set_upgrade(headers);
    }
    for injection in injections.iter().filter(|it| it.rule.target == *target) {
        let secret = injection.value.as_bytes();
        match &injection.rule.place {
            Place::Header { name, before } => {
                set(&mut parts.headers, name, [before.as_bytes(), secret].concat());
            }
            Place::Basic { user } => {
                let pair = STANDARD.encode([user.as_bytes(), b":", secret].concat());
                set(&mut parts.headers, "authorization", format!("Basic {pair}").into_bytes());
            }
            Place::Query { name } => set_query(&mut parts.uri, name, secret)?,
        }
    }
    Ok(())
}

/// Removes all that some server reads as this header.
fn remove_all(headers: &mut HeaderMap, name: &str) {
    let same = |other: &HeaderName| other.as_str().replace('_', "-") == name.replace('_', "-");
    let others: Vec<HeaderName> = headers.keys().filter(|other| same(other)).cloned().collect();
    others.iter().for_each(|other| _ = headers.remove(other));
}

/// Sets a header in place of all that some server reads as the same one.
fn set(headers: &mut HeaderMap, name: &str, value: Vec<u8>) {
    let name: HeaderName = name.parse().expect("checked when the rule was read");
    remove_all(headers, name.as_str());
    let mut value = HeaderValue::from_bytes(&value).expect("checked when the value was read");
    value.set_sensitive(true);
    headers.insert(name, value);
}

fn set_query(uri: &mut Uri, name: &str, secret: &[u8]) -> Result<(), Refusal> {
    let is_other = |pair: &&str| {
        let found = form_urlencoded::parse(pair.as_bytes()).next();
        found.is_some_and(|(found, _)| found != name)
    };
    let kept = uri.query().unwrap_or_default().split('&').filter(is_other);
    let encode = |bytes: &[u8]| form_urlencoded::byte_serialize(bytes).collect::<String>();
    let own = format!("{}={}", encode(name.as_bytes()), encode(secret));
    let query = kept.chain([&*own]).collect::<Vec<_>>().join("&");
    let changed = format!("{}?{query}", uri.path());
    let long = |_| Refusal::new(StatusCode::URI_TOO_LONG, "the target of the request is too long");
    *uri = changed.parse().map_err(long)?;
    Ok(())
}

/// Checks the head of an answer, and makes it the one that is passed on.
pub fn answer(
    parts: &mut response::Parts,
    upgrade: Upgrade,
    injections: &[Injection],
) -> Result<(), Refusal> {
    let refuse = |words: &str| Err(Refusal::new(StatusCode::BAD_GATEWAY, words));
    let is_upgraded = parts.status == StatusCode::SWITCHING_PROTOCOLS;
    let upgraded = self::upgrade(&parts.headers);
    if is_upgraded && (upgrade, upgraded) != (Upgrade::WebSocket, Upgrade::WebSocket) {
        return refuse("the server speaks another protocol than was asked for");
    }
    if is_upgraded && parts.headers.contains_key(SEC_WEBSOCKET_EXTENSIONS) {
        return refuse("the server uses an extension of WebSocket that was not asked for");
    }
    if size(&parts.headers) > MAX_HEAD {
        return refuse("the head of the answer is too large");
    }
    let is_wide = |kind: &HeaderValue| {
        let kind = String::from_utf8_lossy(kind.as_bytes()).to_ascii_lowercase();
        kind.contains("charset") && CHARSETS.iter().any(|charset| kind.contains(charset))
    };
    if !injections.is_empty() && parts.headers.get_all(CONTENT_TYPE).iter().any(is_wide) {
        return refuse(
            "the server's answer has a charset in which it could not be checked for secrets",
        );
    }
    let mut codings = parts.headers.get_all(CONTENT_ENCODING).iter();
    let is_plain = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"identity");
    if !injections.is_empty() && !codings.all(is_plain) {
        return refuse(
            "the server compresses its answer, which then could not be checked for secrets",
        );
    }
    if !is_chunked_only(&parts.headers) {
        return refuse("the server uses a Transfer-Encoding that is not passed on");
    }
    // With it goes the reason phrase.
    parts.extensions.clear();
    parts.version = Version::HTTP_11;
    remove_hops(&mut parts.headers);
    // It would lead around this connection.
    parts.headers.remove(ALT_SVC);
    if is_upgraded {
        set_upgrade(&mut parts.headers);
    }
    Ok(())
}
