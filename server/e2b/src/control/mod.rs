//! The control API: sandboxes are created, listed, changed and ended, on both generations of E2B's paths. What is
//! not offered is answered at once with 501 and a sentence.

mod create;
mod list;
mod network;
mod view;

use std::time::Duration;

use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Json, Router};
use sandbox_api::service::Time;
use sandbox_http::Caller;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) use self::create::name_of_key;
use self::view::{created, detail, whole_cpus};
use crate::app::App;
use crate::body::whole;
use crate::error::Error;
use crate::sandbox::NewEnd;

/// The most bytes of a request.
const MAX_REQUEST: usize = 1 << 20;
/// The life of a sandbox whose request says nothing of it.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// How far the time of a measurement may be from what is asked for: callers ask in whole seconds, and elsewhere
/// one is made every five.
const METRICS_SLACK: Duration = Duration::from_secs(5);

type Result<T, E = Error> = std::result::Result<T, E>;

/// All routes, without the path of the mount.
pub(crate) fn router() -> Router<App> {
    let sandboxes = || get(list::list).post(create::create);
    Router::new()
        .route("/sandboxes", sandboxes())
        .route("/v2/sandboxes", sandboxes())
        .route("/sandboxes/{id}", get(info).delete(kill))
        .route("/sandboxes/{id}/connect", post(connect))
        .route("/v2/sandboxes/{id}/connect", post(connect))
        // As SDKs before 2.0 called it.
        .route("/sandboxes/{id}/resume", post(connect))
        .route("/sandboxes/{id}/pause", post(pause))
        .route("/sandboxes/{id}/timeout", post(set_timeout))
        .route("/sandboxes/{id}/refreshes", post(refresh))
        .route("/sandboxes/{id}/metrics", get(metrics))
        .route("/sandboxes/{id}/network", put(network::update))
        .route("/sandboxes/{id}/snapshots", post(copy))
        .route("/sandboxes/{id}/fork", post(copy))
        .method_not_allowed_fallback(not_offered)
        .fallback(not_offered)
}

/// The body of a request, which may be empty. Members that are not known are ignored: each SDK has more.
async fn read<T: DeserializeOwned + Default>(request: Request) -> Result<T> {
    let body = whole(request, MAX_REQUEST).await?;
    if body.bytes.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(&body.bytes)
        .map_err(|error| Error::invalid(format!("the request cannot be read: {error}")))
}

async fn info(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let sandbox = app.find(&caller.subject, &id).await?;
    Ok(Json(detail(&app, &sandbox)))
}

