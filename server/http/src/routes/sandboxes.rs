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
use sandbox_api::service::{
    ExecutionRequest, ExtendRequest, SandboxPatch, SandboxRef, SandboxRequest,
};
use sandbox_api::{ErrorKind, ProblemKind};
use sandbox_service::{CreatedSandbox, InSandbox, KeptWriter, SandboxQuery};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio_util::io::ReaderStream;

use super::content::{as_attachment, refuse_etags, write_mode};
use super::executions::submit;
use super::params::{GenerationParams, PageSize, SandboxListParams, SubmitInParams};
use crate::access::Caller;
use crate::app::App;
use crate::refusal::{Refusal, Result};
use crate::request::{FilePath, Id, IdempotencyKey, Json, Params, unreadable};
use crate::response::json_response;

/// What is read of a file at a time.
const PIECE_BYTES: usize = 64 << 10;

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

pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    request: Json<SandboxRequest>,
) -> Result<Response> {
    let created = app.service().create_sandbox(&caller.subject, request.value).await?;
    let CreatedSandbox { sandbox, is_new, restarted } = created;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = json_response(status, &sandbox);
    let location = HeaderValue::from_str(&format!("/v1/sandboxes/{}", sandbox.id))
        .map_err(|_| Refusal::internal("the id of a sandbox is not valid in a URL"))?;
    response.headers_mut().insert(LOCATION, location);
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
    Ok(json_response(StatusCode::OK, &app.service().sandboxes(&caller.subject, query).await?))
}

pub(super) async fn get(State(app): State<App>, caller: Caller, Id(id): Id) -> Result<Response> {
    Ok(json_response(StatusCode::OK, &app.service().sandbox(&caller.subject, &id).await?))
}

pub(super) async fn delete(State(app): State<App>, caller: Caller, Id(id): Id) -> Result<Response> {
    app.service().delete_sandbox(&caller.subject, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn extend(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    request: Json<ExtendRequest>,
) -> Result<Response> {
    let ttl = Duration::from_millis(request.value.ttl_ms);
    let sandbox = app.service().extend_sandbox(&caller.subject, &id, ttl).await?;
    Ok(json_response(StatusCode::OK, &sandbox))
}

pub(super) async fn patch(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    request: Json<SandboxPatch>,
) -> Result<Response> {
    let sandbox = app.service().patch_sandbox(&caller.subject, &id, request.value).await?;
    Ok(json_response(StatusCode::OK, &sandbox))
}

pub(super) async fn pause(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    Params(GenerationParams { generation }): Params<GenerationParams>,
) -> Result<Response> {
    let sandbox = SandboxRef { id, generation };
    let sandbox = app.service().pause_sandbox(&caller.subject, &sandbox).await?;
    Ok(json_response(StatusCode::OK, &sandbox))
}

pub(super) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    Params(GenerationParams { generation }): Params<GenerationParams>,
) -> Result<Response> {
    let sandbox = SandboxRef { id, generation };
    let sandbox = app.service().resume_sandbox(&caller.subject, &sandbox).await?;
    Ok(json_response(StatusCode::OK, &sandbox))
}

pub(super) async fn operate(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    Params(GenerationParams { generation }): Params<GenerationParams>,
    request: Json<OperationRequest>,
) -> Result<Response> {
    let sandbox = SandboxRef { id, generation };
    let used = app.service().perform(&caller.subject, &sandbox, request.value).await?;
    let response = json_response(StatusCode::OK, &used.value);
    Ok(of_generation(response, used.generation, used.restarted))
}

pub(super) async fn read(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    Params(GenerationParams { generation }): Params<GenerationParams>,
    FilePath(path): FilePath,
    headers: HeaderMap,
) -> Result<Response> {
    refuse_etags(&headers)?;
    let sandbox = SandboxRef { id, generation };
    let used = app.service().read_file(&caller.subject, &sandbox, Read::new(&*path)).await?;
    // A content that breaks off is cut off: it has no end that could be taken for its own.
    let content = ReaderStream::with_capacity(used.value, PIECE_BYTES);
    let mut response = Body::from_stream(content).into_response();
    as_attachment(response.headers_mut(), &path);
    Ok(of_generation(response, used.generation, used.restarted))
}

pub(super) async fn write(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    Params(GenerationParams { generation }): Params<GenerationParams>,
    FilePath(path): FilePath,
    request: Request,
) -> Result<Response> {
    let mode = write_mode(request.headers())?;
    let sandbox = SandboxRef { id, generation };
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let bytes = length.and_then(|length| length.parse().ok());
    let file = Write { mode, ..Write::new(&*path) };
    let writer = app.service().write_file(&caller.subject, &sandbox, file, bytes).await;
    let written = match writer {
        Ok(writer) => copy(request.into_body(), writer).await,
        Err(error) => Err(error.into()),
    };
    let used = written.map_err(|refusal| match refusal.problem().kind {
        ProblemKind::Sandbox(ErrorKind::AlreadyExists) if mode == WriteMode::CreateNew => {
            Refusal::new(ProblemKind::PreconditionFailed, "the file exists")
        }
        _ => refusal,
    })?;
    let response = json_response(StatusCode::OK, &Published(used.value));
    Ok(of_generation(response, used.generation, used.restarted))
}

/// Writes what arrives. Dropped without its end, nothing is written.
async fn copy(content: Body, mut writer: KeptWriter) -> Result<InSandbox<WriteReply>> {
    let mut content = content.into_data_stream();
    while let Some(piece) = content.next().await {
        let piece = piece.map_err(|error| unreadable(&error))?;
        writer.make_room(piece.len()).await?;
        if let Err(error) = writer.write_all(&piece).await {
            // Why is known at the end.
            writer.finish().await?;
            return Err(Refusal::new(ErrorKind::AgentLost.into(), error.to_string()));
        }
    }
    Ok(writer.finish().await?)
}

pub(super) async fn run(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    key: Option<IdempotencyKey>,
    Params(SubmitInParams { wait, generation }): Params<SubmitInParams>,
    request: Json<ExecutionRequest>,
) -> Result<Response> {
    let sandbox = Some(SandboxRef { id, generation });
    submit(&app, &caller.subject, request, key, sandbox, wait.into()).await
}

pub(super) fn example_request() -> Value {
    json!({
        "name": "notebook",
        "spec": { "limits": { "memory_bytes": 268_435_456 } },
        "ttl_ms": 3_600_000,
        "idle_ms": 600_000,
    })
}

pub(super) fn example_extend() -> Value {
    json!({ "ttl_ms": 3_600_000 })
}

pub(super) fn example_patch() -> Value {
    json!({ "ttl_ms": 600_000, "metadata": { "owner": "ci" } })
}

pub(super) fn example_operation() -> Value {
    json!({ "operation": "write", "path": "notes.txt", "content": "hello\n" })
}
