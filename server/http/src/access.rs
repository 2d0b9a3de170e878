//! Who may ask: hosts and origins, authentication, scopes, and how many requests at one time.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, Uri};
use futures_util::future::BoxFuture;
use sandbox_api::ProblemKind;
use sandbox_api::service::{Subject, Time};
pub use sandbox_auth::{Caller, Scope};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::counts::{Counted, Counts};
use crate::refusal::{Refusal, Result};

/// The other side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// At this address.
    Tcp(SocketAddr),
    /// A process of this user, by the kernel's word.
    Unix {
        /// Its uid.
        uid: u32,
    },
}

impl Peer {
    /// The default for a request: an unknown caller at an unknown address.
    pub(crate) const UNKNOWN: Self =
        Self::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));
}

/// What a request needs to be let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: it is public, or something else decides.
    Nothing,
    /// A caller, whatever they may do.
    Caller,
    /// A caller with this scope.
    Scope(Scope),
}

impl Needs {
    /// The scope, if it is one.
    pub const fn scope(self) -> Option<Scope> {
        match self {
            Self::Scope(scope) => Some(scope),
            Self::Nothing | Self::Caller => None,
        }
    }
}

/// That a request came over the port for nodes: it has the header of a node in place of credentials, and is not
/// sent on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FromNode;

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "{address}"),
            Self::Unix { uid } => write!(formatter, "uid {uid}"),
        }
    }
}

/// Why the caller is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unauthenticated {
    /// The request has no credentials.
    Missing,
    /// They are invalid. The reason is for the audit only: the caller does not see it.
    Invalid {
        /// Why.
        reason: String,
    },
    /// Too many have failed from this address.
    TooMany {
        /// When it may try again.
        retry_after: Duration,
    },
    /// They cannot be checked now. The reason is for the log.
    Unavailable {
        /// Why.
        reason: String,
    },
}

/// How requests are authenticated.
pub trait Authenticate: Send + Sync + 'static {
    /// Who sends a request with these headers over this connection.
    fn authenticate<'a>(
        &'a self,
        headers: &'a HeaderMap,
        peer: Peer,
    ) -> BoxFuture<'a, Result<Caller, Unauthenticated>>;

    /// What a caller learns who has shown something that is no credential. It counts as an invalid one.
    fn refuse(&self, _peer: Peer, reason: String) -> Unauthenticated {
        Unauthenticated::Invalid { reason }
    }

    /// When this token expires, which it knows a caller by, if that is known.
    fn expiry<'a>(&'a self, _token: &'a str) -> BoxFuture<'a, Option<Time>> {
        Box::pin(std::future::ready(None))
    }

    /// Whether this word of an `Authorization` is a credential by which it would know a caller. API tokens are known
    /// by their form.
    fn is_credential(&self, _word: &str) -> bool {
        false
    }
}

/// A decision about a request, for the audit.
#[derive(Debug)]
#[non_exhaustive]
pub struct AccessDecision<'a> {
    /// The id of the request.
    pub request: &'a str,
    /// Where it came from.
    pub peer: Peer,
    /// The trace that it belongs to, if its caller has one.
    pub trace_id: Option<&'a str>,
    /// Who sent it, if that is known.
    pub subject: Option<&'a Subject>,
    /// Its method.
    pub method: &'a Method,
    /// Its path, without the query.
    pub path: &'a str,
    /// The name of its route, if there is one.
    pub route: Option<&'a str>,
    /// The status of the answer.
    pub status: u16,
    /// Why it was refused, if it was.
    pub refused: Option<ProblemKind>,
    /// For the audit only.
    pub reason: Option<&'a str>,
}

/// Who gets the decisions.
pub type Audit = Arc<dyn Fn(&AccessDecision<'_>) + Send + Sync>;

/// The hosts that a server answers for, and the origins whose pages may call it.
#[derive(Debug, Clone, Default)]
pub struct Sites {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Sites {
    /// Names are compared without case; origins as browsers send them.
    #[must_use]
    pub fn new(hosts: &[String], origins: &[String]) -> Self {
        let lower = |texts: &[String]| texts.iter().map(|text| text.to_ascii_lowercase()).collect();
        Self { hosts: lower(hosts), origins: lower(origins) }
    }

    /// Refuses a request for another host, or from another site's page.
    ///
    /// # Errors
    ///
    /// The answer to it.
    pub fn check(&self, peer: Peer, uri: &Uri, headers: &HeaderMap) -> Result<()> {
        let authority = authority(uri, headers)?;
        let host = host_of(authority);
        // An address cannot be pointed elsewhere, as a name can (DNS rebinding); and a client of a
        // UNIX socket has resolved no name.
        let is_known = matches!(peer, Peer::Unix { .. })
            || host.parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host));
        if !is_known {
            return Err(Refusal::new(ProblemKind::Misdirected, "this server has another name")
                .hint(Some("server.allowed_hosts lists the names of a server"))
                .at("Host", "not one of this server"));
        }
        // One that is not allowed is not made so by another before it.
        let is_allowed = |origin| self.allows_origin(origin) || is_of(origin, authority);
        let mut origins = headers.get_all(ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (None, _) => Ok(()),
            (Some(origin), None) if is_allowed(origin) => Ok(()),
            (Some(_), _) => Err(Refusal::new(
                ProblemKind::Forbidden,
                "pages of this origin may not call this server",
            )
            .hint(Some("server.allowed_origins lists those that may"))
            .at("Origin", "not allowed")),
        }
    }

    /// Whether pages of this origin may call.
    #[must_use]
    pub fn allows_origin(&self, origin: &HeaderValue) -> bool {
        let origin = origin.to_str().unwrap_or_default();
        self.origins.iter().any(|known| known.eq_ignore_ascii_case(origin))
    }
}

