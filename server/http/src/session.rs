//! The session of a browser: the token of its caller in a cookie that no script can read. It counts for requests of
//! this server's own pages alone, for which it becomes the token that any other client sends.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, COOKIE, ORIGIN, SET_COOKIE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use axum::response::Response;
use sandbox_api::service::Time;
use sandbox_auth::{Session, SessionKey, SignInCodes};
use sandbox_service::SigningKey;

use crate::access::{authority, host_of, is_of};
use crate::websocket;

/// The most that a session lasts.
pub(crate) const MAX_SESSION: Duration = Duration::from_secs(12 * 3600);
/// What its key is for.
const PURPOSE: &str = "session";
/// The cookie on a loopback address, which may be reached without TLS.
const LOOPBACK_COOKIE: &str = "sandboxctl_session";
/// The cookie anywhere else: by its name browsers let only this very host set it, over TLS.
const HOST_COOKIE: &str = "__Host-sandboxctl_session";
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
/// What a page may use an answer as: data, a download, or a connection. Not as a script or a frame, whose content may
/// be a guest's.
const DESTINATIONS: [&str; 3] = ["empty", "document", "websocket"];

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
        self.codes().issue(token, Instant::now())
    }

    /// The token of a code.
    pub fn redeem_code(&self, code: &str) -> Option<String> {
        self.codes().redeem(code, Instant::now())
    }

    fn codes(&self) -> std::sync::MutexGuard<'_, SignInCodes> {
        self.codes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the cookie of a request its credential, if it has no other and counts. When it ends is then among the
    /// extensions.
    pub fn authorize(&self, request: &mut Request, cookie: Option<String>) {
        websocket::take_bearer(request.headers_mut());
        let (Some(cookie), false) = (cookie, request.headers().contains_key(AUTHORIZATION)) else {
            return;
        };
        if Page::of(request.uri(), request.headers()).is_none() {
            return;
        }
        let Some(session) = self.key.open(&cookie, Time::now()) else { return };
        if let Some(authorization) = bearer(&session.token) {
            request.headers_mut().insert(AUTHORIZATION, authorization);
            request.extensions_mut().insert(SessionEnd(session.expires_at));
        }
    }

    /// Has the browser of this page keep a session, in place of any other.
    pub fn begin(&self, page: Page, session: &Session, response: &mut Response) {
        let seconds = session.expires_at.since(Time::now()).as_secs();
        set_cookie(page, &self.key.seal(session), seconds, response);
    }
}

/// When the session ends that a request came with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionEnd(pub Time);

/// The header of a token, if it can be one.
pub(crate) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Has the browser forget its session.
pub(crate) fn end(uri: &Uri, headers: &HeaderMap, response: &mut Response) {
    let host = authority(uri, headers).map_or("", host_of);
    let is_loopback = is_loopback(host);
    set_cookie(Page { is_loopback, is_encrypted: !is_loopback }, "", 0, response);
}

fn set_cookie(page: Page, value: &str, seconds: u64, response: &mut Response) {
    let secure = if page.is_encrypted { "; Secure" } else { "" };
    let cookie = format!(
        "{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}",
        cookie_name(page.is_loopback)
    );
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
}

const fn cookie_name(is_loopback: bool) -> &'static str {
    if is_loopback { LOOPBACK_COOKIE } else { HOST_COOKIE }
}

/// A page of this server that has sent a request, as its browser says, and that may have a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    /// Whether its host is this machine.
    is_loopback: bool,
    is_encrypted: bool,
}

impl Page {
    pub fn of(uri: &Uri, headers: &HeaderMap) -> Option<Self> {
        let one = |name: HeaderName| {
            let mut values = headers.get_all(name).iter();
            values.next().filter(|_| values.next().is_none()).map(|it| it.to_str().unwrap_or("?"))
        };
        let authority = authority(uri, headers).ok()?;
        let is_loopback = is_loopback(host_of(authority));
        let (site, origin) = (one(SEC_FETCH_SITE), one(ORIGIN));
        let is_encrypted = match origin {
            Some(origin) => origin.starts_with("https://"),
            // Others have no such header, and no cookie, without TLS.
            None => !is_loopback,
        };
        let is_own = site == Some("same-origin")
            || headers.get(ORIGIN).is_some_and(|origin| is_of(origin, authority));
        let is_data = one(SEC_FETCH_DEST).is_none_or(|it| DESTINATIONS.contains(&it));
        let is_safe = is_loopback || is_encrypted;
        (is_own && is_data && is_safe).then_some(Self { is_loopback, is_encrypted })
    }
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Takes the sessions out of a request: nothing behind this server gets one. Of two of the same name, one may be
/// another host's: neither counts.
pub(crate) fn take_cookie(request: &mut Request) -> Option<String> {
    let host = authority(request.uri(), request.headers()).map_or("", host_of);
    let wanted = cookie_name(is_loopback(host));
    let headers = request.headers_mut();
    let (mut sessions, mut others) = (Vec::new(), Vec::new());
    for pair in headers.get_all(COOKIE).iter().flat_map(|it| it.as_bytes().split(|it| *it == b';'))
    {
        let pair = pair.trim_ascii();
        let name = pair.split(|it| *it == b'=').next().unwrap_or_default().trim_ascii();
        match [LOOPBACK_COOKIE, HOST_COOKIE].iter().any(|it| it.as_bytes() == name) {
            true => sessions.push(String::from_utf8_lossy(pair).into_owned()),
            false => others.push(pair),
        }
    }
    if sessions.is_empty() {
        return None;
    }
    let others = HeaderValue::from_bytes(&others.join(&b"; "[..])).ok();
    headers.remove(COOKIE);
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        headers.insert(COOKIE, others);
    }
    let mut values =
        sessions.iter().filter_map(|pair| pair.strip_prefix(wanted)?.strip_prefix('='));
    values.next().filter(|_| values.next().is_none()).map(str::to_owned)
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

