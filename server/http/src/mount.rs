//! What is served next to the API: at a path of its own, and at hosts below the domain of previews.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use axum::response::Response;
use futures_util::future::BoxFuture;
use sandbox_api::{ByteSize, ProblemKind};
use sandbox_service::Target;

use crate::access::{Caller, Peer, Scope, below, requested_host};
use crate::refusal::{Refusal, Result};

/// Something that is served next to the API, with the same bounds. It finds the
/// [`Caller`](crate::Caller) in the extensions of its requests.
#[derive(Clone)]
pub struct Mount {
    /// Its path, such as `/mcp`.
    pub path: &'static str,
    /// What serves it: its own routes have this path too.
    pub service: Router,
    /// Who may use it.
    pub access: MountAccess,
    /// The most bytes of a request.
    pub max_request: ByteSize,
}

/// Who may use what is mounted.
#[derive(Clone)]
pub enum MountAccess {
    /// Callers of the API with this scope.
    Scope(Scope),
    /// It decides by itself, and its requests may come from any page and at any of its hosts. Their bodies stream
    /// to it as they come, encoded as they are, and its answers get no headers from the server around it.
    Own(Arc<dyn Admit>),
}

/// Decides who may use what is mounted, and how refusals look there.
pub trait Admit: Send + Sync + 'static {
    /// Whether a request to this host below `preview_domain`, in lower case and without a port, is for this mount.
    /// Then its URI has the mount's path afterwards, and headers or extensions say the rest.
    fn route<'a>(&'a self, host: &'a str, head: &'a mut Parts) -> BoxFuture<'a, bool>;

    /// Who sends a request and what it is about, or its answer. Preflights of browsers come here too.
    ///
    /// What was admitted may go to another node as it is then: credentials are removed here. Headers of the
    /// connection alone, such as those that `Connection` names, are gone: no node decides by what another one lacks.
    fn admit<'a>(
        &'a self,
        head: &'a mut Parts,
        peer: Peer,
    ) -> BoxFuture<'a, Result<Admitted, Response>>;

    /// A refusal of the server around it (too many requests, too large, another node away), in the mount's format.
    fn refuse(&self, refusal: Refusal) -> Response;
}

/// A request that was let in.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// Who it is answered for. One without is answered by the node that it came to.
    pub caller: Option<Caller>,
    /// Whether it came without credentials: it takes no place of the caller's, and the audit names no subject.
    pub is_public: bool,
    /// What it is about: in a cluster the node that has it answers. It is in the extensions of the request.
    pub target: Target,
}

/// That a request came to a host below the domain of previews, and not to the API's. In its extensions, at the node
/// that it came to, when it is [admitted](Admit::admit).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByHost {
    /// The host, in lower case and without a port.
    pub host: String,
}

/// The header that names the target of a request to the node that has it. What clients send is overwritten.
const TARGET: HeaderName = HeaderName::from_static("sandboxctl-target");
/// Before the target of a public request.
const OF_STRANGERS: &str = "public ";

/// The target that another node names, and whether the request is public.
pub(crate) fn target(headers: &HeaderMap) -> (Target, bool) {
    let text = headers.get(TARGET).and_then(|text| text.to_str().ok()).unwrap_or_default();
    let public = text.strip_prefix(OF_STRANGERS);
    let target = match public.unwrap_or(text) {
        "" => Target::Here,
        id => Target::Sandbox(id.to_owned()),
    };
    (target, public.is_some())
}

/// Names the target to another node.
pub(crate) fn name_target(headers: &mut HeaderMap, target: &Target, is_public: bool) {
    headers.remove(TARGET);
    let before = if is_public { OF_STRANGERS } else { "" };
    if let Target::Sandbox(id) = target
        && let Ok(text) = HeaderValue::try_from(format!("{before}{id}"))
    {
        headers.insert(TARGET, text);
    }
}

/// Removes it from what goes to a guest.
pub(crate) fn forget_target(headers: &mut HeaderMap) {
    headers.remove(TARGET);
}

/// Which requests are not the API's, before there are routes.
#[derive(Clone)]
pub(crate) struct Outside {
    domain: Option<Arc<str>>,
    owns: Arc<[(&'static str, Arc<dyn Admit>)]>,
}

impl Outside {
    pub fn new(domain: Option<&str>, mounts: &[Mount]) -> Self {
        let own = |mount: &Mount| match &mount.access {
            MountAccess::Own(own) => Some((mount.path, own.clone())),
            MountAccess::Scope(_) => None,
        };
        let domain = domain.map(|domain| domain.to_ascii_lowercase().into());
        Self { domain, owns: mounts.iter().filter_map(own).collect() }
    }

    /// Whether the path is that of a mount with access of its own.
    pub fn has(&self, path: &str) -> bool {
        self.owns.iter().any(|(mount, _)| is_under(path, mount))
    }

    /// The host of a request, if it is the domain of previews or below.
    pub fn host(&self, request: &Request) -> Option<String> {
        let domain = self.domain.as_deref()?;
        let host = requested_host(request.uri(), request.headers())?.to_ascii_lowercase();
        (host == domain || below(&host, domain).is_some()).then_some(host)
    }

    /// Has the mount find the request that wants it.
    pub async fn route(&self, host: String, request: Request) -> Result<Request> {
        // `OPTIONS *` asks about a whole server, and a preview is one port.
        if !request.uri().path().starts_with('/') {
            let detail = "a request to a preview has a path";
            return Err(Refusal::new(ProblemKind::Malformed, detail));
        }
        let (mut head, body) = request.into_parts();
        for (path, own) in &*self.owns {
            if own.route(&host, &mut head).await {
                if !is_under(head.uri.path(), path) {
                    return Err(Refusal::internal("a mount has sent a request elsewhere"));
                }
                head.extensions.insert(ByHost { host });
                return Ok(Request::from_parts(head, body));
            }
        }
        Err(Refusal::new(ProblemKind::Misdirected, "there is no preview at this host")
            .at("Host", "not one of this server"))
    }
}

/// The same URI with another path and query, if they are some.
#[must_use]
pub fn with_path(uri: &Uri, path_and_query: &str) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path_and_query.parse().ok()?);
    Uri::from_parts(parts).ok()
}

fn is_under(path: &str, mount: &str) -> bool {
    path.strip_prefix(mount).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
