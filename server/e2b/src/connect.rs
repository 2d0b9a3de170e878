//! Connect's JSON codec, unary and streaming: requests are not compressed, and nothing is sent that way.
//!
//! A unary call is a body of JSON, and its error an HTTP status with a code. A stream is 200 and
//! [envelopes](envelope), the last of which says how it ended.

pub(crate) mod envelope;
pub(crate) mod json;

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _};
use sandbox_api::{ErrorKind, Failure, ProblemKind};
use sandbox_http::{HeldMemory, media_type};
use sandbox_service::ServiceError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::envelope::{Decoder, EnvelopeError, MAX_MESSAGE};
use crate::body::{IDLE, Unread, hold, whole};

const UNARY: &str = "application/json";
const STREAM: &str = "application/connect+json";
/// The longest time of a client, as Connect writes it: ten digits of milliseconds.
const MAX_TIMEOUT_MS: u64 = 9_999_999_999;
/// How often a stream without other data says that it lives, unless the client says how often.
const KEEPALIVE: Duration = Duration::from_secs(90);
/// The least of these.
const SHORTEST_KEEPALIVE: Duration = Duration::from_secs(1);

/// Why a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Code {
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
}

impl Code {
    const fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition => StatusCode::BAD_REQUEST,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists | Self::Aborted => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal | Self::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// An error of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ConnectError {
    code: Code,
    message: String,
}

impl ConnectError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// The sandbox was killed. Newer clients then ask whether it runs; older ones show the sentence as it is.
    pub(crate) fn killed() -> Self {
        Self::new(Code::Unavailable, "the sandbox was killed or reached its end of life")
    }

    /// The time that a call may last has passed.
    pub(crate) fn too_late() -> Self {
        Self::new(Code::DeadlineExceeded, "the timeout of the call has passed")
    }

    pub(crate) fn with_code(self, code: Code) -> Self {
        Self { code, ..self }
    }

    /// The same, after these words.
    pub(crate) fn preceded_by(self, words: &str) -> Self {
        Self { message: format!("{words}: {}", self.message), ..self }
    }

    /// A client sent what is not this kind of call.
    fn media_type(expected: &'static str) -> Response {
        let refused = Self::invalid(format!("the content type of this call is {expected}"));
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, axum::Json(refused)).into_response()
    }
}

impl From<Failure> for ConnectError {
    /// A file operation failed, or a program was not executed.
    fn from(failure: Failure) -> Self {
        let code = code_of(failure.kind);
        let hint = failure.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
        Self::new(code, format!("{}{hint}", failure.message))
    }
}

const fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        // Not resource_exhausted: an SDK calls that a rate limit.
        ErrorKind::NotEmpty
        | ErrorKind::Symlink
        | ErrorKind::TooLarge
        | ErrorKind::WriteLimit
        | ErrorKind::TooManyFiles
        | ErrorKind::TooManyHandles
        | ErrorKind::DiskFull => Code::FailedPrecondition,
        ErrorKind::PermissionDenied
        | ErrorKind::NotAllowed
        | ErrorKind::Protected
        | ErrorKind::ReadOnly
        | ErrorKind::Policy => Code::PermissionDenied,
        ErrorKind::IsDirectory
        | ErrorKind::NotADirectory
        | ErrorKind::PathEscape
        | ErrorKind::InvalidPath
        | ErrorKind::SpecialFile
        | ErrorKind::InvalidRequest => Code::InvalidArgument,
        ErrorKind::Timeout => Code::DeadlineExceeded,
        ErrorKind::Busy => Code::Aborted,
        ErrorKind::AgentLost => Code::Unavailable,
        _ => Code::Internal,
    }
}

