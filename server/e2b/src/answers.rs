//! What E2B's proxy in front of sandboxes answers, and what browsers want of every answer.

use axum::Json;
use axum::body::Body;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

/// What E2B's proxy answers where there is no such sandbox, or not any more: its SDKs look for these words.
pub(crate) fn not_found(id: &str) -> Response {
    let message = "The sandbox was not found";
    refused(StatusCode::BAD_GATEWAY, json!({ "sandboxId": id, "message": message, "code": 502 }))
}

/// The same where nothing listens.
pub(crate) fn closed(id: &str, port: u16) -> Response {
    let message = "The sandbox is running but port is not open";
    let body = json!({ "sandboxId": id, "message": message, "port": port, "code": 502 });
    refused(StatusCode::BAD_GATEWAY, body)
}

pub(crate) fn refused(status: StatusCode, body: Value) -> Response {
    (status, Json(body)).into_response()
}

/// Pages of every origin may use it: a token is what counts, and none is sent by a browser itself.
pub(crate) fn with_cors(mut response: Response<Body>) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
        (ACCESS_CONTROL_ALLOW_HEADERS, "*, Authorization"),
        (ACCESS_CONTROL_EXPOSE_HEADERS, "*"),
        (ACCESS_CONTROL_MAX_AGE, "600"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
