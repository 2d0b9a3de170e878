//! The control API: sandboxes are created, listed, changed and ended, on both generations of E2B's paths. What is
//! not offered is answered at once with 501 and a sentence.

mod create;
mod list;
mod network;
mod request;
mod view;

use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use sandbox_api::service::Time;
use serde::Deserialize;
use serde_json::{Value, json};

pub(crate) use self::create::name_of_key;
use self::request::{About, Asked, DEFAULT_TIMEOUT, Result, refuse_without_memory, time};
use self::view::{created, detail, whole_cpus};
use crate::app::App;
use crate::error::Error;
use crate::sandbox::NewEnd;

/// How far the time of a measurement may be from what is asked for: callers ask in whole seconds, and elsewhere
/// one is made every five.
const METRICS_SLACK: Duration = Duration::from_secs(5);

/// All routes, without the path of the mount.
pub(crate) fn router() -> Router<App> {
    let sandboxes = || get(list::list).post(create::create);
    Router::new()
        .route("/sandboxes", sandboxes())
        .route("/v2/sandboxes", sandboxes())
        .route("/sandboxes/metrics", get(metrics_of_several))
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

async fn info(about: About) -> Result<Json<Value>> {
    Ok(Json(detail(&about.app, &about.sandbox().await?)))
}

async fn kill(about: About) -> Result<StatusCode> {
    let sandbox = about.sandbox().await?;
    about.app.service().delete_sandbox(&sandbox.subject, sandbox.id()).await?;
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

async fn connect(
    about: About,
    headers: HeaderMap,
    Asked(asked): Asked<TimeRequest>,
) -> Result<Response> {
    let (app, sandbox) = (&about.app, about.sandbox().await?);
    refuse_without_memory(asked.memory)?;
    let timeout = asked.timeout.map_or(Ok(DEFAULT_TIMEOUT), |seconds| time(app, seconds))?;
    let (status, sandbox) = match sandbox.marker.is_paused {
        true => (StatusCode::CREATED, app.resume(&sandbox, timeout).await?),
        false => {
            app.set_end(&sandbox, timeout, NewEnd::NotEarlier).await?;
            (StatusCode::OK, sandbox)
        }
    };
    let created = created(app, &sandbox, view::api_domain(app, &headers));
    Ok((status, Json(created)).into_response())
}

async fn pause(about: About, Asked(asked): Asked<TimeRequest>) -> Result<StatusCode> {
    let sandbox = about.sandbox().await?;
    refuse_without_memory(asked.memory)?;
    about.app.pause(&sandbox).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn set_timeout(about: About, Asked(asked): Asked<TimeRequest>) -> Result<StatusCode> {
    let seconds = asked.timeout.ok_or_else(|| Error::invalid("timeout is missing"))?;
    change_end(&about, seconds, NewEnd::Exactly).await
}

async fn refresh(about: About, Asked(asked): Asked<TimeRequest>) -> Result<StatusCode> {
    let seconds = asked.duration.unwrap_or(DEFAULT_TIMEOUT.as_secs());
    change_end(&about, seconds, NewEnd::NotEarlier).await
}

async fn change_end(about: &About, seconds: u64, new: NewEnd) -> Result<StatusCode> {
    let (app, id, sandbox) = (&about.app, &about.id, about.sandbox().await?);
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
    about: About,
    period: Result<Query<Period>, QueryRejection>,
) -> Result<Json<Value>> {
    let Query(Period { start, end }) = period?;
    let sandbox = about.sandbox().await?;
    let now = Time::now();
    let at = |seconds: i64| Time::from_unix_millis(seconds.saturating_mul(1000));
    let is_in_period = start.is_none_or(|start| at(start) <= now)
        && end.is_none_or(|end| now.before(METRICS_SLACK) <= at(end));
    if !is_in_period || sandbox.marker.is_paused {
        return Ok(Json(json!([])));
    }
    let service = about.app.service();
    let stats = service.sandbox_stats(&sandbox.subject, &sandbox.reference()).await?.value;
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

async fn metrics_of_several() -> Error {
    Error::not_offered("the metrics of several sandboxes at once: ask for those of each")
}

async fn copy(about: About) -> Result<StatusCode> {
    about.sandbox().await?;
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
