//! Processes of kept sandboxes.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use sandbox_api::service::{SandboxRef, Subject};
use sandbox_api::{
    ProcessRequest, ProcessState, ProcessView, ReadFrom, ReadMode, SignalRequest, TerminalSize,
};
use sandbox_service::{InSandbox, ProcessFilter};
use serde_json::{Value, json};

use super::events::{last_event, stream};
use super::params::{GenerationParams, ProcessEventParams, ProcessListParams, SubmitInParams};
use super::sandboxes::of_generation;
use crate::access::Caller;
use crate::app::App;
use crate::refusal::{Refusal, Result};
use crate::request::{Id, IdempotencyKey, Json, Params, ProcessId, unreadable};
use crate::response::json_response;

/// How much of an input is sent at a time.
const PIECE_BYTES: usize = 64 << 10;

pub(super) async fn start(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    key: Option<IdempotencyKey>,
    Params(GenerationParams { generation }): Params<GenerationParams>,
    request: Json<ProcessRequest>,
) -> Result<Response> {
    let sandbox = SandboxRef { id, generation };
    let (service, key) = (app.service(), key.map(|key| key.0));
    let started = service.start_process(&caller.subject, &sandbox, request.value, key).await?;
    let location = format!("/v1/sandboxes/{}/processes/{}", sandbox.id, started.value.id);
    let location = HeaderValue::from_str(&location)
        .map_err(|_| Refusal::internal("the id of a sandbox is not valid in a URL"))?;
    let mut response = answer(StatusCode::CREATED, &started);
    response.headers_mut().insert(LOCATION, location);
    Ok(response)
}

pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    Params(params): Params<ProcessListParams>,
) -> Result<Response> {
    let ProcessListParams { generation, state, tag } = params;
    let (sandbox, filter) = (SandboxRef { id, generation }, ProcessFilter { state, tag });
    let listed = app.service().processes(&caller.subject, &sandbox, filter).await?;
    let response = json_response(StatusCode::OK, &listed.value);
    Ok(of_generation(response, listed.generation, listed.restarted))
}

pub(super) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    ProcessId(process): ProcessId,
    Params(SubmitInParams { wait, generation }): Params<SubmitInParams>,
) -> Result<Response> {
    let sandbox = SandboxRef { id, generation };
    let (service, subject) = (app.service(), &caller.subject);
    let found = tokio::select! {
        found = service.process(subject, &sandbox, process, wait.into()) => found?,
        () = app.stop().cancelled() => {
            service.process(subject, &sandbox, process, Duration::ZERO).await?
        }
    };
    Ok(answer(StatusCode::OK, &found))
}

pub(super) async fn stop(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    ProcessId(process): ProcessId,
    Params(SubmitInParams { wait, generation }): Params<SubmitInParams>,
) -> Result<Response> {
    let sandbox = SandboxRef { id, generation };
    let (service, subject) = (app.service(), &caller.subject);
    let stopped = tokio::select! {
        stopped = service.stop_process(subject, &sandbox, process, wait.into()) => stopped?,
        () = app.stop().cancelled() => {
            service.process(subject, &sandbox, process, Duration::ZERO).await?
        }
    };
    let status = match stopped.value.state {
        ProcessState::Ended => StatusCode::OK,
        ProcessState::Running | ProcessState::Left => StatusCode::ACCEPTED,
    };
    Ok(answer(status, &stopped))
}

pub(super) async fn events(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    ProcessId(process): ProcessId,
    Params(params): Params<ProcessEventParams>,
    headers: HeaderMap,
) -> Result<Response> {
    let from = last_event(&headers)?.map_or(params.after.into(), ReadFrom::After);
    let mode = params.mode.unwrap_or(ReadMode::Lossy);
    let sandbox = SandboxRef { id, generation: params.generation };
    let (service, subject) = (app.service(), &caller.subject);
    let events = service.process_events(subject, &sandbox, process, from, mode).await?;
    Ok(stream(&app, events))
}

pub(super) async fn write_stdin(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    ProcessId(process): ProcessId,
    Params(GenerationParams { generation }): Params<GenerationParams>,
    request: Request,
) -> Result<Response> {
    let (service, subject) = (app.service(), &caller.subject);
    let sandbox = SandboxRef { id, generation };
    let found = service.process(subject, &sandbox, process, Duration::ZERO).await?;
    // What comes later is for this process, not for one of its number in another generation.
    let sandbox = SandboxRef { generation: Some(found.generation), ..sandbox };
    write(&app, subject, &sandbox, process, request.into_body()).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Sends what arrives to a process, in its order.
async fn write(
    app: &App,
    subject: &Subject,
    sandbox: &SandboxRef,
    process: u32,
    content: Body,
) -> Result<()> {
    let mut content = content.into_data_stream();
    let mut taken = 0;
    while let Some(piece) = content.next().await {
        let mut piece = piece.map_err(|error| unreadable(&error))?;
        while !piece.is_empty() {
            let next = piece.split_to(piece.len().min(PIECE_BYTES));
            let bytes = next.len();
            let written = app.service().write_process_stdin(subject, sandbox, process, next).await;
            written.map_err(|error| {
                let problem = error.problem();
                let detail = format!("{}; it has taken {taken} bytes", problem.detail);
                Refusal::new(problem.kind, detail)
                    .hint(problem.hint.clone())
                    .retry_after(error.retry_after())
            })?;
            taken += bytes;
        }
    }
    Ok(())
}

pub(super) async fn close_stdin(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    ProcessId(process): ProcessId,
    Params(GenerationParams { generation }): Params<GenerationParams>,
) -> Result<Response> {
    let sandbox = SandboxRef { id, generation };
    app.service().close_process_stdin(&caller.subject, &sandbox, process).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn resize(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    ProcessId(process): ProcessId,
    Params(GenerationParams { generation }): Params<GenerationParams>,
    request: Json<TerminalSize>,
) -> Result<Response> {
    let sandbox = SandboxRef { id, generation };
    app.service().resize_process(&caller.subject, &sandbox, process, request.value).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn signal(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    ProcessId(process): ProcessId,
    Params(GenerationParams { generation }): Params<GenerationParams>,
    request: Json<SignalRequest>,
) -> Result<Response> {
    let sandbox = SandboxRef { id, generation };
    app.service().signal_process(&caller.subject, &sandbox, process, request.value).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn answer(status: StatusCode, process: &InSandbox<ProcessView>) -> Response {
    let response = json_response(status, &process.value);
    of_generation(response, process.generation, process.restarted)
}

pub(super) fn example_request() -> Value {
    json!({ "command": { "shell": "python3 -m http.server 8080" }, "tag": "web" })
}

pub(super) fn example_size() -> Value {
    json!({ "cols": 120, "rows": 40 })
}

pub(super) fn example_signal() -> Value {
    json!({ "signal": "TERM", "to": "group" })
}