    fn page(pairs: &[(&'static str, &'static str)]) -> Option<Page> {
        Page::of(&Uri::from_static("/v1"), &headers(pairs))
    }

    #[test]
    fn own_pages_are_those_that_the_browser_says_are() {
        let local = ("host", "127.0.0.1:8470");
        let site = |site| page(&[local, ("sec-fetch-site", site)]);
        assert_eq!(site("same-origin"), Some(Page { is_loopback: true, is_encrypted: false }));
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
        for (destination, counts) in [
            ("empty", true),
            ("document", true),
            ("script", false),
            ("iframe", false),
            ("image", false),
        ] {
            let found = page(&[local, same, ("sec-fetch-dest", destination)]);
            assert_eq!(found.is_some(), counts, "{destination}");
        }
        // Twice is not once.
        assert_eq!(page(&[local, same, same]), None);
    }

    #[test]
    fn page_of_another_machine_is_encrypted() {
        let host = ("host", "sandbox.example.org");
        let from = |origin| page(&[host, ("origin", origin)]);
        let expected = Some(Page { is_loopback: false, is_encrypted: true });
        assert_eq!(from("https://sandbox.example.org"), expected);
        assert_eq!(from("http://sandbox.example.org"), None);
        assert_eq!(page(&[host, ("sec-fetch-site", "same-origin")]), expected);
        for (host, expected) in [
            ("localhost", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
        ] {
            assert_eq!(is_loopback(host), expected, "{host}");
        }
    }

    #[test]
    fn session_is_taken_out_of_a_request_and_all_else_stays() {
        let take = |pairs: &[(&'static str, &'static str)]| {
            let mut request = Request::new(axum::body::Body::empty());
            *request.headers_mut() = headers(pairs);
            let taken = take_cookie(&mut request);
            let left = request.headers().get_all(COOKIE).iter();
            (taken, left.map(|it| it.to_str().unwrap().to_owned()).collect::<Vec<_>>())
        };
        let (local, elsewhere) = (("host", "localhost:1"), ("host", "sandbox.example.org"));
        let (one, secure) = ("a=b; sandboxctl_session=x=; c", "__Host-sandboxctl_session=y");
        let (some, left) = (|text: &str| Some(text.to_owned()), |text: &str| vec![text.to_owned()]);
        assert_eq!(take(&[local, ("cookie", one)]), (some("x="), left("a=b; c")));
        // As HTTP/2 sends them.
        let both = [local, ("cookie", "d=e"), ("cookie", secure), ("cookie", one)];
        assert_eq!(take(&both), (some("x="), left("d=e; a=b; c")));
        // One that any page of the domain could have set.
        assert_eq!(take(&[elsewhere, ("cookie", one)]), (None, left("a=b; c")));
        assert_eq!(take(&[elsewhere, ("cookie", secure)]), (some("y"), vec![]));
        let twice = [local, ("cookie", "sandboxctl_session=1"), ("cookie", "sandboxctl_session=2")];
        assert_eq!(take(&twice), (None, vec![]));
        assert_eq!(take(&[local, ("cookie", "a=b;c=d")]), (None, left("a=b;c=d")));
    }

    #[test]
    fn cookie_is_for_no_script_and_no_other_site() {
        let sessions = Sessions::new(&SigningKey::new(&[1; 32]));
        let session = Session {
            token: "t".to_owned(),
            expires_at: Time::now().after(Duration::from_secs(60)),
        };
        let cookie = |page| {
            let mut response = Response::new(axum::body::Body::empty());
            sessions.begin(page, &session, &mut response);
            response.headers()[SET_COOKIE].to_str().unwrap().to_owned()
        };
        let local = cookie(Page { is_loopback: true, is_encrypted: false });
        assert!(local.starts_with("sandboxctl_session=") && !local.contains("Secure"), "{local}");
        assert!(local.contains("; Path=/; HttpOnly; SameSite=Strict; Max-Age="), "{local}");
        let secure = cookie(Page { is_loopback: false, is_encrypted: true });
        assert!(secure.starts_with("__Host-sandboxctl_session=") && secure.ends_with("; Secure"));
        assert!(!secure.contains("Domain"));
    }
}
