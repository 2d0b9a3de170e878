//! The session of a browser: the token of its caller in a cookie that no script can read. It counts for requests of
//! this server's own pages alone, for which it becomes the token that any other client sends.
//!
//! A browser sends a cookie to every port of its host, each of which can set one too. So the cookie alone is nothing: a
//! request also carries the session's proof, which the page keeps where only pages of its exact origin find it.

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, COOKIE, ORIGIN, SET_COOKIE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use axum::response::Response;
use sandbox_api::service::Time;
use sandbox_auth::{Session, SessionKey, SignInCodes};
use sandbox_service::SigningKey;

use crate::access::{authority, host_of, is_of};
use crate::lists::{bearer, take_bearer, take_subprotocol};
use crate::lock;
use crate::response::set;

/// The most that a session lasts.
pub(crate) const MAX_SESSION: Duration = Duration::from_secs(12 * 3600);
/// What its key is for.
const PURPOSE: &str = "session";
/// The cookie on a loopback address, which may be reached without TLS; with `_PORT`, because a browser has the same
/// cookies for all ports of a host.
const LOOPBACK_COOKIE: &str = "sandboxctl_session";
/// The cookie anywhere else: browsers accept one of such a name only from this very host, over TLS.
const HOST_COOKIE: &str = "__Host-sandboxctl_session";
/// The header of a session's proof; a WebSocket has it as a subprotocol. No link, script or frame can send either.
const PROOF: HeaderName = HeaderName::from_static("session-proof");
const PROOF_SUBPROTOCOL: &str = "session-proof.";
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The sessions of a server.
pub(crate) struct Sessions {
    key: SessionKey,
    codes: Mutex<SignInCodes>,
}

impl Sessions {
    pub fn new(key: &SigningKey) -> Self {
        Self { key: SessionKey::new(&key.sign(PURPOSE, &[])), codes: Mutex::default() }
    }

    /// A code that signs in once with this token.
    pub fn issue_code(&self, token: &str) -> String {
        lock(&self.codes).issue(token, Instant::now())
    }

    /// The token of a code.
    pub fn redeem_code(&self, code: &str) -> Option<String> {
        lock(&self.codes).redeem(code, Instant::now())
    }

    /// Makes the session of a request its credential, if it has no other one and comes from a page of this server.
    /// The end of the session is put into the extensions.
    pub fn authorize(&self, request: &mut Request, cookies: &[String]) {
        take_bearer(request.headers_mut());
        let in_protocol = take_subprotocol(request.headers_mut(), PROOF_SUBPROTOCOL);
        let in_header = request.headers_mut().remove(PROOF);
        let in_header = in_header.as_ref().and_then(|it| it.to_str().ok());
        let Some(proof) = in_header.or(in_protocol.as_deref()) else { return };
        if request.headers().contains_key(AUTHORIZATION)
            || OwnPage::of(request.uri(), request.headers()).is_none()
        {
            return;
        }
        let now = Time::now();
        let mut sessions = cookies.iter().filter_map(|cookie| self.key.open(cookie, now));
        // A page at another port may have set others.
        let Some(session) = sessions.find(|it| it.is_proven_by(proof)) else { return };
        if let Some(authorization) = bearer(&session.token) {
            request.headers_mut().insert(AUTHORIZATION, authorization);
            request.extensions_mut().insert(SessionEnd(session.expires_at));
        }
    }

    /// Has the browser of this page keep a session, in place of any other.
    pub fn begin(&self, page: OwnPage, session: &Session, response: &mut Response) {
        let seconds = session.expires_at.since(Time::now()).as_secs();
        page.set_cookie(&self.key.seal(session), seconds, response);
    }

    /// Has the browser forget the session that it has for the host of this request.
    pub fn end(uri: &Uri, headers: &HeaderMap, response: &mut Response) {
        OwnPage::at(Reach::of(uri, headers)).set_cookie("", 0, response);
    }
}

/// When the session ends that a request came with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionEnd(pub Time);

/// From where browsers reach this server, by the host that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// From this machine alone, at this port.
    Loopback(Option<u16>),
    /// From other machines.
    Network,
}

impl Reach {
    fn of(uri: &Uri, headers: &HeaderMap) -> Self {
        let authority = authority(uri, headers).unwrap_or_default();
        let parsed = authority.parse::<Authority>().ok().filter(|_| !authority.contains('@'));
        let host = host_of(authority);
        let is_loopback = host.eq_ignore_ascii_case("localhost")
            || host.parse::<IpAddr>().is_ok_and(|it| it.to_canonical().is_loopback());
        match parsed {
            Some(parsed) if is_loopback => Self::Loopback(parsed.port_u16()),
            _ => Self::Network,
        }
    }