impl From<ServiceError> for ConnectError {
    fn from(error: ServiceError) -> Self {
        let code = match error.problem().kind {
            ProblemKind::Sandbox(kind) => code_of(kind),
            ProblemKind::NotFound | ProblemKind::ProcessEnded => Code::NotFound,
            // As what is in front of a sandbox that is not there says it.
            ProblemKind::Gone | ProblemKind::Unavailable => Code::Unavailable,
            ProblemKind::Policy => Code::PermissionDenied,
            ProblemKind::QuotaExceeded | ProblemKind::RateLimited | ProblemKind::Full => {
                Code::ResourceExhausted
            }
            ProblemKind::Invalid => Code::InvalidArgument,
            ProblemKind::Conflict | ProblemKind::TooLarge => Code::FailedPrecondition,
            ProblemKind::StdinFull => Code::ResourceExhausted,
            _ => Code::Internal,
        };
        Self::from(error.failure()).with_code(code)
    }
}

impl From<EnvelopeError> for ConnectError {
    fn from(error: EnvelopeError) -> Self {
        let code = match error {
            EnvelopeError::Compressed => Code::Unimplemented,
            EnvelopeError::TooLarge(_) => Code::ResourceExhausted,
            EnvelopeError::Flags(_) | EnvelopeError::CutOff => Code::InvalidArgument,
        };
        Self::new(code, error.to_string())
    }
}

impl From<Unread> for ConnectError {
    fn from(error: Unread) -> Self {
        match error {
            Unread::Stopped => Self::too_late(),
            Unread::TooLarge(_) | Unread::NoMemory(_) => {
                Self::new(Code::ResourceExhausted, error.to_string())
            }
        }
    }
}

impl IntoResponse for ConnectError {
    fn into_response(self) -> Response {
        (self.code.status(), axum::Json(&self)).into_response()
    }
}

/// Answers a unary call.
pub(crate) async fn unary<Q, A, F>(request: Request, answer: impl FnOnce(Q) -> F) -> Response
where
    Q: DeserializeOwned,
    A: Serialize,
    F: Future<Output = Result<A, ConnectError>>,
{
    if media_type(request.headers()).as_deref() != Some(UNARY) {
        return ConnectError::media_type(UNARY);
    }
    let answered = async {
        refuse_compressed(request.headers(), CONTENT_ENCODING.as_str())?;
        let whole = whole(request, MAX_MESSAGE).await?;
        answer(parse(&whole.bytes)?).await
    };
    answered.await.map(axum::Json).into_response()
}

/// The messages of a stream to a client.
pub(crate) type Messages = BoxStream<'static, Result<Bytes, ConnectError>>;

/// Answers a call that has one message of the client and a stream of the server.
pub(crate) async fn server_stream<Q, F>(
    request: Request,
    answer: impl FnOnce(Q, Bounds) -> F,
) -> Response
where
    Q: DeserializeOwned,
    F: Future<Output = Result<Messages, ConnectError>>,
{
    if media_type(request.headers()).as_deref() != Some(STREAM) {
        return ConnectError::media_type(STREAM);
    }
    let answered = async {
        let bounds = Bounds::of(request.headers())?;
        let mut incoming = Incoming::new(request)?;
        let first = incoming.next().await?;
        let first = first.ok_or_else(|| ConnectError::invalid("a stream without a message"))?;
        answer(first, bounds).await
    };
    streamed(answered.await.unwrap_or_else(|error| stream::once(async { Err(error) }).boxed()))
}

/// Answers a call that has a stream of the client and one message of the server.
pub(crate) async fn client_stream<A, F>(
    request: Request,
    answer: impl FnOnce(Incoming) -> F,
) -> Response
where
    A: Serialize,
    F: Future<Output = Result<A, ConnectError>>,
{
    if media_type(request.headers()).as_deref() != Some(STREAM) {
        return ConnectError::media_type(STREAM);
    }
    let message = async { to_json(&answer(Incoming::new(request)?).await?) }.await;
    streamed(stream::once(async { message }).boxed())
}

/// A message of JSON.
pub(crate) fn to_json(message: &impl Serialize) -> Result<Bytes, ConnectError> {
    let failed = |_| ConnectError::new(Code::Internal, "an answer cannot be written");
    serde_json::to_vec(message).map(Into::into).map_err(failed)
}

