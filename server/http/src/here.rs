//! What is left to do for a request that was let in: its body is bounded, and its handler answers.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_ENCODING;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use sandbox_api::ProblemKind;

use crate::access::{Caller, Needs};
use crate::app::App;
use crate::forward::owner::Owner;
use crate::limit::Limit;
use crate::mount::Admit;
use crate::refusal::{Refusal, Result};
use crate::request::{MeteredBody, content_length, media_type, read_all, too_large};
use crate::serve::body::BoundedBody;

/// What a route asks of a request before it is handled.
#[derive(Clone)]
pub(crate) struct RouteAccess {
    pub name: &'static str,
    pub needs: Needs,
    pub limit: Option<Limit>,
    /// Whether its query is read: otherwise it has no parameters.
    pub has_query: bool,
    /// The path of what is mounted, or nothing: what it is as a resource of OAuth.
    pub resource: &'static str,
    /// Which node of a cluster answers.
    pub owner: Owner,
    /// The statuses in the document; `None` for what is mounted, which has none.
    pub statuses: Option<Arc<BTreeSet<u16>>>,
    /// What decides in place of the scope.
    pub own: Option<Arc<dyn Admit>>,
}

impl RouteAccess {
    /// A refusal as its callers expect it.
    pub fn refuse(&self, refusal: Refusal) -> Response {
        match &self.own {
            Some(own) => own.refuse(refusal),
            None => refusal.into_response(),
        }
    }
}

/// The rest of the way of a request that was let in, at this node.
#[derive(Clone)]
pub(crate) struct Here {
    pub app: App,
    pub gate: RouteAccess,
    pub next: Next,
}

impl Here {
    /// Checks what comes with a request, and handles it.
    pub async fn answer(self, mut request: Request) -> Response {
        let refused = match self.bound(&mut request) {
            Ok(refused) => refused,
            Err(refusal) => return self.gate.refuse(refusal),
        };
        let response = self.next.run(request).await;
        // Overrides its handler's reply to a body that could not be read.
        refused.get().map_or(response, |refusal| self.gate.refuse(refusal.clone()))
    }

    /// The head and the whole body of a request, within the same bounds.
    pub async fn read(&self, mut request: Request) -> Result<(Parts, Bytes)> {
        let refused = self.bound(&mut request)?;
        let (mut head, body) = request.into_parts();
        let body = read_all(body).await;
        // Counted again where it is handled.
        head.extensions.remove::<MeteredBody>();
        match refused.get() {
            Some(refusal) => Err(refusal.clone()),
            None => Ok((head, body?)),
        }
    }

    /// Bounds the body of a request. Why it is not read to its end, if it is not, is known later.
    fn bound(&self, request: &mut Request) -> Result<Arc<OnceLock<Refusal>>> {
        let Self { app, gate, .. } = self;
        if let (false, Some(query @ [_, ..])) =
            (gate.has_query, request.uri().query().map(str::as_bytes))
        {
            let name = query.split(|byte| matches!(byte, b'=' | b'&')).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            let refusal = Refusal::new(ProblemKind::Invalid, "this route has no parameters");
            return Err(refusal.at(name, "unknown parameter"));
        }
        let is_coded = |value: &HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"identity");
        let is_stream = matches!(gate.limit, Some(Limit::Stream(_)));
        let is_read = gate.limit.is_some() && !is_stream;
        if is_read && request.headers().get_all(CONTENT_ENCODING).iter().any(is_coded) {
            let detail = "the body is encoded: send it without Content-Encoding";
            return Err(Refusal::new(ProblemKind::UnsupportedMediaType, detail));
        }
        let limit = gate.limit.map_or(0, |limit| app.limit(limit));
        let length = content_length(request.headers())?;
        if gate.limit.is_some() && length.is_some_and(|length| length > limit) {
            return Err(too_large(limit));
        }
        let body = std::mem::take(request.body_mut());
        let mut body = Body::new(match is_stream {
            true => BoundedBody::at_any_pace(body, limit),
            false => BoundedBody::new(body, limit),
        });
        let refused = Arc::default();
        // An upload is passed on as it comes.
        let caller = request.extensions().get::<Caller>();
        let is_passed_on = is_stream || gate.limit == Some(Limit::Upload);
        if let (Some(caller), false) = (caller, is_passed_on) {
            let held = app.requests.hold(&caller.subject);
            let metered = MeteredBody { held, refused: Arc::clone(&refused) };
            let is_form = media_type(request.headers()).as_deref() == Some("multipart/form-data");
            body = metered.meter(body, !is_form);
            request.extensions_mut().insert(metered);
        } else if let (Some(caller), Some(_)) = (caller, &gate.own) {
            let held = app.requests.hold(&caller.subject);
            request.extensions_mut().insert(held);
        }
        *request.body_mut() = body;
        Ok(refused)
    }
}
