//! Answers that refuse a request: Problem Details, always as `application/problem+json`.

use std::fmt;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use sandbox_api::{Failure, Problem, ProblemKind};
use sandbox_service::ServiceError;

use crate::request::id::instance;

/// The content type of problems.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// The most bytes of a detail and of a pointer.
const MAX_DETAIL_BYTES: usize = 1000;

/// Why a request is refused or failed.
#[derive(Debug, Clone)]
pub struct Refusal(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    problem: Problem,
    headers: Vec<(HeaderName, HeaderValue)>,
    reason: Option<Reason>,
}

/// Details of a refusal for the audit only, in the extensions of its answer.
#[derive(Debug, Clone)]
pub(crate) struct Reason(pub String);

/// What handlers return.
pub(crate) type Result<T, E = Refusal> = std::result::Result<T, E>;

impl Refusal {
    /// A refusal of this kind. The detail has no path of the host and no secret.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Problem::new(kind, cut(detail)).into()
    }

    /// An internal error: logged, and not the caller's fault.
    pub fn internal(detail: &str) -> Self {
        tracing::error!(detail, "internal error");
        Self::new(ProblemKind::Internal, detail)
    }

    /// The same with a suggested next step, if there is one.
    pub fn hint(mut self, hint: Option<impl Into<String>>) -> Self {
        self.0.problem = self.0.problem.hint(hint);
        self
    }

    /// The same with the place of what is invalid.
    pub fn at(mut self, pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        self.0.problem = self.0.problem.at(cut(pointer), cut(detail));
        self
    }

    /// The same with the time after which it may succeed, if that is known.
    pub fn retry_after(self, time: Option<Duration>) -> Self {
        let Some(time) = time else { return self };
        // Never 0: a client would come back at once.
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        self.header(RETRY_AFTER, seconds.max(1))
    }

    /// The same with one more header, if this can be one.
    pub(crate) fn header(mut self, name: HeaderName, value: impl TryInto<HeaderValue>) -> Self {
        self.0.headers.extend(value.try_into().ok().map(|value| (name, value)));
        self
    }

    /// The same with why, for the audit only.
    pub(crate) fn because(mut self, reason: String) -> Self {
        self.0.reason = Some(Reason(reason));
        self
    }

    /// The problem.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.0.problem
    }
}

/// What a caller has written may be in it, as long as it likes.
fn cut(text: impl Into<String>) -> String {
    let mut text = text.into();
    if text.len() > MAX_DETAIL_BYTES {
        let end = (0..=MAX_DETAIL_BYTES).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or_default());
        text.push('…');
    }
    text
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0.problem.detail)
    }
}

impl std::error::Error for Refusal {}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self(Box::new(Inner { problem, headers: Vec::new(), reason: None }))
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::new(failure.kind.into(), failure.message).hint(failure.hint)
    }
}

impl From<ServiceError> for Refusal {
    fn from(error: ServiceError) -> Self {
        let Problem { kind, detail, hint, errors, .. } = error.problem().clone();
        let refusal = Self::new(kind, detail).hint(hint).retry_after(error.retry_after());
        errors.into_iter().fold(refusal, |refusal, it| refusal.at(it.pointer, it.detail))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Inner { mut problem, headers, reason } = *self.0;
        problem.instance = instance();
        let status =
            StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Its members are texts and numbers, which JSON can represent.
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (status, body).into_response();
        let all = response.headers_mut();
        all.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        all.extend(headers);
        response.extensions_mut().insert(problem.kind);
        if let Some(reason) = reason {
            response.extensions_mut().insert(reason);
        }
        response
    }
}
