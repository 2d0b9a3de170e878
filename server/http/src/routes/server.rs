//! The server itself: usage, health, figures, and its own description.

use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use sandbox_api::ProblemKind;
use sandbox_api::service::ScriptRequest;
use schemars::JsonSchema;
use serde::Serialize;

use crate::access::{Caller, Scope};
use crate::app::App;
use crate::metrics::OPENMETRICS;
use crate::refusal::{Refusal, Result};
use crate::request::Json;
use crate::response::json_response;

pub(super) async fn usage(State(app): State<App>, caller: Caller) -> Result<Response> {
    Ok(json_response(StatusCode::OK, &app.service.usage(&caller.subject).await?))
}

pub(super) async fn service(State(app): State<App>) -> Result<Response> {
    Ok(json_response(StatusCode::OK, &app.service.status().await?))
}

pub(super) async fn check(
    State(app): State<App>,
    caller: Caller,
    request: Json<ScriptRequest>,
) -> Result<Response> {
    let checked = app.service.check_script(&caller.subject, request.value).await?;
    Ok(json_response(StatusCode::OK, &checked))
}

/// The answer of `/healthz`.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Healthz {
    /// `ok`.
    status: &'static str,
}

pub(super) async fn healthz() -> Response {
    json_response(StatusCode::OK, &Healthz { status: "ok" })
}

pub(super) async fn readyz(State(app): State<App>) -> Response {
    let mut health = app.service.health().await;
    // It needs no credentials: the reasons are in the log.
    for check in &mut health.checks {
        if let Some(problem) = check.problem.take() {
            tracing::warn!(check = check.name, problem, "not ready");
        }
    }
    health.ready &= !app.stop.is_cancelled();
    let status = match health.ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    json_response(status, &health)
}

pub(super) async fn metrics(State(app): State<App>) -> Result<Response> {
    let text = app.metrics.text().map_err(|_| Refusal::internal("figures cannot be written"))?;
    Ok(([(CONTENT_TYPE, HeaderValue::from_static(OPENMETRICS))], text).into_response())
}

/// Cacheable for a while: it changes with the server's version.
const FOR_A_WHILE: HeaderValue = HeaderValue::from_static("public, max-age=300");

pub(super) async fn openapi(State(app): State<App>) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CACHE_CONTROL, FOR_A_WHILE),
    ];
    (headers, app.openapi.clone()).into_response()
}

/// OAuth 2.0 Protected Resource Metadata.
#[derive(Serialize, JsonSchema)]
pub(super) struct ProtectedResource {
    /// The URL of the resource.
    resource: String,
    /// The issuers of tokens for it; absent without any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    authorization_servers: Vec<String>,
    /// How a token is sent.
    bearer_methods_supported: Vec<&'static str>,
    /// What a token may allow.
    scopes_supported: Vec<&'static str>,
    /// Where its interface is described.
    resource_documentation: String,
}

pub(super) async fn resource_metadata(State(app): State<App>) -> Result<Response> {
    metadata_of(&app, "", Scope::ALL.iter().map(|scope| scope.as_str()).collect())
}

pub(super) async fn mcp_resource_metadata(State(app): State<App>) -> Result<Response> {
    metadata_of(&app, "/mcp", vec![Scope::Sandboxes.as_str()])
}

fn metadata_of(app: &App, path: &str, scopes: Vec<&'static str>) -> Result<Response> {
    let resource = app.config.resource.as_ref().ok_or_else(|| {
        Refusal::new(ProblemKind::NotFound, "this server names no issuer of tokens")
    })?;
    let url = resource.url.trim_end_matches('/');
    let metadata = ProtectedResource {
        resource: format!("{url}{path}"),
        authorization_servers: resource.authorization_servers.clone(),
        bearer_methods_supported: vec!["header"],
        scopes_supported: scopes,
        resource_documentation: format!("{url}/docs"),
    };
    Ok(json_response(StatusCode::OK, &metadata))
}
