//! What handlers read of a request. One rule for what is wrong with it: 400 for what is no JSON, 415
//! for another type, 422 for anything that was read and is not valid, in the body as in parameters.

pub(crate) mod id;
mod json_size;
mod strict;

use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, OptionalFromRequestParts, Query, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use sandbox_api::ProblemKind;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::access::Caller;
use crate::app::App;
use crate::memory::{Held, UNCOUNTED};
use crate::refusal::{Refusal, Result};
use crate::serve::body::{BodyError, body_error};

pub(crate) use self::json_size::JsonSize;

/// How many large bodies are parsed at one time.
const PARSERS: usize = 2;

/// Parses large bodies: on threads for that, a few at one time.
#[derive(Debug, Clone)]
pub(crate) struct Parsers(Arc<Semaphore>);

impl Default for Parsers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(PARSERS)))
    }
}

impl Parsers {
    pub async fn parse<T: DeserializeOwned + Send + 'static>(&self, json: Bytes) -> Result<T> {
        if json.len() as u64 <= UNCOUNTED {
            return parse_json(&json);
        }
        let ended = |_| Refusal::internal("a large body could not be parsed");
        let turn = Arc::clone(&self.0).acquire_owned().await.map_err(|_| ended(()))?;
        let parse = move || {
            let parsed = parse_json(&json);
            drop((json, turn));
            parsed
        };
        spawn_blocking(parse).await.map_err(|_| ended(()))?
    }
}

/// The memory of a request's body: of what has arrived of it, and of the values in it.
#[derive(Debug, Clone)]
pub(crate) struct Metered {
    pub held: Held,
    /// Why the rest of it is not read.
    pub refused: Arc<OnceLock<Refusal>>,
}

impl Metered {
    /// The body, whose pieces wait for their memory. Whatever is no form is read as JSON.
    pub fn meter(&self, body: Body, is_json: bool) -> Body {
        let start = (body.into_data_stream(), JsonSize::default(), self.clone());
        Body::from_stream(stream::try_unfold(
            start,
            move |(mut pieces, mut json, metered)| async move {
                let Some(piece) = pieces.next().await.transpose()? else { return Ok(None) };
                let bytes = if is_json { json.add(&piece) } else { Ok(piece.len() as u64) };
                let added = match bytes {
                    Ok(bytes) => metered.held.add(bytes).await,
                    Err(refusal) => Err(refusal),
                };
                match added {
                    Ok(()) => Ok(Some((piece, (pieces, json, metered)))),
                    Err(refusal) => {
                        _ = metered.refused.set(refusal.clone());
                        Err(axum::Error::new(refusal))
                    }
                }
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
        // Nobody reads it.
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
pub(crate) fn media_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    Some(text.split(';').next()?.trim().to_ascii_lowercase())
}

pub(crate) fn unsupported_type(expected: &str) -> Refusal {
    Refusal::new(ProblemKind::UnsupportedMediaType, format!("the body is to be {expected}"))
        .hint(Some(format!("send Content-Type: {expected}")))
}

/// A JSON body.
pub(crate) struct Json<T> {
    pub value: T,
    /// Held while the value exists.
    pub _held: Option<Metered>,
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        if media_type(request.headers()).as_deref() != Some("application/json") {
            return Err(unsupported_type("application/json"));
        }
        let held = request.extensions().get::<Metered>().cloned();
        let body = read_all(request.into_body()).await?;
        Ok(Self { value: app.parsers().parse(body).await?, _held: held })
    }
}

/// Parses JSON; an error says where it is.
pub(crate) fn parse_json<T: DeserializeOwned>(json: &[u8]) -> Result<T> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut reader, &mut track);
    let parsed = strict::deserialize(tracked)
        .map_err(|error| serde_path_to_error::Error::new(track.path(), error));
    let error = match parsed {
        Ok(value) => match reader.end() {
            Ok(()) => return Ok(value),
            Err(error) => return Err(malformed(&error)),
        },
        Err(error) => error,
    };
    if !error.inner().is_data() {
        return Err(malformed(error.inner()));
    }
    // What follows the member may be no JSON: that comes first.
    if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(json) {
        return Err(malformed(&error));
    }
    let pointer = pointer(error.path());
    let what = without_position(&error.inner().to_string());
    let detail = match &*pointer {
        "#" => what.clone(),
        pointer => format!("{}: {what}", pointer.trim_start_matches("#/").replace('/', ".")),
    };
    Err(Refusal::new(ProblemKind::Invalid, detail).at(pointer, what))
}

fn malformed(error: &serde_json::Error) -> Refusal {
    Refusal::new(ProblemKind::Malformed, format!("the body is not JSON: {error}"))
}

/// The end of a message of `serde_json`, which means nothing where there are no lines.
fn without_position(message: &str) -> String {
    match message.rsplit_once(" at line ") {
        Some((what, position)) if position.contains("column") => what.to_owned(),
        _ => message.to_owned(),
    }
}

/// As a fragment: `#/limits/timeout_ms`.
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = "#".to_owned();
    for segment in path.iter() {
        let name = match segment {
            Segment::Seq { index } => index.to_string(),
            Segment::Map { key } => key.replace('~', "~0").replace('/', "~1"),
            Segment::Enum { variant } => variant.clone(),
            Segment::Unknown => continue,
        };
        pointer.push('/');
        pointer.push_str(&name);
    }
    pointer
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

/// A parameter of the path. One that no object can have is that of none: not found.
pub(crate) struct Id(pub String);

/// `/v1/executions/` and `/v1/sandboxes/`.
const SEGMENTS_BEFORE_ID: usize = 3;

impl<S: Sync> FromRequestParts<S> for Id {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        // Not by the router, which refuses the whole path where a file's name is not UTF-8.
        let id = parts.uri.path().split('/').nth(SEGMENTS_BEFORE_ID).and_then(decode_percent);
        let id = id.and_then(|id| String::from_utf8(id).ok()).filter(|id| !id.is_empty());
        id.map(Self).ok_or_else(|| Refusal::new(ProblemKind::NotFound, "there is no such id"))
    }
}