/// The host and port that the request is for.
pub(crate) fn authority<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Result<&'a str> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next().map(|host| host.to_str().unwrap_or_default());
    let malformed = |detail| Err(Refusal::new(ProblemKind::Malformed, detail).at("Host", detail));
    match (uri.authority(), host) {
        _ if hosts.next().is_some() => malformed("there is more than one host"),
        (Some(authority), Some(host)) if !authority.as_str().eq_ignore_ascii_case(host) => {
            malformed("it is not the host of the target")
        }
        (Some(authority), _) => Ok(authority.as_str()),
        (None, Some(host)) if !host.is_empty() => Ok(host),
        (None, _) => malformed("the request has no host"),
    }
}

/// The host that a request is for, if there is one.
pub(crate) fn requested_host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    authority(uri, headers).ok().map(host_of)
}

/// What a host has before a domain.
pub(crate) fn below<'a>(host: &'a str, domain: &str) -> Option<&'a str> {
    host.strip_suffix(domain)?.strip_suffix('.')
}

/// Without the port, and without the brackets of IPv6.
pub(crate) fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(host, _)| host);
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

/// Whether the origin is this server itself.
pub(crate) fn is_of(origin: &HeaderValue, authority: &str) -> bool {
    let origin = origin.to_str().unwrap_or_default();
    let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    rest.is_some_and(|rest| rest.eq_ignore_ascii_case(authority))
}

impl From<Unauthenticated> for Refusal {
    fn from(error: Unauthenticated) -> Self {
        let unknown = |detail| Self::new(ProblemKind::Unauthenticated, detail);
        match error {
            Unauthenticated::Missing => {
                let hint = "send Authorization: Bearer TOKEN; `sandboxctl token create` makes one";
                unknown("the request has no credentials").hint(Some(hint))
            }
            Unauthenticated::Invalid { reason } => {
                unknown("the credentials are not valid").because(reason)
            }
            Unauthenticated::TooMany { retry_after } => {
                let detail = "too many failed attempts from this address";
                Self::new(ProblemKind::RateLimited, detail).retry_after(Some(retry_after))
            }
            Unauthenticated::Unavailable { reason } => {
                tracing::error!(reason, "credentials cannot be checked");
                Self::new(ProblemKind::Unavailable, "credentials cannot be checked now")
                    .retry_after(Some(Duration::from_secs(1)))
                    .because(reason)
            }
        }
    }
}

/// Adds the challenge of a 401, with the error that RFC 6750 has for it.
pub(crate) fn challenge(
    refusal: Refusal,
    scope: Option<Scope>,
    metadata: Option<&str>,
    is_invalid: bool,
) -> Refusal {
    let error = if is_invalid { ", error=\"invalid_token\"" } else { "" };
    // Without a scope a client requests all of them.
    let scope = scope.map(|scope| format!(", scope=\"{}\"", scope.as_str())).unwrap_or_default();
    with_challenge(refusal, &format!("{error}{scope}"), metadata)
}

/// The refusal of a caller without a scope.
pub(crate) fn lacks(scope: Scope, metadata: Option<&str>) -> Refusal {
    let scope = scope.as_str();
    let refusal = Refusal::new(ProblemKind::Forbidden, format!("this needs the scope '{scope}'"));
    let error = format!(", error=\"insufficient_scope\", scope=\"{scope}\"");
    with_challenge(refusal, &error, metadata)
}

/// Adds a challenge with further parameters, and where its client learns of tokens.
fn with_challenge(refusal: Refusal, parameters: &str, metadata: Option<&str>) -> Refusal {
    let mut challenge = format!("Bearer realm=\"sandboxctl\"{parameters}");
    if let Some(url) = metadata {
        challenge.push_str(&format!(", resource_metadata=\"{url}\""));
    }
    refusal.header(WWW_AUTHENTICATE, challenge)
}

