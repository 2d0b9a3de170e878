//! What handlers read of a request. One rule for what is wrong with it: 400 for what is no JSON, 415
//! for another type, 422 for anything that was read and is not valid, in the body as in parameters.

pub(crate) mod id;
pub(crate) mod json;
mod json_size;
pub(crate) mod trace;

use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, OptionalFromRequestParts, Query, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Uri};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use sandbox_api::{ProblemKind, decode_percent};
use serde::de::DeserializeOwned;

use crate::access::Caller;
use crate::app::App;
use crate::memory::Held;
use crate::refusal::{Refusal, Result};
use crate::serve::body::{BodyError, body_error};

pub(crate) use self::json_size::JsonSize;

/// The memory of a request's body: of what has arrived of it, and of the values in it.
#[derive(Debug, Clone)]
pub(crate) struct MeteredBody {
    pub held: Held,
    /// Why the rest of it is not read.
    pub refused: Arc<OnceLock<Refusal>>,
}

impl MeteredBody {
    /// The body, whose pieces wait for their memory. Anything but a form is read as JSON.
    pub fn meter(&self, body: Body, is_json: bool) -> Body {
        let start = (body.into_data_stream(), JsonSize::default(), self.clone());
        Body::from_stream(stream::try_unfold(
            start,
            move |(mut pieces, mut json, metered)| async move {
                let Some(piece) = pieces.next().await.transpose()? else { return Ok(None) };
                let bytes = if is_json { json.add(&piece) } else { Ok(piece.len() as u64) };
                let added = async { metered.held.add(bytes?).await };
                if let Err(refusal) = added.await {
                    _ = metered.refused.set(refusal.clone());
                    return Err(axum::Error::new(refusal));
                }
                Ok(Some((piece, (pieces, json, metered))))
            },
        ))
    }
}

/// The length that a body is said to have.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>> {
    let Some(value) = headers.get(CONTENT_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    let malformed = || Refusal::new(ProblemKind::Malformed, "Content-Length is not a number");
    length.ok_or_else(malformed).map(Some)
}

pub(crate) fn too_large(limit: u64) -> Refusal {
    let detail = format!("the body is larger than {limit} bytes");
    Refusal::new(ProblemKind::TooLarge, detail)
        .hint(Some("upload large files to a sandbox one by one"))
}

/// The refusal of a body that could not be read.
pub(crate) fn unreadable(error: &(dyn std::error::Error + 'static)) -> Refusal {
    match body_error(error) {
        Some(BodyError::TooLarge { limit }) => too_large(limit),
        Some(error @ BodyError::TooSlow) => {
            Refusal::new(ProblemKind::RequestTimeout, error.to_string())
        }
        // It is not read.
        None => Refusal::new(ProblemKind::Malformed, "the body broke off"),
    }
}

/// The whole body.
pub(crate) async fn read_all(body: Body) -> Result<Bytes> {
    let mut body = body;
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreadable(&error))?;
        if let Some(data) = frame.data_ref() {
            all.extend_from_slice(data);
        }
    }
    Ok(all.freeze())
}

/// The media type without its parameters, in lower case.
#[must_use]
pub fn media_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    Some(text.split(';').next()?.trim().to_ascii_lowercase())
}

pub(crate) fn unsupported_type(expected: &str) -> Refusal {
    Refusal::new(ProblemKind::UnsupportedMediaType, format!("the body must be {expected}"))
        .hint(Some(format!("send Content-Type: {expected}")))
}

/// A JSON body.
pub(crate) struct Json<T> {
    pub value: T,
    /// Held while the value exists.
    pub _held: Option<MeteredBody>,
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        if media_type(request.headers()).as_deref() != Some("application/json") {
            return Err(unsupported_type("application/json"));
        }
        let held = request.extensions().get::<MeteredBody>().cloned();
        let body = read_all(request.into_body()).await?;
        Ok(Self { value: app.parsers.parse(body).await?, _held: held })
    }
}

