//! The router, and what stands around every request.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD,
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, ORIGIN, REFERRER_POLICY,
    TRANSFER_ENCODING, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::body::{Body as _, Frame, SizeHint};
use opentelemetry::trace::FutureExt as _;
use sandbox_api::ProblemKind;
use sandbox_api::service::Subject;
use sandbox_auth::Token;
use tracing::Instrument as _;

use crate::access::{
    AccessDecision, Caller, FromNode, InFlightRequest, Needs, Peer, Scope, Unauthenticated,
    challenge, lacks,
};
use crate::app::App;
use crate::forward;
use crate::forward::head::drop_undecided;
use crate::forward::owner::{self, Owner};
use crate::here::{Here, RouteAccess};
use crate::limit::Limit;
use crate::lists::drop_bearer;
use crate::memory::Held;
use crate::mount::{self, Admit, Admitted, Mount, MountAccess, Outside};
use crate::previews;
use crate::refusal::{Reason, Refusal, Result};
use crate::request::id::{self, RequestId, X_REQUEST_ID};
use crate::request::trace::RequestTrace;
use crate::response::AcceptedResponse;
use crate::route::Route;
use crate::routes;
use crate::session::take_cookies;

/// Names and passwords as some clients write them, with padding or without.
const BASIC: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The route of what has none, in figures.
const NO_ROUTE: &str = "none";

