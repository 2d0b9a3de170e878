//! Responses in JSON, and their headers.

use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use sandbox_api::service::AcceptedExecution;
use serde::Serialize;

use crate::refusal::Refusal;

/// Sets a header, if this text can be one.
pub(crate) fn set(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

/// A JSON response.
pub(crate) fn json_response(status: StatusCode, value: &impl Serialize) -> Response {
    json_text(status, serde_json::to_string(value))
}

/// The same of what is written already.
pub(crate) fn json_text(status: StatusCode, json: serde_json::Result<String>) -> Response {
    let Ok(body) = json else {
        return Refusal::internal("an answer cannot be written as JSON").into_response();
    };
    (status, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// That an execution was accepted. A response with its result has this in its extensions, for the case
/// that there is no memory for that.
#[derive(Clone)]
pub(crate) struct AcceptedResponse(pub AcceptedExecution);

impl AcceptedResponse {
    /// Says where the execution is.
    pub fn locate(&self, headers: &mut HeaderMap) {
        set(headers, LOCATION, &format!("/v1/executions/{}", self.0.id));
    }
}

impl IntoResponse for AcceptedResponse {
    fn into_response(self) -> Response {
        let mut response = json_response(StatusCode::ACCEPTED, &self.0);
        self.locate(response.headers_mut());
        response
    }
}