    fn cookie_name(self) -> String {
        match self {
            Self::Loopback(Some(port)) => format!("{LOOPBACK_COOKIE}_{port}"),
            Self::Loopback(None) => LOOPBACK_COOKIE.to_owned(),
            Self::Network => HOST_COOKIE.to_owned(),
        }
    }
}

/// A page of this server that has sent a request, as its browser says, and that may have a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnPage {
    reach: Reach,
    is_encrypted: bool,
}

impl OwnPage {
    /// The page that sent this request, if it is one of this server.
    pub fn of(uri: &Uri, headers: &HeaderMap) -> Option<Self> {
        let one = |name: HeaderName| {
            let mut values = headers.get_all(name).iter();
            match (values.next(), values.next()) {
                (value, None) => value.map(|it| it.to_str().unwrap_or("?")),
                (_, Some(_)) => Some("?"),
            }
        };
        let authority = authority(uri, headers).ok()?;
        let page = Self::at(Reach::of(uri, headers));
        let (site, origin) = (one(SEC_FETCH_SITE), one(ORIGIN));
        // Without an origin there is only the header that browsers send over TLS, and on this machine.
        let is_encrypted = origin.map_or(page.is_encrypted, |it| it.starts_with("https://"));
        let is_own = site == Some("same-origin")
            || headers.get(ORIGIN).is_some_and(|origin| is_of(origin, authority));
        let is_safe = page.reach != Reach::Network || is_encrypted;
        (is_own && is_safe).then_some(Self { is_encrypted, ..page })
    }

    const fn at(reach: Reach) -> Self {
        Self { reach, is_encrypted: matches!(reach, Reach::Network) }
    }

    fn set_cookie(self, value: &str, seconds: u64, response: &mut Response) {
        let secure = if self.is_encrypted { "; Secure" } else { "" };
        let name = self.reach.cookie_name();
        let cookie =
            format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
        set(response.headers_mut(), SET_COOKIE, &cookie);
    }
}