/// Which route a request went to.
#[derive(Clone, Copy)]
struct RouteName(&'static str);

/// The router of all routes, and of what is mounted next to them.
pub(crate) fn router(app: &App, mut mounts: Vec<Mount>) -> Router {
    // The last: the others know their hosts.
    mounts.extend(previews::mount(app));
    let outside = Outside::new(app.service.previews().map(|it| &*it.domain), &mounts);
    let mut router = Router::new();
    for route in routes::table() {
        let path = route.path.replace("{path}", "{*path}");
        // Public routes accept any query: monitoring adds parameters.
        let has_query = route.query.is_some() || route.needs == Needs::Nothing;
        let statuses = Some(Arc::new(route.statuses()));
        let Route { name, needs, body, owner, handler, .. } = route;
        let limit = body.map(|body| body.limit);
        let own = None;
        let gate =
            RouteAccess { name, needs, limit, has_query, resource: "", owner, statuses, own };
        let gated = from_fn_with_state((app.clone(), gate), pass);
        router = router.route(&path, handler.route_layer(gated));
    }
    let mut router = router.with_state(app.clone());
    let ports = RouteAccess {
        name: "/v1/sandboxes/{id}/ports/{port}/http/{path}",
        needs: Needs::Scope(Scope::Sandboxes),
        limit: Some(Limit::Stream(u64::MAX)),
        has_query: true,
        resource: "",
        owner: Owner::Node(owner::sandbox),
        statuses: None,
        own: None,
    };
    let gated = from_fn_with_state((app.clone(), ports), pass);
    router = router.merge(routes::ports::by_path().route_layer(gated).with_state(app.clone()));
    for Mount { path, service, access, max_request } in mounts {
        let max_request = max_request.as_u64();
        let (needs, own, limit, owner) = match access {
            MountAccess::Scope(scope) => {
                let (needs, limit) = (Needs::Scope(scope), Limit::Bytes(max_request));
                (needs, None, limit, Owner::Node(owner::workspace))
            }
            MountAccess::Own(own) => {
                let limit = Limit::Stream(max_request);
                (Needs::Nothing, Some(own), limit, Owner::Node(owner::admitted))
            }
        };
        let gate = RouteAccess {
            name: path,
            needs,
            limit: Some(limit),
            has_query: true,
            resource: path,
            owner,
            statuses: None,
            own,
        };
        let gated = from_fn_with_state((app.clone(), gate), pass);
        // Its own routes have the path; the fallbacks are those of the API.
        router = router.merge(service.route_layer(gated));
    }
    let routes = router
        .method_not_allowed_fallback(async |method: Method| {
            let detail = format!("this path has no {method}");
            Refusal::new(ProblemKind::MethodNotAllowed, detail)
        })
        .fallback(async || {
            Refusal::new(ProblemKind::NotFound, "there is no such path")
                .hint(Some("/v1/openapi.json lists all of them"))
        });
    // The routes are within: a request to another host gets its path before they are looked through.
    Router::new()
        .fallback_service(routes)
        // Ours says more, and bounds the time too.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state((app.clone(), outside), around))
        .layer(from_fn(identify))
}

/// The outermost: every answer, refusals of the rest included, has an id.
async fn identify(request: Request, next: Next) -> Response {
    let id = RequestId::of(request.headers());
    let header = id.header();
    let mut response = id.scope(next.run(request)).await;
    if let Some(header) = header {
        response.headers_mut().insert(X_REQUEST_ID, header);
    }
    response
}

/// Hosts and origins, or the header of a node; spans, figures, the audit, and headers of answers.
async fn around(
    State((app, outside)): State<(App, Outside)>,
    request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let in_flight = app.metrics.request_begun();
    let peer = request.extensions().get().copied().unwrap_or(Peer::UNKNOWN);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let origin = request.headers().get(ORIGIN).cloned();
    let trace = RequestTrace::begin(&request);
    let callers = id::trace(request.headers());
    let trace_id = trace.id().or_else(|| callers.map(|(trace, _)| trace.to_owned()));
    let parent_span_id = callers.map(|(_, span)| span);
    let span = span(&method, &path, peer, trace_id.as_deref(), parent_span_id);

    let site = Site::of(&outside, &request);
    let is_own = !matches!(site, Site::Api);
    let handled = handle(&app, &outside, site, peer, request, next);
    let handled = handled.instrument(span.clone()).with_context(trace.context.clone());
    let mut response = match AssertUnwindSafe(handled).catch_unwind().await {
        Ok(response) => response,
        Err(_) => Refusal::internal("a handler has panicked").into_response(),
    };

    let status = response.status().as_u16();
    let extensions = response.extensions_mut();
    let route = extensions.remove::<RouteName>().map(|route| route.0);
    let subject = extensions.remove::<Subject>();
    let matched = extensions.remove::<MatchedPath>();
    let refused = extensions.remove::<ProblemKind>();
    let reason = extensions.remove::<Reason>();
    app.metrics.request_answered(route.unwrap_or(NO_ROUTE), status, started.elapsed());
    drop(in_flight);
    trace.answered(status, subject.as_ref(), matched.as_ref());
    span.record("status", status);
    if let Some(subject) = &subject {
        span.record("subject", subject.as_str());
    }
    span.in_scope(|| tracing::debug!(took = ?started.elapsed(), "answered"));
    if let Some(audit) = &app.config.audit {
        let request = id::current().map(|id| id.to_string());
        audit(&AccessDecision {
            request: request.as_deref().unwrap_or_default(),
            peer,
            trace_id: trace_id.as_deref(),
            subject: subject.as_ref(),
            method: &method,
            path: &path,
            route,
            status,
            refused,
            reason: reason.as_ref().map(|reason| reason.0.as_str()),
        });
    }
    if !is_own {
        add_headers(&app, origin.as_ref(), response.headers_mut());
    }
    response
}

/// Whose a request is.
enum Site {
    Api,
    /// Of a mount with access of its own.
    Mount,
    /// Of this host below the domain of previews.
    Host(String),
}

impl Site {
    fn of(outside: &Outside, request: &Request) -> Self {
        // One of another node has its path already.
        let is_from_node = request.extensions().get::<FromNode>().is_some();
        match outside.host(request).filter(|_| !is_from_node) {
            Some(host) => Self::Host(host),
            None if outside.has(request.uri().path()) => Self::Mount,
            None => Self::Api,
        }
    }
}

fn span(
    method: &Method,
    path: &str,
    peer: Peer,
    trace_id: Option<&str>,
    parent_span_id: Option<&str>,
) -> tracing::Span {
    let id_of_request = id::current();
    tracing::info_span!(
        "request",
        id = id_of_request.as_ref().map(tracing::field::display),
        %method,
        path,
        %peer,
        trace_id,
        parent_span_id,
        subject = tracing::field::Empty,
        status = tracing::field::Empty,
    )
}

async fn handle(
    app: &App,
    outside: &Outside,
    site: Site,
    peer: Peer,
    mut request: Request,
    next: Next,
) -> Response {
    let sessions = take_cookies(&mut request);
    if let (Some(FromNode), Some(peers)) = (request.extensions().get(), app.peers()) {
        match peers.verify(&request) {
            Ok(caller) => _ = request.extensions_mut().insert(caller),
            Err(error) => {
                let detail = "this port is for the nodes of a cluster";
                let refusal = Refusal::new(ProblemKind::Unauthenticated, detail);
                return refusal.because(error.to_string()).into_response();
            }
        }
    } else if let Site::Api = site {
        if let Err(refusal) = app.sites.check(peer, request.uri(), request.headers()) {
            return refusal.into_response();
        }
        app.sessions.authorize(&mut request, &sessions);
    }
    // What a proxy decodes would be another body than the one read here.
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if codings.next().is_some_and(|coding| !is_chunked(coding)) || codings.next().is_some() {
        let detail = "the only transfer coding is chunked";
        return Refusal::new(ProblemKind::Malformed, detail).into_response();
    }
    match site {
        Site::Api if is_preflight(app, &request) => StatusCode::NO_CONTENT.into_response(),
        Site::Api | Site::Mount => next.run(request).await,
        Site::Host(host) => match outside.route(host, request).await {
            Ok(request) => next.run(request).await,
            Err(refusal) => refusal.into_response(),
        },
    }
}

/// Whether a browser asks what pages of a configured origin may do.
fn is_preflight(app: &App, request: &Request) -> bool {
    let headers = request.headers();
    request.method() == Method::OPTIONS
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        && headers.get(ORIGIN).is_some_and(|origin| app.sites.allows_origin(origin))
}

/// Authentication, scope, bounds: a request that passes is handled.
async fn pass(
    State((app, gate)): State<(App, RouteAccess)>,
    mut request: Request,
    next: Next,
) -> Response {
    let (mut subject, name, statuses) = (None, gate.name, gate.statuses.clone());
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let admitted = match &gate.own {
        Some(own) => admit_by(&**own, &app, &mut request, &mut subject).await,
        None => {
            admit(&app, &gate, &mut request, &mut subject).await.map_err(Refusal::into_response)
        }
    };
    let mut response = match admitted {
        Err(refused) => refused,
        Ok(in_flight) => {
            let caller = app.peers().and_then(|_| request.extensions().get::<Caller>().cloned());
            let here = Here { app: app.clone(), gate, next };
            let response = match (app.peers(), caller) {
                // Boxed: without a cluster no request has room for it.
                (Some(peers), Some(caller)) => {
                    Box::pin(forward::answer(peers, caller, here, request)).await
                }
                _ => here.answer(request).await,
            };
            match in_flight {
                // Its place is free when its last byte is sent.
                Some(held) => answer(&app, held, response),
                None => response,
            }
        }
    };
    let status = response.status().as_u16();
    debug_assert!(
        statuses.as_ref().is_none_or(|documented| documented.contains(&status)),
        "{name}: {status} is not documented",
    );
    response.extensions_mut().insert(RouteName(name));
    if let Some(matched) = matched {
        // For its span, which is begun before a route is looked for.
        response.extensions_mut().insert(matched);
    }
    if let Some(subject) = subject {
        response.extensions_mut().insert(subject);
    }
    response
}

/// A request that is let in, unless it has no caller.
async fn admit(
    app: &App,
    gate: &RouteAccess,
    request: &mut Request,
    subject: &mut Option<Subject>,
) -> Result<Option<Arc<InFlightRequest>>> {
    if gate.needs == Needs::Nothing {
        return Ok(None);
    }
    let is_from_node = request.extensions().get::<FromNode>().is_some();
    let caller: Caller = match request.extensions().get::<Caller>() {
        Some(caller) if is_from_node => caller.clone(),
        _ => {
            let peer = request.extensions().get().copied().unwrap_or(Peer::UNKNOWN);
            let caller = app.auth.authenticate(request.headers(), peer).await;
            let scope = gate.needs.scope();
            caller.map_err(|error| refuse_caller(app, scope, gate.resource, error))?
        }
    };
    *subject = Some(caller.subject.clone());
    if let Some(scope) = gate.needs.scope().filter(|scope| !caller.may(*scope)) {
        return Err(lacks(scope, metadata_url(app, gate.resource).as_deref()));
    }
    let begun = Arc::new(app.in_flight.begin(&caller.subject)?);
    request.extensions_mut().insert(caller);
    // For what goes on after its answer.
    request.extensions_mut().insert(begun.clone());
    Ok(Some(begun))
}

/// A request that what is mounted lets in. One of another node was let in there.
async fn admit_by(
    own: &dyn Admit,
    app: &App,
    request: &mut Request,
    subject: &mut Option<Subject>,
) -> Result<Option<Arc<InFlightRequest>>, Response> {
    let Admitted { caller, is_public, target } = match request.extensions().get::<FromNode>() {
        Some(FromNode) => {
            let (target, is_public) = mount::target(request.headers());
            Admitted { caller: request.extensions().get().cloned(), is_public, target }
        }
        None => {
            let peer = request.extensions().get().copied().unwrap_or(Peer::UNKNOWN);
            let (mut head, body) = std::mem::take(request).into_parts();
            // Another node gets what is decided by here.
            drop_undecided(&mut head);
            let admitted = own.admit(&mut head, peer).await;
            if has_credential(app, &head.headers) {
                head.headers.remove(AUTHORIZATION);
            }
            drop_bearer(&mut head.headers, |word| is_credential(app, word));
            *request = Request::from_parts(head, body);
            admitted?
        }
    };
    mount::name_target(request.headers_mut(), &target, is_public);
    request.extensions_mut().insert(target);
    let Some(caller) = caller else { return Ok(None) };
    let begun = match is_public {
        true => app.in_flight.begin(&strangers(&caller.subject)),
        false => app.in_flight.begin(&caller.subject),
    };
    if !is_public {
        *subject = Some(caller.subject.clone());
    }
    let begun = begun.map_err(|refusal| own.refuse(refusal))?;
    let begun = Arc::new(begun);
    request.extensions_mut().insert(caller);
    // For what goes on after its answer.
    request.extensions_mut().insert(begun.clone());
    Ok(Some(begun))
}

/// The subject whose places are taken by requests without credentials to what is this subject's.
fn strangers(subject: &Subject) -> Subject {
    let name = format!("public/{}", subject.directory_name());
    Subject::new(name).unwrap_or_else(|_| subject.clone())
}

/// Whether there is a credential of the API, which what is mounted might pass on: in any form, and as a name or a
/// password too.
fn has_credential(app: &App, headers: &HeaderMap) -> bool {
    let is_of_token = |char: char| char.is_ascii_alphanumeric() || "_-.".contains(char);
    let has_one = |text: &[u8]| {
        let text = String::from_utf8_lossy(text);
        text.split(|char| !is_of_token(char)).any(|word| is_credential(app, word))
    };
    headers.get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes).any(|value| {
        let mut words = value.split(u8::is_ascii_whitespace);
        has_one(value) || words.any(|word| BASIC.decode(word).is_ok_and(|text| has_one(&text)))
    })
}

