//! Where admitted requests go: to the control API, to envd, or to a port of a sandbox.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use sandbox_api::ProblemKind;
use sandbox_http::{Caller, Guard, HostHeader, ProxyError, ProxyOptions, proxy};
use serde_json::json;
use tower::ServiceExt as _;

use crate::answers::{closed, not_found, refused, with_cors};
use crate::app::{App, EnvdCaller};
use crate::control;
use crate::envd;
use crate::error::Error;
use crate::marker::Marker;
use crate::plane::{Decided, ENVD_PORT, FILES, PATH, TRAFFIC_TOKEN};
use crate::sandbox::{Sandbox, is_missing};
use crate::tokens::{has, traffic_token};

/// What answers, without the path of the mount.
#[derive(Clone)]
struct Planes {
    app: App,
    control: Router,
    envd: Router,
}

/// All of it, at the path of its mount, and the files at theirs.
pub(crate) fn routers(app: App) -> [(&'static str, Router); 2] {
    let control = control::router().with_state(app.clone());
    let envd = envd::router().with_state(app.clone());
    let planes = Planes { app, control, envd };
    let all = any(dispatch).with_state(planes);
    // Nested, so that the parts of a path are those of the inner routes alone.
    let nested = Router::new().nest_service(PATH, all.clone());
    [(PATH, nested), (FILES, Router::new().route(FILES, all))]
}

async fn dispatch(State(planes): State<Planes>, mut request: Request) -> Response {
    let decided = Decided::take(request.headers_mut());
    let mut answered = match (decided, request.extensions().get::<Caller>().cloned()) {
        // Nothing is decided by what is not there.
        (None, _) | (_, None) => {
            Error::new(StatusCode::UNAUTHORIZED, "the request was not let in").into_response()
        }
        (Some(Decided::Control), Some(_)) => call(planes.control, request).await,
        (Some(Decided::Sandbox { id, port, is_own }), Some(caller)) => {
            let app = &planes.app;
            let found = match find(app, &caller, &id).await {
                // A request without a token wakes nothing.
                Ok(sandbox) if port != ENVD_PORT => match forbidden(app, &sandbox, &request) {
                    None => running(app, sandbox).await,
                    Some(refused) => Err(refused),
                },
                Ok(sandbox) => running(app, sandbox).await,
                Err(response) => Err(response),
            };
            match found {
                Err(response) => response,
                Ok(sandbox) if port == ENVD_PORT => {
                    let (subject, sandbox) = (sandbox.subject.clone(), sandbox.reference());
                    request.extensions_mut().insert(EnvdCaller { subject, sandbox });
                    call(planes.envd, request).await
                }
                Ok(sandbox) => {
                    // At its own host all of an answer is the program's.
                    let answer = to_port(app, &sandbox, port, is_own, request).await;
                    return if is_own { answer } else { with_cors(answer) };
                }
            }
        }
    };
    // Answers have tokens, and files.
    let no_store = HeaderValue::from_static("no-store");
    answered.headers_mut().entry(CACHE_CONTROL).or_insert(no_store);
    with_cors(answered)
}

async fn call(router: Router, request: Request) -> Response {
    let Ok(response) = router.oneshot(request).await;
    response
}

/// The sandbox of a request.
async fn find(app: &App, caller: &Caller, id: &str) -> Result<Sandbox, Response> {
    let found = app.find(&caller.subject, id).await;
    found.map_err(|error| match error.status() {
        StatusCode::NOT_FOUND => not_found(id),
        _ => error.into_response(),
    })
}

/// The same, resumed if it is paused and requests resume it.
async fn running(app: &App, sandbox: Sandbox) -> Result<Sandbox, Response> {
    match sandbox.marker {
        Marker { is_paused: false, .. } => Ok(sandbox),
        // For its callers it is not there until they connect.
        Marker { auto_resume: false, .. } => Err(not_found(sandbox.id())),
        Marker { timeout, .. } => {
            let time = std::time::Duration::from_secs(timeout);
            app.resume(&sandbox, time).await.map_err(Error::into_response)
        }
    }
}

/// The answer to a request that may not go to a port of a sandbox.
fn forbidden(app: &App, sandbox: &Sandbox, request: &Request) -> Option<Response> {
    let (id, headers) = (sandbox.id(), request.headers());
    if !app.is_private(&sandbox.marker)
        || has(headers, &TRAFFIC_TOKEN, &traffic_token(app.service(), id))
    {
        return None;
    }
    let message = "this sandbox takes requests with its traffic access token only";
    let body = json!({ "sandboxId": id, "message": message, "code": 403 });
    Some(refused(StatusCode::FORBIDDEN, body))
}

/// Sends a request to a port of a sandbox, and its answer back.
async fn to_port(
    app: &App,
    sandbox: &Sandbox,
    port: u16,
    is_own: bool,
    request: Request,
) -> Response {
    let id = sandbox.id();
    let stream = match app.service().dial(&sandbox.subject, &sandbox.reference(), port).await {
        Ok(dialled) => dialled.value,
        Err(error) if error.problem().kind == ProblemKind::PortClosed => return closed(id, port),
        Err(error) if is_missing(&error) => return not_found(id),
        Err(error) => return Error::from(error).into_response(),
    };
    let mask = sandbox.marker.mask_host.as_ref();
    let mask = mask.map(|mask| HeaderValue::try_from(mask.replace("${PORT}", &port.to_string())));
    let host = match mask {
        Some(Ok(host)) => HostHeader::Named(host),
        _ => HostHeader::Original,
    };
    // A page of a program is never one of this server.
    let guard = if is_own { Guard::Open } else { Guard::Api };
    let scheme = app.service().previews().filter(|_| is_own).map(|config| config.scheme);
    let options = ProxyOptions { host, guard, scheme, stop: app.stop().clone() };
    match proxy(stream, request, options).await {
        Ok(response) => response,
        Err(error @ ProxyError::Malformed(_)) => Error::invalid(error.to_string()).into_response(),
        Err(error) => {
            tracing::debug!(id, port, %error, "a request to a port failed");
            closed(id, port)
        }
    }
}