async fn kill(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<StatusCode> {
    let sandbox = app.find(&caller.subject, &id).await?;
    app.service().delete_sandbox(&caller.subject, sandbox.id()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A time in seconds, as a request has it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct TimeRequest {
    timeout: Option<u64>,
    duration: Option<u64>,
    /// Whether what runs goes on; without it the sandbox would boot anew.
    memory: Option<bool>,
}

/// The time that a request asks for.
fn time(app: &App, seconds: u64) -> Result<Duration> {
    let (time, most) = (Duration::from_secs(seconds), app.service().kept_bounds().max_ttl);
    match time > most {
        true => {
            let most = most.as_secs();
            Err(Error::invalid(format!(
                "a timeout of {seconds} s is longer than the {most} s of this server"
            )))
        }
        false => Ok(time),
    }
}

fn refuse_without_memory(memory: Option<bool>) -> Result<()> {
    match memory {
        Some(false) => Err(Error::not_offered(
            "pauses without memory: a paused sandbox is frozen, and goes on where it was",
        )),
        _ => Ok(()),
    }
}

async fn connect(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response> {
    let host = view::api_domain(&app, request.headers());
    let TimeRequest { timeout, memory, .. } = read(request).await?;
    let sandbox = app.find(&caller.subject, &id).await?;
    refuse_without_memory(memory)?;
    let timeout =
        timeout.map(|seconds| time(&app, seconds)).transpose()?.unwrap_or(DEFAULT_TIMEOUT);
    let (status, sandbox) = match sandbox.marker.is_paused {
        true => (StatusCode::CREATED, app.resume(&sandbox, timeout).await?),
        false => {
            app.set_end(&sandbox, timeout, NewEnd::NotEarlier).await?;
            (StatusCode::OK, sandbox)
        }
    };
    Ok((status, Json(created(&app, &sandbox, host))).into_response())
}

async fn pause(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<StatusCode> {
    let TimeRequest { memory, .. } = read(request).await?;
    let sandbox = app.find(&caller.subject, &id).await?;
    refuse_without_memory(memory)?;
    app.pause(&sandbox).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn set_timeout(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<StatusCode> {
    let TimeRequest { timeout, .. } = read(request).await?;
    let seconds = timeout.ok_or_else(|| Error::invalid("timeout is missing"))?;
    change_end(&app, &caller, &id, seconds, NewEnd::Exactly).await
}

async fn refresh(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<StatusCode> {
    let TimeRequest { duration, .. } = read(request).await?;
    let seconds = duration.unwrap_or(DEFAULT_TIMEOUT.as_secs());
    change_end(&app, &caller, &id, seconds, NewEnd::NotEarlier).await
}

async fn change_end(
    app: &App,
    caller: &Caller,
    id: &str,
    seconds: u64,
    new: NewEnd,
) -> Result<StatusCode> {
    let sandbox = app.find(&caller.subject, id).await?;
    if sandbox.marker.is_paused {
        let message = format!("sandbox {id} is paused: connect resumes it, with a new timeout");
        return Err(Error::new(StatusCode::CONFLICT, message));
    }
    app.set_end(&sandbox, time(app, seconds)?, new).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Between which times measurements are asked for, in seconds since 1970.
#[derive(Debug, Clone, Deserialize)]
struct Period {
    start: Option<i64>,
    end: Option<i64>,
}

/// What the sandbox uses now: earlier measurements are not kept.
async fn metrics(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(Period { start, end }): Query<Period>,
) -> Result<Json<Value>> {
    let sandbox = app.find(&caller.subject, &id).await?;
    let now = Time::now();
    let at = |seconds: i64| Time::from_unix_millis(seconds.saturating_mul(1000));
    let is_in_period = start.is_none_or(|start| at(start) <= now)
        && end.is_none_or(|end| now.before(METRICS_SLACK) <= at(end));
    if !is_in_period || sandbox.marker.is_paused {
        return Ok(Json(json!([])));
    }
    let stats = app.service().sandbox_stats(&sandbox.subject, &sandbox.reference()).await?.value;
    Ok(Json(json!([{
        "timestamp": now,
        "timestampUnix": now.unix_millis() / 1000,
        "cpuCount": whole_cpus(stats.cpu_count),
        "cpuUsedPct": stats.cpu_used_ratio * 100.0,
        "memUsed": stats.memory_bytes,
        "memTotal": stats.memory_limit,
        "memCache": stats.cache_bytes,
        "diskUsed": stats.disk_bytes,
        "diskTotal": stats.disk_limit,
    }])))
}

async fn copy(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<StatusCode> {
    app.find(&caller.subject, &id).await?;
    Err(Error::not_offered("snapshots and forks of sandboxes"))
}

async fn not_offered(request: Request) -> Error {
    let path = request.uri().path();
    let first = path.trim_start_matches('/').split('/').find(|part| !is_version(part));
    Error::not_offered(match first.unwrap_or_default() {
        "templates" => "template builds: templates are named in its configuration, in [server.e2b]",
        "snapshots" => "snapshots of sandboxes",
        "volumes" | "volumecontent" => "volumes",
        "secrets" => "secrets",
        _ => "this part of E2B's API",
    })
}

fn is_version(part: &str) -> bool {
    part.strip_prefix('v').is_some_and(|rest| rest.parse::<u8>().is_ok())
}