fn is_credential(app: &App, word: &str) -> bool {
    Token::parse(word).is_some() || app.auth.is_credential(word)
}

/// The refusal of an unknown caller by something that needs this scope, at this path of what is mounted.
pub(crate) fn refuse_caller(
    app: &App,
    scope: Option<Scope>,
    resource: &str,
    error: Unauthenticated,
) -> Refusal {
    let is_invalid = matches!(error, Unauthenticated::Invalid { .. });
    let refusal = Refusal::from(error);
    if refusal.problem().kind != ProblemKind::Unauthenticated {
        return refusal;
    }
    challenge(refusal, scope, metadata_url(app, resource).as_deref(), is_invalid)
}

/// Where a client finds out where its tokens come from, if configured.
fn metadata_url(app: &App, resource: &str) -> Option<String> {
    app.config.resource.as_ref().map(|it| it.metadata_url_of(resource))
}

/// An answer to the subject in whose place it is. One that is in memory whole takes its share before it is sent,
/// and a piece of a stream when it comes.
fn answer(app: &App, in_flight: Arc<InFlightRequest>, mut response: Response) -> Response {
    let memory = app.answers.hold(in_flight.subject());
    let whole = response.body().size_hint().exact();
    if let Err(refusal) = memory.try_add(whole.unwrap_or(0)) {
        // A refused client sends its request again: so not after it was performed.
        return match response.extensions_mut().remove::<AcceptedResponse>() {
            Some(accepted) => accepted.into_response(),
            None => refusal.into_response(),
        };
    }
    let is_stream = whole.is_none();
    let (rest, adding) = (Bytes::new(), None);
    let _in_flight = in_flight;
    response.map(|body| Body::new(HeldBody { body, is_stream, rest, adding, memory, _in_flight }))
}