/// The bytes of a file's path: what follows the fourth segment of a route's path.
pub(crate) struct FilePath(pub Vec<u8>);

/// `/v1/executions/{id}/files/`.
const SEGMENTS_BEFORE_FILE: usize = 4;

impl<S: Sync> FromRequestParts<S> for FilePath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let invalid = || Refusal::new(ProblemKind::NotFound, "there is no such file");
        // Decoded here: a name need not be UTF-8.
        let rest = parts.uri.path().splitn(SEGMENTS_BEFORE_FILE + 2, '/').last();
        let path = rest.and_then(decode_percent).ok_or_else(invalid)?;
        if path.is_empty() || path.contains(&0) {
            return Err(invalid());
        }
        Ok(Self(path))
    }
}

fn decode_percent(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let [high, low, after @ ..] = rest else { return None };
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
        decoded.push(digit(high)? << 4 | digit(low)?);
        rest = after;
    }
    Some(decoded)
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
/// The most bytes of a key.
pub(crate) const MAX_KEY_BYTES: usize = 255;

/// The key by which a repeated request is known.
pub(crate) struct IdempotencyKey(pub String);

impl OptionalFromRequestParts<App> for IdempotencyKey {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Option<Self>> {
        let mut values = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let key = value.to_str().unwrap_or_default();
        let is_key = (1..=MAX_KEY_BYTES).contains(&key.len())
            && key.bytes().all(|byte| byte.is_ascii_graphic());
        if values.next().is_some() || !is_key {
            let detail = format!("a key has 1 to {MAX_KEY_BYTES} visible characters");
            return Err(Refusal::new(ProblemKind::Invalid, &detail).at("Idempotency-Key", detail));
        }
        Ok(Some(Self(key.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_api::service::ExecutionRequest;
    use std::future::{Future as _, poll_fn};
    use std::task::{Context, Poll};

    fn refused(json: &str) -> (u16, String, String) {
        let refusal = parse_json::<ExecutionRequest>(json.as_bytes()).unwrap_err();
        let problem = refusal.problem();
        let pointer = problem.errors.first().map(|it| it.pointer.clone()).unwrap_or_default();
        (problem.status, pointer, problem.detail.clone())
    }

    #[test]
    fn json_is_malformed_or_has_an_invalid_member() {
        for json in ["", "{", "{]", "{} {}", "nul", "\u{feff}{}", "{\"a\":1,}", "\"\\ud800"] {
            assert_eq!(refused(json).0, 400, "{json}");
        }
        let deep = format!("{{\"args\":{{\"a\":{}1{}}}}}", "[".repeat(200), "]".repeat(200));
        assert_eq!(refused(&deep).0, 400);
        for (json, pointer, part) in [
            ("[]", "#", "invalid type"),
            (r#"{"limits":[5]}"#, "#/limits", "limits: invalid type: sequence, expected an object"),
            (r#"{"command":{"program":"a","args":{}}}"#, "#/command/args", "invalid type: map"),
            ("null", "#", "invalid type"),
            (r#"{"scripts":"x"}"#, "#/scripts", "unknown field `scripts`"),
            (r#"{"limits":{"timeout":5}}"#, "#/limits/timeout", "unknown field `timeout`"),
            (
                r#"{"limits":{"timeout_ms":"5s"}}"#,
                "#/limits/timeout_ms",
                "limits.timeout_ms: invalid type",
            ),
            (r#"{"limits":{"timeout_ms":1.5}}"#, "#/limits/timeout_ms", "invalid type"),
            (r#"{"network":{"allow":[1]}}"#, "#/network/allow/0", "invalid type"),
            (r#"{"script":"a","script":"b"}"#, "#", "duplicate field `script`"),
        ] {
            let (status, at, detail) = refused(json);
            assert_eq!((status, &*at), (422, pointer), "{json}: {detail}");
            assert!(detail.contains(part) && !detail.contains("column"), "{json}: {detail}");
        }
    }

    #[test]
    fn whole_number_is_an_integer_however_it_is_written() {
        let json = br#"{"script":"a","limits":{"timeout_ms":5e3,"pids":32.0},"args":{"a":1.0}}"#;
        let request: ExecutionRequest = parse_json(json).unwrap();
        let written = serde_json::to_value(&request).unwrap();
        assert_eq!(written["limits"], serde_json::json!({ "timeout_ms": 5000, "pids": 32 }));
        // What is no integer stays as it is.
        assert!(written["args"]["a"].is_f64());
    }

    #[test]
    fn path_of_a_file_is_bytes() {
        let decode = |text| decode_percent(text);
        assert_eq!(decode("a/b%20c%ff").unwrap(), b"a/b c\xff");
        for wrong in ["%", "%f", "%fg", "a%"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }

    /// The thread that it was read on.
    #[derive(Debug)]
    struct ReadOn(std::thread::ThreadId);

    impl<'de> serde::Deserialize<'de> for ReadOn {
        fn deserialize<D: serde::Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
            serde::de::IgnoredAny::deserialize(json)?;
            Ok(Self(std::thread::current().id()))
        }
    }

    #[tokio::test]
    async fn large_body_is_parsed_on_a_thread_and_few_are_at_one_time() {
        let parsers = Parsers::default();
        let here = std::thread::current().id();
        let text = |bytes: usize| Bytes::from(format!("\"{}\"", "x".repeat(bytes)));
        assert_eq!(parsers.parse::<ReadOn>(text(100)).await.unwrap().0, here);
        let large = text(UNCOUNTED as usize);
        assert_ne!(parsers.parse::<ReadOn>(large.clone()).await.unwrap().0, here);
        let turns = Arc::clone(&parsers.0).acquire_many_owned(PARSERS as u32).await.unwrap();
        let mut waits = std::pin::pin!(parsers.parse::<ReadOn>(large));
        let is_pending =
            |context: &mut Context<'_>| Poll::Ready(waits.as_mut().poll(context).is_pending());
        assert!(poll_fn(is_pending).await);
        assert_eq!(parsers.parse::<ReadOn>(text(100)).await.unwrap().0, here);
        drop(turns);
        waits.await.unwrap();
    }
}