/// How many requests there are at one time: in all, and of each subject.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    all: Arc<Semaphore>,
    by_subject: Counts<Subject>,
}

/// One request in flight.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    counted: Counted<Subject>,
    _permit: OwnedSemaphorePermit,
}

impl InFlight {
    pub fn new(all: usize, most_of_a_subject: usize) -> Self {
        let all = Arc::new(Semaphore::new(all.clamp(1, Semaphore::MAX_PERMITS)));
        Self { all, by_subject: Counts::new(most_of_a_subject) }
    }

    /// Adds a request of this subject.
    pub fn begin(&self, subject: &Subject) -> Result<InFlightRequest> {
        let soon = Some(Duration::from_secs(1));
        let permit = Arc::clone(&self.all).try_acquire_owned().map_err(|_| {
            Refusal::new(ProblemKind::Full, "too many requests at one time").retry_after(soon)
        })?;
        let counted = self.by_subject.add(subject.clone()).ok_or_else(|| {
            let detail = format!("more than {} requests at one time", self.by_subject.most_of_one);
            Refusal::new(ProblemKind::RateLimited, detail).retry_after(soon)
        })?;
        Ok(InFlightRequest { counted, _permit: permit })
    }
}

impl InFlightRequest {
    /// Whose place it takes.
    pub fn subject(&self) -> &Subject {
        &self.counted.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: Peer = Peer::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1));

    fn check(peer: Peer, host: Option<&str>, origin: Option<&str>) -> Result<(), u16> {
        let sites = Sites::new(
            &["Sandbox.Example.org".to_owned()],
            &["https://console.example.org".to_owned()],
        );
        let mut headers = HeaderMap::new();
        for (name, value) in [(HOST, host), (ORIGIN, origin)] {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_str(value).unwrap());
            }
        }
        sites.check(peer, &Uri::from_static("/v1"), &headers).map_err(|it| it.problem().status)
    }

    #[test]
    fn server_answers_for_its_own_names_and_for_addresses() {
        for host in
            ["127.0.0.1:80", "[::1]:80", "[2001:db8::1]", "localhost", "sandbox.EXAMPLE.org:8"]
        {
            assert_eq!(check(TCP, Some(host), None), Ok(()), "{host}");
        }
        for host in ["example.org", "sandbox.example.org.evil.example", "localhost.example", "[::1"]
        {
            assert_eq!(check(TCP, Some(host), None), Err(421), "{host}");
        }
        assert_eq!(check(TCP, None, None), Err(400));
        assert_eq!(check(TCP, Some(""), None), Err(400));
        assert_eq!(check(Peer::Unix { uid: 0 }, Some("anything"), None), Ok(()));
    }

    #[test]
    fn page_of_another_site_is_refused() {
        let from = |origin| check(TCP, Some("127.0.0.1:80"), Some(origin));
        assert_eq!(from("http://127.0.0.1:80"), Ok(()));
        assert_eq!(from("https://console.example.org"), Ok(()));
        for origin in
            ["http://127.0.0.1:81", "null", "https://evil.example", "console.example.org", ""]
        {
            assert_eq!(from(origin), Err(403), "{origin}");
        }
    }

    #[test]
    fn request_with_a_second_host_or_origin_is_refused() {
        let one = "http://127.0.0.1:80";
        for (name, value, status) in [(HOST, "127.0.0.1:80", 400), (ORIGIN, one, 403)] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("127.0.0.1:80"));
            headers.insert(ORIGIN, HeaderValue::from_static(one));
            let check = |headers: &HeaderMap| {
                let checked = Sites::default().check(TCP, &Uri::from_static("/v1"), headers);
                checked.map_err(|refusal| refusal.problem().status)
            };
            assert_eq!(check(&headers), Ok(()));
            // Also the same one once more.
            headers.append(name, HeaderValue::from_static(value));
            assert_eq!(check(&headers), Err(status));
        }
    }

    #[test]
    fn subject_has_few_requests_at_one_time() {
        let (one, other) = (Subject::new("a").unwrap(), Subject::new("b").unwrap());
        let in_flight = InFlight::new(3, 2);
        let first = in_flight.begin(&one).unwrap();
        let _second = in_flight.begin(&one).unwrap();
        let refused = |result: Result<InFlightRequest>| result.unwrap_err().problem().status;
        assert_eq!(refused(in_flight.begin(&one)), 429);
        let _third = in_flight.begin(&other).unwrap();
        assert_eq!(refused(in_flight.begin(&other)), 503);
        drop(first);
        let _fourth = in_flight.begin(&one).unwrap();
    }
}