/// The most bytes of an answer that are sent at one time.
const PIECE: usize = 64 << 10;

/// An answer whose request is in flight, and whose memory is held, until its last byte is sent: it is
/// given to the connection in pieces.
struct HeldBody {
    body: Body,
    is_stream: bool,
    /// What was not sent yet of what the body gave.
    rest: Bytes,
    /// The wait for the memory of that.
    adding: Option<BoxFuture<'static, Result<()>>>,
    memory: Held,
    _in_flight: Arc<InFlightRequest>,
}

impl hyper::body::Body for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if this.rest.is_empty() {
            if this.is_stream {
                this.memory.release();
            }
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(data) => this.rest = data,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
            if this.is_stream {
                let (memory, bytes) = (this.memory.clone(), this.rest.len() as u64);
                // What broke off here may be the answer to something that was done.
                this.adding = Some(Box::pin(async move { memory.add(bytes).await }));
            }
        }
        if let Some(adding) = &mut this.adding {
            let added = ready!(adding.as_mut().poll(context));
            this.adding = None;
            if let Err(refusal) = added {
                return Poll::Ready(Some(Err(axum::Error::new(refusal))));
            }
        }
        let piece = this.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(this.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut size = SizeHint::new();
        size.set_lower(hint.lower() + rest);
        if let Some(upper) = hint.upper() {
            size.set_upper(upper + rest);
        }
        size
    }
}

const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");

/// The headers for browsers, and for responses that no cache may keep.
fn add_headers(app: &App, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let mut add = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    add(X_CONTENT_TYPE_OPTIONS, "nosniff");
    add(CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'");
    add(REFERRER_POLICY, "no-referrer");
    add(CACHE_CONTROL, "no-store");
    let allowed = origin.filter(|origin| app.sites.allows_origin(origin));
    let Some(origin) = allowed else {
        add(CROSS_ORIGIN_RESOURCE_POLICY, "same-origin");
        return;
    };
    add(CROSS_ORIGIN_RESOURCE_POLICY, "cross-origin");
    add(VARY, "origin");
    add(ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PUT, PATCH, DELETE");
    add(
        ACCESS_CONTROL_ALLOW_HEADERS,
        "authorization, content-type, idempotency-key, if-none-match, last-event-id, mcp-method, \
         mcp-name, mcp-protocol-version, mcp-session-id, range, traceparent, x-request-id",
    );
    add(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        "content-disposition, content-range, etag, location, mcp-session-id, retry-after, \
         sandbox-generation, sandbox-restarted, x-request-id",
    );
    add(ACCESS_CONTROL_MAX_AGE, "600");
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
}