/// The parameters of the query.
pub(crate) struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self> {
        let refuse = |error: axum::extract::rejection::QueryRejection| {
            // Its cause says which parameter, and what of it.
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let detail = cause.unwrap_or_else(|| error.to_string());
            // As Rust says it of a number.
            let detail =
                detail.replace("invalid digit found in string", "it is not a whole number from 0");
            let (name, what) = match detail.split_once(": ") {
                Some((name, what)) if !name.contains(' ') => (name.to_owned(), what.to_owned()),
                // It names the one that is there twice, or missing.
                _ => (detail.split('`').nth(1).unwrap_or("?").to_owned(), detail.clone()),
            };
            Refusal::new(ProblemKind::Invalid, format!("the query is not valid: {detail}"))
                .at(name, what)
        };
        Query::try_from_uri(&parts.uri).map(|Query(params)| Self(params)).map_err(refuse)
    }
}

/// Parameters of paths: how each is read, and the kind of object that is reported as missing if it cannot be an id.
macro_rules! in_path {
    ($($(#[$doc:meta])* $name:ident($kind:ty), $read:expr, $not_found:literal;)+) => {$(
        $(#[$doc])*
        pub(crate) struct $name(pub $kind);

        impl<S: Sync> FromRequestParts<S> for $name {
            type Rejection = Refusal;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
                let read = $read(&parts.uri).map(Self);
                read.ok_or_else(|| Refusal::new(ProblemKind::NotFound, $not_found))
            }
        }
    )+};
}

in_path! {
    /// The id of an execution or a sandbox.
    Id(String), id_in_path, "there is no such id";
    /// The number of a process.
    ProcessId(u32), number_in_path, "there is no such process";
    /// A port.
    Port(u16), port_in_path, "there is no such port";
    /// The bytes of a file's path: what follows the fourth segment of a route's path.
    FilePath(Vec<u8>), file_in_path, "there is no such file";
}

/// `/v1/executions/` and `/v1/sandboxes/`.
const SEGMENTS_BEFORE_ID: usize = 3;
/// `/v1/sandboxes/{id}/processes/`, and `/v1/sandboxes/{id}/ports/`.
const SEGMENTS_BEFORE_NUMBER: usize = 5;
/// `/v1/executions/{id}/files/`.
const SEGMENTS_BEFORE_FILE: usize = 4;

/// The id in a path, if it is one. Not by the router, which refuses the whole path where a file's name is not
/// UTF-8.
pub(crate) fn id_in_path(uri: &Uri) -> Option<String> {
    let id = uri.path().split('/').nth(SEGMENTS_BEFORE_ID).and_then(decode_percent);
    id.and_then(|id| String::from_utf8(id).ok()).filter(|id| !id.is_empty())
}

fn number_in_path<T: FromStr>(uri: &Uri) -> Option<T> {
    uri.path().split('/').nth(SEGMENTS_BEFORE_NUMBER)?.parse().ok()
}

fn port_in_path(uri: &Uri) -> Option<u16> {
    number_in_path(uri).filter(|&port| port > 0)
}

/// Decoded here: a name need not be UTF-8.
fn file_in_path(uri: &Uri) -> Option<Vec<u8>> {
    let rest = uri.path().splitn(SEGMENTS_BEFORE_FILE + 2, '/').last();
    rest.and_then(decode_percent).filter(|path| !path.is_empty() && !path.contains(&0))
}

impl FromRequestParts<App> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller
            .ok_or_else(|| Refusal::internal("a route without authentication asks for its caller"))
    }
}

/// The header of a request that may be repeated.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The header with the number of the last event that a client has.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The key by which a repeated request is known.
pub(crate) struct IdempotencyKey(pub sandbox_service::IdempotencyKey);

impl OptionalFromRequestParts<App> for IdempotencyKey {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Option<Self>> {
        let mut values = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let key = sandbox_service::IdempotencyKey::new(value.to_str().unwrap_or_default());
        let (Ok(key), None) = (key, values.next()) else {
            let detail = "a key has 1 to 255 visible characters";
            return Err(Refusal::new(ProblemKind::Invalid, detail).at("Idempotency-Key", detail));
        };
        Ok(Some(Self(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_a_file_is_bytes() {
        let decode = |text| decode_percent(text);
        assert_eq!(decode("a/b%20c%ff").unwrap(), b"a/b c\xff");
        for wrong in ["%", "%f", "%fg", "a%"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
