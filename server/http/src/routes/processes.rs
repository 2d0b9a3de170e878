//! Processes of kept sandboxes.

use std::time::Duration;

use axum::extract::Request;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use futures_util::StreamExt as _;
use sandbox_api::service::SandboxRef;
use sandbox_api::{
    ProcessRequest, ProcessState, ProcessView, ReadFrom, ReadMode, SignalRequest, TerminalSize,
};
use sandbox_service::{InSandbox, ProcessFilter, ServiceError};

use super::events::{last_event, stream};
use super::params::{At, ProcessEventParams, ProcessListParams, SubmitInParams};
use super::sandboxes::answer;
use crate::refusal::{Refusal, Result};
use crate::request::{IdempotencyKey, Json, ProcessId, unreadable};
use crate::response::set;

/// How much of an input is sent at a time.
const PIECE_BYTES: usize = 64 << 10;

pub(super) async fn start(
    at: At,
    key: Option<IdempotencyKey>,
    request: Json<ProcessRequest>,
) -> Result<Response> {
    let (At { subject, sandbox, .. }, key) = (&at, key.map(|key| key.0));
    let started = at.app.service.start_process(subject, sandbox, request.value, key).await?;
    let location = format!("/v1/sandboxes/{}/processes/{}", sandbox.id, started.value.id);
    let mut response = answer(StatusCode::CREATED, &started);
    set(response.headers_mut(), LOCATION, &location);
    Ok(response)
}

pub(super) async fn list(at: At<ProcessListParams>) -> Result<Response> {
    let At { app, subject, sandbox, params: ProcessListParams { state, tag, .. } } = at;
    let filter = ProcessFilter { state, tag };
    let listed = app.service.processes(&subject, &sandbox, filter).await?;
    Ok(answer(StatusCode::OK, &listed))
}

pub(super) async fn get(at: At<SubmitInParams>, ProcessId(process): ProcessId) -> Result<Response> {
    let At { app, subject, sandbox, params } = &at;
    let waiting = app.service.process(subject, sandbox, process, params.wait.into());
    Ok(answer(StatusCode::OK, &unless_stopping(&at, process, waiting).await?))
}

pub(super) async fn stop(
    at: At<SubmitInParams>,
    ProcessId(process): ProcessId,
) -> Result<Response> {
    let At { app, subject, sandbox, params } = &at;
    let stopping = app.service.stop_process(subject, sandbox, process, params.wait.into());
    let stopped = unless_stopping(&at, process, stopping).await?;
    let status = match stopped.value.state {
        ProcessState::Ended => StatusCode::OK,
        ProcessState::Running | ProcessState::Left => StatusCode::ACCEPTED,
    };
    Ok(answer(status, &stopped))
}

/// What comes of this, or the process as it is when the server stops.
async fn unless_stopping<P>(
    At { app, subject, sandbox, .. }: &At<P>,
    process: u32,
    waiting: impl Future<Output = Result<InSandbox<ProcessView>, ServiceError>>,
) -> Result<InSandbox<ProcessView>, ServiceError> {
    tokio::select! {
        waited = waiting => waited,
        () = app.stop.cancelled() => {
            app.service.process(subject, sandbox, process, Duration::ZERO).await
        }
    }
}

pub(super) async fn events(
    at: At<ProcessEventParams>,
    ProcessId(process): ProcessId,
    headers: HeaderMap,
) -> Result<Response> {
    let At { app, subject, sandbox, params } = at;
    let from = last_event(&headers)?.map_or(params.after, ReadFrom::After);
    let mode = params.mode.unwrap_or(ReadMode::Lossy);
    let events = app.service.process_events(&subject, &sandbox, process, from, mode).await?;
    Ok(stream(&app, events))
}

pub(super) async fn write_stdin(
    At { app, subject, sandbox, .. }: At,
    ProcessId(process): ProcessId,
    request: Request,
) -> Result<StatusCode> {
    let found = app.service.process(&subject, &sandbox, process, Duration::ZERO).await?;
    // What comes later is for this process, not for one of its number in another generation.
    let sandbox = SandboxRef { generation: Some(found.generation), ..sandbox };
    let mut content = request.into_body().into_data_stream();
    let mut taken = 0;
    while let Some(piece) = content.next().await {
        let mut piece = piece.map_err(|error| unreadable(&error))?;
        while !piece.is_empty() {
            let next = piece.split_to(piece.len().min(PIECE_BYTES));
            let bytes = next.len();
            let written = app.service.write_process_stdin(&subject, &sandbox, process, next).await;
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
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn close_stdin(at: At, ProcessId(process): ProcessId) -> Result<StatusCode> {
    at.app.service.close_process_stdin(&at.subject, &at.sandbox, process).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn resize(
    at: At,
    ProcessId(process): ProcessId,
    request: Json<TerminalSize>,
) -> Result<StatusCode> {
    at.app.service.resize_process(&at.subject, &at.sandbox, process, request.value).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn signal(
    at: At,
    ProcessId(process): ProcessId,
    request: Json<SignalRequest>,
) -> Result<StatusCode> {
    at.app.service.signal_process(&at.subject, &at.sandbox, process, request.value).await?;
    Ok(StatusCode::NO_CONTENT)
}