/// What a client asks of a stream's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// How long it may last, if it says so, and when that is over.
    pub timeout: Option<Duration>,
    deadline: Option<Instant>,
    /// After how long without a message it gets one all the same.
    pub keepalive: Duration,
}

impl Bounds {
    fn of(headers: &HeaderMap) -> Result<Self, ConnectError> {
        let number = |name: &'static str| {
            let Some(value) = headers.get(name) else { return Ok(None) };
            let number = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
            let invalid = || ConnectError::invalid(format!("{name} is not a number"));
            number.map(Some).ok_or_else(invalid)
        };
        let timeout = number("connect-timeout-ms")?.filter(|&ms| ms > 0 && ms <= MAX_TIMEOUT_MS);
        let keepalive = number("keepalive-ping-interval")?.map(Duration::from_secs);
        let timeout = timeout.map(Duration::from_millis);
        Ok(Self {
            timeout,
            deadline: timeout.map(|timeout| Instant::now() + timeout),
            keepalive: keepalive.unwrap_or(KEEPALIVE).max(SHORTEST_KEEPALIVE).min(KEEPALIVE),
        })
    }
}

/// A stream until its deadline or `stop`, with a message of its own where it is quiet for too long. How much it has
/// to say does not matter.
pub(crate) fn bounded(
    messages: Messages,
    bounds: Bounds,
    stop: CancellationToken,
    keepalive: &'static [u8],
) -> Messages {
    let bounded = stream::unfold(Some((messages, stop)), move |it| async move {
        let (mut messages, stop) = it?;
        let is_late = bounds.deadline.is_some_and(|at| at <= Instant::now());
        let ping_at = Instant::now() + bounds.keepalive;
        let late = async {
            match bounds.deadline {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let message = tokio::select! {
            biased;
            () = std::future::ready(()), if is_late => Err(ConnectError::too_late()),
            () = stop.cancelled() => {
                Err(ConnectError::new(Code::Unavailable, "the server is being shut down"))
            }
            message = messages.next() => message?,
            () = late => Err(ConnectError::too_late()),
            () = sleep_until(ping_at) => Ok(Bytes::from_static(keepalive)),
        };
        let rest = message.is_ok().then_some((messages, stop));
        Some((message, rest))
    });
    bounded.boxed()
}

/// What a client streams.
pub(crate) struct Incoming {
    body: BodyDataStream,
    /// The memory of what has arrived, the message that was taken last included.
    held: Option<HeldMemory>,
    decoder: Decoder,
    has_begun: bool,
}

impl Incoming {
    fn new(request: Request) -> Result<Self, ConnectError> {
        refuse_compressed(request.headers(), "connect-content-encoding")?;
        refuse_compressed(request.headers(), CONTENT_ENCODING.as_str())?;
        let held = request.extensions().get().cloned();
        let body = request.into_body().into_data_stream();
        Ok(Self { body, held, decoder: Decoder::default(), has_begun: false })
    }

    /// The next message; `None` at the end. The first one is there in time.
    pub(crate) async fn next<Q: DeserializeOwned>(&mut self) -> Result<Option<Q>, ConnectError> {
        if std::mem::replace(&mut self.has_begun, true) {
            return self.read().await;
        }
        timeout(IDLE, self.read()).await.unwrap_or_else(|_| Err(ConnectError::too_late()))
    }

    async fn read<Q: DeserializeOwned>(&mut self) -> Result<Option<Q>, ConnectError> {
        let held = self.held.clone();
        if let Some(held) = &held {
            held.release();
        }
        hold(held.as_ref(), self.decoder.len()).await?;
        loop {
            if let Some(message) = self.decoder.next()? {
                return parse(&message).map(Some);
            }
            let Some(piece) = self.body.next().await else {
                return self.decoder.finish().map(|()| None).map_err(Into::into);
            };
            let piece = piece.map_err(|_| EnvelopeError::CutOff)?;
            hold(held.as_ref(), piece.len()).await?;
            self.decoder.push(&piece);
        }
    }
}

fn parse<Q: DeserializeOwned>(json: &[u8]) -> Result<Q, ConnectError> {
    // An empty message has all of its defaults.
    let json = if json.is_empty() { b"{}" } else { json };
    serde_json::from_slice(json).map_err(|error| ConnectError::invalid(error.to_string()))
}

fn refuse_compressed(headers: &HeaderMap, name: &str) -> Result<(), ConnectError> {
    let mut encodings = headers.get_all(name).iter();
    match encodings.all(|it| it.as_bytes().eq_ignore_ascii_case(b"identity")) {
        true => Ok(()),
        false => Err(ConnectError::new(Code::Unimplemented, "requests are not compressed here")),
    }
}

/// Sends the messages and how they ended.
fn streamed(messages: Messages) -> Response {
    let sealed = stream::unfold(Some(messages), |messages| async {
        let mut messages = messages?;
        let (piece, rest) = match messages.next().await {
            Some(Ok(json)) => (envelope::message(&json), Some(messages)),
            Some(Err(error)) => {
                let last = json!({ "error": error });
                (envelope::end(last.to_string().as_bytes()), None)
            }
            None => (envelope::end(b"{}"), None),
        };
        Some((Ok::<_, Infallible>(piece), rest))
    });
    let mut response = Body::from_stream(sealed).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(STREAM));
    headers.insert("connect-accept-encoding", HeaderValue::from_static("identity"));
    // What is sent is sent at once, also by a proxy in between.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A message now, and then others.
pub(crate) fn after(first: Bytes, rest: Messages) -> Messages {
    stream::once(async { Ok(first) }.boxed()).chain(rest).boxed()
}

#[cfg(test)]
pub(crate) mod tests {
    use axum::http::header::HeaderName;

    use super::*;

    /// The messages of a stream, and how it ended.
    pub(crate) async fn messages(
        response: Response,
    ) -> (Vec<serde_json::Value>, serde_json::Value) {
        assert_eq!(response.status(), StatusCode::OK);
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let (mut rest, mut found) = (&body[..], Vec::new());
        loop {
            let (head, more) = rest.split_at(5);
            let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
            let json = serde_json::from_slice(&more[..length]).unwrap();
            rest = &more[length..];
            if head[0] == 2 {
                assert!(rest.is_empty());
                return (found, json);
            }
            found.push(json);
        }
    }

    fn request(media_type: &str, name: &str, value: &str, body: impl Into<Body>) -> Request {
        let request = Request::post("/").header(CONTENT_TYPE, media_type).header(name, value);
        request.body(body.into()).unwrap()
    }

    #[derive(Debug, Default, serde::Deserialize)]
    #[serde(default)]
    struct Text {
        text: String,
    }

    #[tokio::test]
    async fn a_unary_call_answers_with_a_message_or_a_code() {
        let call = async |request| {
            let response = unary(request, |Text { text }: Text| async move {
                match &*text {
                    "" => Err(ConnectError::new(Code::NotFound, "no text")),
                    _ => Ok(json!({ "text": text })),
                }
            });
            let response = response.await;
            let status = response.status().as_u16();
            let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
            (status, String::from_utf8(body.to_vec()).unwrap())
        };
        let post = |body: &'static str| {
            request("application/json; charset=utf-8", "content-encoding", "identity", body)
        };
        assert_eq!(call(post(r#"{"text":"a"}"#)).await, (200, r#"{"text":"a"}"#.to_owned()));
        let no_text = r#"{"code":"not_found","message":"no text"}"#;
        assert_eq!(call(post("")).await, (404, no_text.to_owned()));
        assert_eq!(call(post("{")).await.0, 400);
        let proto = request("application/proto", "a", "b", "");
        let (status, body) = call(proto).await;
        let is_said = body.starts_with(r#"{"code":"invalid_argument","message":"the content type"#);
        assert!(status == 415 && is_said, "{status} {body}");
        let gzip = request("application/json", "content-encoding", "gzip", "");
        assert_eq!(call(gzip).await.0, 501);
        let large = request("application/json", "a", "b", vec![b' '; MAX_MESSAGE + 1]);
        assert_eq!(call(large).await.0, 429);
    }

    #[tokio::test]
    async fn a_stream_ends_with_how_it_ended() {
        let call = async |request| {
            let response = server_stream(request, |Text { text }: Text, _| async move {
                match &*text {
                    "" => Err(ConnectError::invalid("no text")),
                    _ => Ok(stream::iter([Ok(Bytes::from_static(b"1")), to_json(&text)]).boxed()),
                }
            });
            messages(response.await).await
        };
        let post = |json: &[u8]| request(STREAM, "a", "b", envelope::message(json));
        let (found, end) = call(post(br#"{"text":"a"}"#)).await;
        assert_eq!((found, end), (vec![json!(1), json!("a")], json!({})));
        let (found, end) = call(post(b"{}")).await;
        assert_eq!(found, Vec::<serde_json::Value>::new());
        assert_eq!(end, json!({ "error": { "code": "invalid_argument", "message": "no text" } }));
        let (_, end) = call(request(STREAM, "connect-content-encoding", "gzip", "")).await;
        assert_eq!(end["error"]["code"], "unimplemented");
        let (_, end) = call(request(STREAM, "a", "b", "")).await;
        assert_eq!(end["error"]["code"], "invalid_argument");
    }

    #[test]
    fn the_time_of_a_stream_is_read_from_its_headers() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter();
            let headers = pairs.map(|&(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            Bounds::of(&headers.collect())
        };
        let none = Bounds { timeout: None, deadline: None, keepalive: KEEPALIVE };
        assert_eq!(of(&[]), Ok(none));
        assert_eq!(of(&[("connect-timeout-ms", "0")]), Ok(none));
        let both = [("connect-timeout-ms", "60000"), ("keepalive-ping-interval", "50")];
        let Bounds { timeout, deadline, keepalive } = of(&both).unwrap();
        assert_eq!(timeout, Some(Duration::from_millis(60_000)));
        assert!(deadline.is_some_and(|at| at > Instant::now()));
        assert_eq!(keepalive, Duration::from_secs(50));
        assert!(of(&[("connect-timeout-ms", "soon")]).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_in_time_however_much_it_has_to_say() {
        let keepalive = Duration::from_secs(1);
        let at = |timeout: Option<Duration>| {
            let deadline = timeout.map(|timeout| Instant::now() + timeout);
            Bounds { timeout, deadline, keepalive }
        };
        let endless = stream::repeat_with(|| Ok(Bytes::from_static(b"y")));
        // Time goes on only where a task waits.
        let slow = endless.clone().then(async |it| {
            tokio::time::sleep(Duration::from_millis(1)).await;
            it
        });
        let stop = CancellationToken::new();
        let run = async |messages: Messages, bounds| {
            let all = bounded(messages, bounds, stop.clone(), b"ping").collect::<Vec<_>>().await;
            all.last().cloned().unwrap()
        };
        let late = Err(ConnectError::too_late());
        assert_eq!(run(slow.boxed(), at(Some(Duration::from_millis(50)))).await, late);
        assert_eq!(run(endless.clone().boxed(), at(Some(Duration::ZERO))).await, late);
        // What is quiet has keepalives.
        let quiet = bounded(stream::pending().boxed(), at(None), stop.clone(), b"ping");
        let pings: Vec<_> = quiet.take(2).collect().await;
        assert_eq!(pings, [Ok(Bytes::from_static(b"ping")), Ok(Bytes::from_static(b"ping"))]);
        stop.cancel();
        assert!(run(endless.boxed(), at(None)).await.is_err());
    }
}