/// Takes the sessions out of a request, those of other ports too: nothing behind this server gets one. What is there
/// under the name of this server's own is returned.
pub(crate) fn take_cookies(request: &mut Request) -> Vec<String> {
    let wanted = Reach::of(request.uri(), request.headers()).cookie_name();
    let headers = request.headers_mut();
    let (mut sessions, mut others) = (Vec::new(), Vec::new());
    for pair in headers.get_all(COOKIE).iter().flat_map(|it| it.as_bytes().split(|it| *it == b';'))
    {
        let pair = pair.trim_ascii();
        match [LOOPBACK_COOKIE, HOST_COOKIE].iter().any(|it| pair.starts_with(it.as_bytes())) {
            true => sessions.push(String::from_utf8_lossy(pair).into_owned()),
            false => others.push(pair),
        }
    }
    if sessions.is_empty() {
        return Vec::new();
    }
    let others = HeaderValue::from_bytes(&others.join(&b"; "[..])).ok();
    headers.remove(COOKIE);
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        headers.insert(COOKIE, others);
    }
    let values = sessions.iter().filter_map(|pair| pair.strip_prefix(&*wanted)?.strip_prefix('='));
    values.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn page(pairs: &[(&'static str, &'static str)]) -> Option<OwnPage> {
        OwnPage::of(&Uri::from_static("/v1"), &headers(pairs))
    }

    #[test]
    fn own_pages_are_those_that_the_browser_says_are() {
        let local = ("host", "127.0.0.1:8470");
        let site = |site| page(&[local, ("sec-fetch-site", site)]);
        let reach = Reach::Loopback(Some(8470));
        assert_eq!(site("same-origin"), Some(OwnPage { reach, is_encrypted: false }));
        for other in ["none", "same-site", "cross-site", "", "same-origin, none"] {
            assert_eq!(site(other), None, "{other}");
        }
        assert!(page(&[local, ("origin", "http://127.0.0.1:8470")]).is_some());
        for other in
            ["http://127.0.0.1:3000", "http://localhost:8470", "null", "https://evil.example"]
        {
            assert_eq!(page(&[local, ("origin", other)]), None, "{other}");
        }
        assert_eq!(page(&[local]), None);
        let same = ("sec-fetch-site", "same-origin");
        // Two headers say nothing.
        assert_eq!(page(&[local, same, same]), None);
    }

    #[test]
    fn page_of_another_machine_is_encrypted() {
        let host = ("host", "sandbox.example.org");
        let from = |origin| page(&[host, ("origin", origin)]);
        let expected = Some(OwnPage { reach: Reach::Network, is_encrypted: true });
        assert_eq!(from("https://sandbox.example.org"), expected);
        assert_eq!(from("http://sandbox.example.org"), None);
        assert_eq!(page(&[host, ("sec-fetch-site", "same-origin")]), expected);
        for (host, expected) in [
            ("localhost", Reach::Loopback(None)),
            ("LOCALHOST:1", Reach::Loopback(Some(1))),
            ("127.9.9.9:8470", Reach::Loopback(Some(8470))),
            ("[::1]", Reach::Loopback(None)),
            ("[::1]:80", Reach::Loopback(Some(80))),
            ("[::ffff:127.0.0.1]:80", Reach::Loopback(Some(80))),
            ("10.0.0.1:80", Reach::Network),
            ("localhost.example:80", Reach::Network),
            ("127.0.0.1:80@evil.example", Reach::Network),
            ("localhost:80, evil.example", Reach::Network),
            ("127.0.0.1:80#", Reach::Network),
        ] {
            assert_eq!(Reach::of(&Uri::from_static("/v1"), &headers(&[("host", host)])), expected);
        }
    }

    #[test]
    fn session_is_taken_out_of_a_request_and_all_else_stays() {
        let take = |pairs: &[(&'static str, &'static str)]| {
            let mut request = Request::new(axum::body::Body::empty());
            *request.headers_mut() = headers(pairs);
            let taken = take_cookies(&mut request);
            let left = request.headers().get_all(COOKIE).iter();
            (taken, left.map(|it| it.to_str().unwrap().to_owned()).collect::<Vec<_>>())
        };
        let (local, elsewhere) = (("host", "localhost:1"), ("host", "sandbox.example.org"));
        let (one, secure) = ("a=b; sandboxctl_session_1=x=; c", "__Host-sandboxctl_session=y");
        let some = |text: &str| vec![text.to_owned()];
        let left = some;
        assert_eq!(take(&[local, ("cookie", one)]), (some("x="), left("a=b; c")));
        // As HTTP/2 sends them.
        let both = [local, ("cookie", "d=e"), ("cookie", secure), ("cookie", one)];
        assert_eq!(take(&both), (some("x="), left("d=e; a=b; c")));
        // One that any page of the domain could have set.
        assert_eq!(take(&[elsewhere, ("cookie", one)]), (vec![], left("a=b; c")));
        assert_eq!(take(&[elsewhere, ("cookie", secure)]), (some("y"), vec![]));
        let cookie = |value| ("cookie", value);
        let twice = [local, cookie("sandboxctl_session_1=1"), cookie("sandboxctl_session_1=2")];
        assert_eq!(take(&twice), (vec!["1".to_owned(), "2".to_owned()], vec![]));
        // Those of servers at other ports are of others.
        let other = [local, cookie("sandboxctl_session_2=2; sandboxctl_session=3")];
        assert_eq!(take(&other), (vec![], vec![]));
        assert_eq!(take(&[local, ("cookie", "a=b;c=d")]), (vec![], left("a=b;c=d")));
    }

    #[test]
    fn cookie_is_for_no_script_and_no_other_site() {
        let sessions = Sessions::new(&SigningKey::new(&[1; 32]));
        let ends = Time::now().after(Duration::from_secs(60));
        let (session, _) = Session::new("t".to_owned(), ends);
        let cookie = |page| {
            let mut response = Response::new(axum::body::Body::empty());
            sessions.begin(page, &session, &mut response);
            response.headers()[SET_COOKIE].to_str().unwrap().to_owned()
        };
        let local = cookie(OwnPage::at(Reach::Loopback(Some(80))));
        assert!(local.starts_with("sandboxctl_session_80=") && !local.contains("Secure"));
        assert!(local.contains("; Path=/; HttpOnly; SameSite=Strict; Max-Age="), "{local}");
        let secure = cookie(OwnPage::at(Reach::Network));
        assert!(secure.starts_with("__Host-sandboxctl_session=") && secure.ends_with("; Secure"));
        assert!(!secure.contains("Domain"));
    }
}
