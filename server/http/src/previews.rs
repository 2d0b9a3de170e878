//! Ports of sandboxes at hosts of their own, for browsers.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sandbox_api::service::SandboxRef;
use sandbox_api::{ByteSize, PORT_TOKEN, ProblemKind};
use sandbox_service::{PreviewHost, Service, Target};

use crate::access::{Caller, Peer, Scope, below};
use crate::app::App;
use crate::lists::only;
use crate::mount::{Admit, Admitted, Mount, MountAccess, with_path};
use crate::proxy::{Guard, HostHeader, ProxyOptions, proxy};
use crate::refusal::{Refusal, Result};

/// The path of requests that came to a host: `/.preview/PORT/ID/PATH`.
const PATH: &str = "/.preview";
const SEGMENTS_BEFORE_PATH: usize = 4;
const SANDBOX_PORT_TOKEN: HeaderName = HeaderName::from_static(PORT_TOKEN);

/// The previews of a service that has a domain for them.
pub(crate) fn mount(app: &App) -> Option<Mount> {
    let domain = app.service.previews()?.domain.clone();
    let service =
        Router::new().route(&format!("{PATH}/{{*path}}"), any(answer)).with_state(app.clone());
    let previews = Previews { service: app.service.clone(), domain };
    let access = MountAccess::Own(Arc::new(previews));
    Some(Mount { path: PATH, service, access, max_request: ByteSize::b(u64::MAX) })
}

struct Previews {
    service: Service,
    domain: String,
}

impl Admit for Previews {
    fn route<'a>(&'a self, host: &'a str, head: &'a mut Parts) -> BoxFuture<'a, bool> {
        let Some(host) = below(host, &self.domain).and_then(PreviewHost::parse) else {
            return std::future::ready(false).boxed();
        };
        let whole = head.uri.path_and_query().map_or("/", |it| it.as_str());
        let whole = format!("{PATH}/{}/{}{whole}", host.port, host.sandbox);
        let uri = with_path(&head.uri, &whole);
        let is_found = uri.is_some();
        if let Some(uri) = uri {
            head.uri = uri;
            head.extensions.insert(Arc::new(host));
        }
        std::future::ready(is_found).boxed()
    }

    fn admit<'a>(
        &'a self,
        head: &'a mut Parts,
        _: Peer,
    ) -> BoxFuture<'a, Result<Admitted, Response>> {
        async move {
            // By its path alone a guest would be on the origin of the API.
            let host = head.extensions.remove::<Arc<PreviewHost>>().ok_or_else(|| {
                self.refuse(Refusal::new(ProblemKind::NotFound, "there is no such path"))
            })?;
            let token = token(&head.headers);
            let found = self.service.preview_subject(&host, token.as_deref()).await;
            let subject = found.map_err(|error| self.refuse(error.into()))?.ok_or_else(|| {
                let refusal = Refusal::new(
                    ProblemKind::Unauthenticated,
                    "this preview does not exist, or its token is missing, not valid or too old",
                );
                self.refuse(refusal.hint(Some(format!("send {PORT_TOKEN}: TOKEN"))))
            })?;
            head.headers.remove(SANDBOX_PORT_TOKEN);
            let caller = Caller { subject, scopes: vec![Scope::Sandboxes] };
            let target = Target::Sandbox(host.sandbox.clone());
            // The token of a public preview is in its URL: it does not say who sends the request.
            Ok(Admitted { caller: Some(caller), is_public: host.token.is_some(), target })
        }
        .boxed()
    }

    fn refuse(&self, refusal: Refusal) -> Response {
        refusal.into_response()
    }
}

/// The one token of a request.
fn token(headers: &HeaderMap) -> Option<String> {
    only(headers, SANDBOX_PORT_TOKEN)?.to_str().ok().map(str::to_owned)
}

async fn answer(State(app): State<App>, caller: Caller, mut request: Request) -> Result<Response> {
    let not_found = || Refusal::new(ProblemKind::NotFound, "there is no such preview");
    let whole = request.uri().path_and_query().map_or("/", |it| it.as_str());
    let mut parts = whole.splitn(SEGMENTS_BEFORE_PATH + 1, '/').skip(2);
    let (Some(port), Some(id), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(not_found());
    };
    let port = port.parse().map_err(|_| not_found())?;
    let sandbox = SandboxRef { id: id.to_owned(), generation: None };
    let uri = with_path(request.uri(), &format!("/{path}"));
    *request.uri_mut() = uri.ok_or_else(not_found)?;
    let dialed = app.service.dial(&caller.subject, &sandbox, port).await?;
    let (host, guard, stop) = (HostHeader::Local(port), Guard::Open, app.stop.clone());
    let scheme = app.service.previews().map(|config| config.scheme);
    Ok(proxy(dialed.value, request, ProxyOptions { host, guard, scheme, stop }).await?)
}
