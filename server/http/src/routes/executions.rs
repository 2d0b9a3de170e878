//! Executions: to create, look at, wait for, cancel and list them.

use std::time::Duration;

use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sandbox_api::service::{
    AcceptedExecution, ExecutionRequest, ExecutionState, SandboxRef, Subject,
};
use sandbox_service::{ExecutionQuery, ServiceError, StoredExecution};
use serde_json::{Value, json};

use super::form;
use super::params::{ListParams, PageSize, WaitParams};
use crate::access::{Caller, Scope, lacks};
use crate::app::App;
use crate::config::ResourceMetadata;
use crate::refusal::Result;
use crate::request::{Id, IdempotencyKey, Json, Params, media_type, unsupported_type};
use crate::response::{AcceptedResponse, json_response, json_text};

/// In place of a subject.
const ALL_SUBJECTS: &str = "*";

fn execution_answer(status: StatusCode, execution: StoredExecution) -> Response {
    let StoredExecution { summary, document, .. } = execution;
    json_text(status, summary.to_json_with(document))
}

pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    key: Option<IdempotencyKey>,
    Params(params): Params<WaitParams>,
    request: Request,
) -> Result<Response> {
    let execution = match media_type(request.headers()).as_deref() {
        Some("application/json") => Json::<ExecutionRequest>::from_request(request, &app).await?,
        Some("multipart/form-data") => form::read(request, &app).await?,
        _ => return Err(unsupported_type("application/json")),
    };
    submit(&app, &caller.subject, execution, key, None, params.wait.into()).await
}

/// Accepts an execution, and waits for its end up to this long.
pub(super) async fn submit(
    app: &App,
    subject: &Subject,
    request: Json<ExecutionRequest>,
    key: Option<IdempotencyKey>,
    sandbox: Option<SandboxRef>,
    wait: Duration,
) -> Result<Response> {
    let Json { value, _held } = request;
    let (service, key) = (&app.service, key.map(|key| key.0));
    let id = match wait.is_zero() {
        true => service.submit(subject, value, sandbox, key).await?.id,
        false => service.submit_waited(subject, value, sandbox, key).await?.id,
    };
    // The request is stored, or with the service: its memory is counted there.
    drop(_held);
    // The key may be that of an ended execution. An accepted execution is not refused any more,
    // even if its record cannot be read: a client without a key would run it again.
    let execution = wait_for(app, subject, &id, wait).await.ok();
    let status = execution.as_ref().map_or(ExecutionState::Queued, |it| it.summary.status);
    let accepted = AcceptedResponse(AcceptedExecution { id, status });
    Ok(match execution {
        Some(execution) if status.ended().is_some() && !wait.is_zero() => {
            let mut response = execution_answer(StatusCode::OK, execution);
            accepted.locate(response.headers_mut());
            response.extensions_mut().insert(accepted);
            response
        }
        _ => accepted.into_response(),
    })
}

/// The execution at its end, or as it is when the wait is over or the server stops.
async fn wait_for(
    app: &App,
    subject: &Subject,
    id: &str,
    wait: Duration,
) -> Result<StoredExecution> {
    let service = &app.service;
    let execution = tokio::select! {
        execution = service.wait(subject, id, wait) => execution,
        () = app.stop.cancelled() => service.wait(subject, id, Duration::ZERO).await,
    };
    Ok(execution?)
}

pub(super) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id,
    Params(params): Params<WaitParams>,
) -> Result<Response> {
    let execution = wait_for(&app, &caller.subject, &id, params.wait.into()).await?;
    Ok(execution_answer(StatusCode::OK, execution))
}

pub(super) async fn cancel(State(app): State<App>, caller: Caller, Id(id): Id) -> Result<Response> {
    let execution = app.service.cancel(&caller.subject, &id).await?;
    Ok(execution_answer(StatusCode::OK, execution))
}

pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Result<Response> {
    let ListParams { status, kind, sandbox, image, since, until, subject, cursor, limit } = params;
    let cursor = cursor.map(|cursor| cursor.parse()).transpose();
    let cursor = cursor.map_err(|_| ServiceError::invalid("cursor", "invalid cursor"))?;
    let limit = PageSize::of(limit);
    let query = ExecutionQuery { status, kind, sandbox, image, since, until, cursor, limit };
    let list = match subject {
        None => app.service.list(&caller.subject, query).await?,
        Some(_) if !caller.may(Scope::Admin) => {
            let metadata = app.config.resource.as_ref().map(ResourceMetadata::metadata_url);
            return Err(lacks(Scope::Admin, metadata.as_deref()));
        }
        Some(name) => {
            let invalid = |_| ServiceError::invalid("subject", "it is neither a subject nor `*`");
            let subject = (name != ALL_SUBJECTS).then(|| Subject::new(name).map_err(invalid));
            app.service.list_of(&caller.subject, subject.transpose()?, query).await?
        }
    };
    Ok(json_response(StatusCode::OK, &list))
}

pub(super) fn example_request() -> Value {
    json!({
        "script": "print(args.name)\nreturn { rows = 3 }",
        "args": { "name": "report" },
        "limits": { "timeout_ms": 5000 },
        "metadata": { "step": 7 },
    })
}
