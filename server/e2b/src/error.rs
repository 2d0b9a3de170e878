//! Errors as E2B's API has them: `{"code": 404, "message": "…"}`.

use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use sandbox_api::ProblemKind;
use sandbox_service::ServiceError;
use serde_json::json;

/// What the SDKs obey before they look at the status.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// An answer that refuses a request, or says why it failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Error {
    status: StatusCode,
    message: String,
    retry_after: Option<Duration>,
}

impl Error {
    /// An error with this status. The message has no path of the host and no secret.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after: None }
    }

    /// What a caller asks for is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// What this server does not offer.
    pub fn not_offered(what: &str) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, format!("this server does not offer {what}"))
    }

    /// No sandbox of the caller has this id.
    pub fn no_sandbox(id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("sandbox {id:?} was not found"))
    }

    /// The same where another attempt may succeed after this time.
    pub fn retry_after(mut self, time: Option<Duration>) -> Self {
        self.retry_after = time;
        self
    }

    /// Its status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

impl From<ServiceError> for Error {
    fn from(error: ServiceError) -> Self {
        let problem = error.problem();
        let status = match problem.kind {
            // A sandbox whose time is over is as one that never was.
            ProblemKind::Gone => StatusCode::NOT_FOUND,
            // E2B's API has one status for requests that are wrong.
            _ if problem.status == 422 => StatusCode::BAD_REQUEST,
            _ => StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        };
        let at = problem.errors.iter().map(|it| format!("; {}: {}", it.pointer, it.detail));
        let hint = problem.hint.iter().map(|hint| format!(" ({hint})"));
        let message = std::iter::once(problem.detail.clone()).chain(at).chain(hint).collect();
        let retry_after = error.retry_after();
        Self { status, message, retry_after }
    }
}

impl From<QueryRejection> for Error {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl From<PathRejection> for Error {
    fn from(rejection: PathRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let Self { status, message, retry_after } = self;
        let body = axum::Json(json!({ "code": status.as_u16(), "message": message }));
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        match retry_after {
            Some(time) => {
                // Never 0: a client would come back at once.
                let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
                headers.insert(RETRY_AFTER, seconds.max(1).into());
            }
            // By its status alone an SDK would send it three times more.
            None => _ = headers.insert(SHOULD_RETRY, HeaderValue::from_static("false")),
        }
        response
    }
}
