//! Ports of sandboxes, for programs: as a tunnel, and by a path of the API.

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{CONNECTION, ORIGIN, UPGRADE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, any};
use hyper::upgrade::OnUpgrade;
use sandbox_api::service::SandboxRef;
use sandbox_api::{PreviewRequest, ProblemKind, TCP_PROTOCOL};

use super::params::At;
use super::sandboxes::answer;
use crate::access::Caller;
use crate::app::App;
use crate::forward::tunnel;
use crate::lists::items;
use crate::mount::with_path;
use crate::proxy::{Guard, HostHeader, IdleGuard, ProxyOptions, proxy};
use crate::refusal::{Refusal, Result};
use crate::request::{Id, Json, Port};
use crate::response::json_response;
use crate::serve::{Places, places};

/// `/v1/sandboxes/{id}/ports/{port}/http/`.
const SEGMENTS_BEFORE_PATH: usize = 7;
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

pub(super) async fn list(at: At) -> Result<Response> {
    // A sandbox of an MCP session is not one of the API.
    at.app.service.sandbox(&at.subject, &at.sandbox.id).await?;
    let listed = at.app.service.listening_ports(&at.subject, &at.sandbox).await?;
    Ok(answer(StatusCode::OK, &listed))
}

pub(super) async fn preview(
    at: At,
    Port(port): Port,
    request: Json<PreviewRequest>,
) -> Result<Response> {
    let At { app, subject, sandbox, .. } = at;
    let preview = app.service.open_preview(&subject, &sandbox, port, request.value).await?;
    Ok(json_response(StatusCode::CREATED, &preview))
}

pub(super) async fn connect(
    at: At,
    Port(port): Port,
    upgrade: Result<TcpUpgrade>,
) -> Result<Response> {
    let At { app, subject, sandbox, .. } = at;
    // Others learn nothing of it, whatever they ask for.
    app.service.sandbox(&subject, &sandbox.id).await?;
    let TcpUpgrade { on_upgrade, held } = upgrade?;
    let stream = app.service.dial(&subject, &sandbox, port).await?.value;
    let connection = std::future::ready(Ok(IdleGuard::tunnel(stream)));
    tunnel::join(on_upgrade, connection, app.stop.clone(), held);
    let headers = [
        (CONNECTION, HeaderValue::from_static("upgrade")),
        (UPGRADE, HeaderValue::from_static(TCP_PROTOCOL)),
    ];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

/// A request for a tunnel, with the places that it takes.
pub(super) struct TcpUpgrade {
    on_upgrade: OnUpgrade,
    held: Places,
}

impl FromRequestParts<App> for TcpUpgrade {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self> {
        let asks = |name, item: &str| {
            items(&parts.headers, name).any(|found| found.eq_ignore_ascii_case(item))
        };
        let is_asked_for = parts.version == Version::HTTP_11
            && asks(CONNECTION, "upgrade")
            && asks(UPGRADE, TCP_PROTOCOL);
        let held = places(&parts.extensions);
        let (true, Some(on_upgrade)) = (is_asked_for, parts.extensions.remove()) else {
            let detail = format!("this is a tunnel: send Upgrade: {TCP_PROTOCOL}, by HTTP/1.1");
            return Err(Refusal::new(ProblemKind::Malformed, detail));
        };
        Ok(Self { on_upgrade, held })
    }
}

/// The paths of ports, for any method.
pub(crate) fn by_path() -> axum::Router<App> {
    let to_port: MethodRouter<App> = any(by_http);
    axum::Router::new()
        .route("/v1/sandboxes/{id}/ports/{port}/http/", to_port.clone())
        .route("/v1/sandboxes/{id}/ports/{port}/http/{*path}", to_port)
}

async fn by_http(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    Port(port): Port,
    mut request: Request,
) -> Result<Response> {
    refuse_pages(&app, request.headers())?;
    let whole = request.uri().path_and_query().map_or("/", |it| it.as_str());
    let path = whole.splitn(SEGMENTS_BEFORE_PATH + 1, '/').nth(SEGMENTS_BEFORE_PATH);
    let uri = with_path(request.uri(), &format!("/{}", path.unwrap_or_default()));
    *request.uri_mut() =
        uri.ok_or_else(|| Refusal::new(ProblemKind::Malformed, "the path is not valid"))?;
    let sandbox = SandboxRef { id, generation: None };
    let dialed = app.service.dial(&caller.subject, &sandbox, port).await?;
    let (host, guard, stop) = (HostHeader::Local(port), Guard::Api, app.stop.clone());
    Ok(proxy(dialed.value, request, ProxyOptions { host, guard, scheme: None, stop }).await?)
}

/// A guest's page would run on the origin of the API, and any page could use a server that asks for no
/// credentials.
fn refuse_pages(app: &App, headers: &HeaderMap) -> Result<()> {
    let forbidden = |detail| Err(Refusal::new(ProblemKind::Forbidden, detail));
    if !app.config.has_auth {
        return forbidden("without authentication a port has no path here: use `sandbox port`");
    }
    let is_page = headers.get_all(SEC_FETCH_MODE).iter().any(|mode| mode == "navigate");
    if is_page || headers.contains_key(ORIGIN) {
        return forbidden("this path is for programs: a preview is for browsers");
    }
    Ok(())
}
