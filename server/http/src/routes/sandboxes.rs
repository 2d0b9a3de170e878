//! Kept sandboxes.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, LOCATION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use sandbox_api::files::{WriteMode, WriteReply};
use sandbox_api::operation::{OperationRequest, Published, Read, Write};
use sandbox_api::service::{ExecutionRequest, ExtendRequest, SandboxPatch, SandboxRequest};
use sandbox_api::{ErrorKind, ProblemKind};
use sandbox_service::{CreatedSandbox, InSandbox, KeptWriter, SandboxQuery};
use serde::Serialize;

use super::content::{as_attachment, refuse_etags, write_mode};
use super::executions::submit;
use super::params::{At, PageSize, SandboxListParams, SubmitInParams};
use crate::access::Caller;
use crate::app::App;
use crate::refusal::{Refusal, Result};
use crate::request::{FilePath, IdempotencyKey, Json, Params, unreadable};
use crate::response::{json_response, set};

const SANDBOX_GENERATION: HeaderName = HeaderName::from_static("sandbox-generation");
const SANDBOX_RESTARTED: HeaderName = HeaderName::from_static("sandbox-restarted");

/// Says which generation was used, and whether it is a new one.
pub(super) fn of_generation(mut response: Response, generation: u64, restarted: bool) -> Response {
    let headers = response.headers_mut();
    headers.insert(SANDBOX_GENERATION, generation.into());
    let restarted = if restarted { "true" } else { "false" };
    headers.insert(SANDBOX_RESTARTED, HeaderValue::from_static(restarted));
    response
}

/// The answer with what was done in a sandbox.
pub(super) fn answer<T: Serialize>(status: StatusCode, done: &InSandbox<T>) -> Response {
    of_generation(json_response(status, &done.value), done.generation, done.restarted)
}

pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    request: Json<SandboxRequest>,
) -> Result<Response> {
    let created = app.service.create_sandbox(&caller.subject, request.value).await?;
    let CreatedSandbox { sandbox, is_new, restarted } = created;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = json_response(status, &sandbox);
    set(response.headers_mut(), LOCATION, &format!("/v1/sandboxes/{}", sandbox.id));
    Ok(of_generation(response, sandbox.generation, restarted))
}

pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<SandboxListParams>,
) -> Result<Response> {
    let SandboxListParams { metadata, name, status, cursor, limit } = params;
    let limit = limit.map(PageSize::items);
    let query = SandboxQuery { metadata, name, status, limit, cursor };
    Ok(json_response(StatusCode::OK, &app.service.sandboxes(&caller.subject, query).await?))
}

pub(super) async fn get(at: At) -> Result<Response> {
    let sandbox = at.app.service.sandbox(&at.subject, &at.sandbox.id).await?;
    Ok(json_response(StatusCode::OK, &sandbox))
}

pub(super) async fn delete(at: At) -> Result<Response> {
    at.app.service.delete_sandbox(&at.subject, &at.sandbox.id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn extend(at: At, request: Json<ExtendRequest>) -> Result<Response> {
    let ttl = Duration::from_millis(request.value.ttl_ms);
    let sandbox = at.app.service.extend_sandbox(&at.subject, &at.sandbox.id, ttl).await?;
    Ok(json_response(StatusCode::OK, &sandbox))
}

pub(super) async fn patch(at: At, request: Json<SandboxPatch>) -> Result<Response> {
    let service = &at.app.service;
    let sandbox = service.patch_sandbox(&at.subject, &at.sandbox.id, request.value).await?;
    Ok(json_response(StatusCode::OK, &sandbox))
}

pub(super) async fn pause(at: At) -> Result<Response> {
    let sandbox = at.app.service.pause_sandbox(&at.subject, &at.sandbox).await?;
    Ok(json_response(StatusCode::OK, &sandbox))
}

pub(super) async fn resume(at: At) -> Result<Response> {
    let sandbox = at.app.service.resume_sandbox(&at.subject, &at.sandbox).await?;
    Ok(json_response(StatusCode::OK, &sandbox))
}

pub(super) async fn operate(at: At, request: Json<OperationRequest>) -> Result<Response> {
    let done = at.app.service.perform(&at.subject, &at.sandbox, request.value).await?;
    Ok(answer(StatusCode::OK, &done))
}

pub(super) async fn read(at: At, FilePath(path): FilePath, headers: HeaderMap) -> Result<Response> {
    refuse_etags(&headers)?;
    let file = Read::new(&*path);
    let InSandbox { value, generation, restarted } =
        at.app.service.read_file(&at.subject, &at.sandbox, file).await?;
    // A content that breaks off is cut off: it has no end that could be taken for its own.
    let mut response = Body::from_stream(value).into_response();
    as_attachment(response.headers_mut(), &path);
    Ok(of_generation(response, generation, restarted))
}

pub(super) async fn write(at: At, FilePath(path): FilePath, request: Request) -> Result<Response> {
    let mode = write_mode(request.headers())?;
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let bytes = length.and_then(|length| length.parse().ok());
    let file = Write { mode, ..Write::new(&*path) };
    let writer = at.app.service.write_file(&at.subject, &at.sandbox, file, bytes).await;
    let written = async { copy(request.into_body(), writer?).await }.await;
    let written = written.map_err(|refusal| match refusal.problem().kind {
        ProblemKind::Sandbox(ErrorKind::AlreadyExists) if mode == WriteMode::CreateNew => {
            Refusal::new(ProblemKind::PreconditionFailed, "the file exists")
        }
        _ => refusal,
    })?;
    let InSandbox { value, generation, restarted } = written;
    Ok(answer(StatusCode::OK, &InSandbox { value: Published(value), generation, restarted }))
}

/// Writes what arrives. Dropped without its end, nothing is written.
async fn copy(content: Body, mut writer: KeptWriter) -> Result<InSandbox<WriteReply>> {
    let mut content = content.into_data_stream();
    while let Some(piece) = content.next().await {
        let piece = piece.map_err(|error| unreadable(&error))?;
        writer = writer.write(&piece).await?;
    }
    Ok(writer.finish().await?)
}

pub(super) async fn run(
    at: At<SubmitInParams>,
    key: Option<IdempotencyKey>,
    request: Json<ExecutionRequest>,
) -> Result<Response> {
    let At { app, subject, sandbox, params } = at;
    submit(&app, &subject, request, key, Some(sandbox), params.wait.into()).await
}
