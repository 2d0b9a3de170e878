//! Requests to a service: sent again where that is safe, with bounded waits and bodies.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use http_body_util::{BodyDataStream, BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
    USER_AGENT,
};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::address::ServerAddress;
use super::connection::{Connection, RequestBody, whole};
use super::error::{BoxedError, Error};
use super::token::Token;

/// How long a request is tried again while the service is away or full.
const RETRY_FOR: Duration = Duration::from_secs(60);
/// The waits between attempts grow from the one to the other.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// How long a service may take for a request, in addition to the wait that the request asks for.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a body may pause.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest body that is read whole: the document of an execution, with its log.
pub const MAX_BODY_BYTES: usize = 64 << 20;

/// The header that makes a submission safe to send again.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header by which events are resumed.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// A request.
#[derive(Debug, Clone)]
pub struct Call {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
    /// How long the service is asked to wait before it answers.
    wait: Duration,
}

impl Call {
    /// A request for a path, which is encoded, and has a query where it needs one.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        let (path, headers, body) = (path.into(), HeaderMap::new(), Bytes::new());
        Self { method, path, headers, body, wait: Duration::ZERO }
    }

    /// With this JSON as its body.
    pub fn json(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self
    }

    /// With a key by which the service knows that it is the same submission.
    pub fn idempotent(self, key: &str) -> Self {
        self.header(IDEMPOTENCY_KEY, key)
    }

    /// For events, after the one with this number.
    pub fn events_after(mut self, last: Option<&str>) -> Self {
        self.headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        match last {
            Some(last) => self.header(LAST_EVENT_ID, last),
            None => self,
        }
    }

    /// The service is asked to wait this long.
    pub fn waiting(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    pub(super) fn header(mut self, name: HeaderName, value: &str) -> Self {
        // Keys and numbers are ours or were in a header before.
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }

    /// Whether it may be sent twice.
    fn is_repeatable(&self) -> bool {
        self.method != Method::POST || self.headers.contains_key(IDEMPOTENCY_KEY)
    }
}

/// A response whose body was read.
#[derive(Debug)]
pub struct BufferedResponse {
    /// Its status: one of success, unless any was asked for.
    pub status: StatusCode,
    /// Its body.
    pub body: Bytes,
}

/// A response whose body is read as it comes.
#[derive(Debug)]
pub struct Stream {
    body: BodyDataStream<Incoming>,
    /// The body ends with it.
    _connection: Connection,
}

impl Stream {
    /// The next piece; `None` at the end of the body.
    ///
    /// # Errors
    ///
    /// If the connection is lost, or nothing comes for a long time.
    pub async fn next(&mut self) -> Result<Option<Bytes>, BoxedError> {
        let next = timeout(BODY_TIMEOUT, self.body.next()).await;
        Ok(next.map_err(|_| "no data for 60 s")?.transpose()?)
    }
}

/// Why an attempt failed.
enum AttemptError {
    /// It makes no sense to try again.
    Permanent(Error),
    /// It may succeed later: after this time, if the service said so.
    Transient(Error, Option<Duration>),
}

impl AttemptError {
    fn into_error(self) -> Error {
        match self {
            Self::Permanent(error) | Self::Transient(error, _) => error,
        }
    }
}

/// A service.
#[derive(Debug)]
pub struct Client {
    address: ServerAddress,
    token: Option<Token>,
    /// The certificates that are trusted, if not those of this machine.
    trusted: Option<Vec<CertificateDer<'static>>>,
    /// The connection of the last request, if it can serve another.
    idle: Mutex<Option<Connection>>,
    /// There has been a connection: a service that does not reply now is restarting.
    was_reached: AtomicBool,
    /// It has answered a request.
    was_answered: AtomicBool,
}

impl Client {
    /// A service that nothing was sent to yet. If there are certificates, no others are trusted.
    pub fn new(
        address: ServerAddress,
        token: Option<Token>,
        trusted: Option<Vec<CertificateDer<'static>>>,
    ) -> Self {
        let (was_reached, was_answered) = (AtomicBool::default(), AtomicBool::default());
        Self { address, token, trusted, idle: Mutex::default(), was_reached, was_answered }
    }

    /// Whether others can read what is sent there.
    pub fn is_exposed(&self) -> bool {
        self.address.is_exposed()
    }

    /// Whether there has been a connection: a request may have arrived.
    pub(super) fn was_reached(&self) -> bool {
        self.was_reached.load(Ordering::Relaxed)
    }

    /// Its address, for messages.
    pub fn server(&self) -> String {
        self.address.to_string()
    }

    /// Sends a request, and reads its response.
    ///
    /// # Errors
    ///
    /// [`Error`], after further attempts where the request may be sent again and that can help.
    pub async fn call(&self, call: &Call) -> Result<BufferedResponse, Error> {
        let until = Instant::now() + RETRY_FOR;
        loop {
            let (response, connection) = self.attempt(call, until).await?;
            match self.buffered(response, connection).await {
                Err(Error::Lost { source, .. })
                    if !source.is::<LengthLimitError>()
                        && call.is_repeatable()
                        && Instant::now() <= until =>
                {
                    sleep(jittered(BACKOFF[0])).await;
                }
                done => return done,
            }
        }
    }

    /// Sends a request once, and reads its response, with any status. The connection is kept.
    ///
    /// # Errors
    ///
    /// [`Error`] if there is no response.
    pub async fn call_once(&self, call: &Call) -> Result<BufferedResponse, Error> {
        let (response, connection) = self.send(call).await.map_err(AttemptError::into_error)?;
        self.buffered(response, connection).await
    }

    /// Reads a response. The connection is kept for the next request.
    async fn buffered(
        &self,
        response: Response<Incoming>,
        connection: Connection,
    ) -> Result<BufferedResponse, Error> {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect();
        let body = timeout(BODY_TIMEOUT, body).await.map_err(|_| self.no_response(BODY_TIMEOUT))?;
        let body = body.map_err(|error| self.lost(error))?.to_bytes();
        if connection.is_open() {
            *self.idle.lock().await = Some(connection);
        }
        Ok(BufferedResponse { status, body })
    }

    /// Sends a request whose response is read as it comes.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call), until the body begins.
    pub async fn stream(&self, call: &Call) -> Result<Stream, Error> {
        let (response, connection) = self.attempt(call, Instant::now() + RETRY_FOR).await?;
        let body = response.into_body().into_data_stream();
        Ok(Stream { body, _connection: connection })
    }

    /// Sends a request with this body, once, and reads its response.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub async fn upload(&self, call: &Call, body: RequestBody) -> Result<BufferedResponse, Error> {
        let mut connection = self.open().await.map_err(AttemptError::into_error)?;
        let within = RESPONSE_TIMEOUT + call.wait;
        let sent = timeout(within, connection.send(self.request(call, body))).await;
        let response = sent.map_err(|_| self.no_response(within))?;
        let response = response.map_err(|error| self.lost(error))?;
        match response.status().is_success() {
            true => self.buffered(response, connection).await,
            false => Err(self.refusal(response).await.into_error()),
        }
    }

    /// Sends a request once that asks for another protocol. If the service agrees: the head of its answer,
    /// and the connection, which speaks it from then on.
    ///
    /// # Errors
    ///
    /// If it does not agree.
    pub(super) async fn switch(&self, call: &Call) -> Result<(HeaderMap, Upgraded), Error> {
        let (response, connection) = self.send(call).await.map_err(AttemptError::into_error)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.refusal(response).await.into_error());
        }
        let headers = response.headers().clone();
        let upgraded = hyper::upgrade::on(response).await.map_err(|error| self.lost(error))?;
        // Its driver has handed it over.
        drop(connection);
        Ok((headers, upgraded))
    }

    /// Tries until there is a response of success, it makes no sense any more, or the time is up.
    async fn attempt(
        &self,
        call: &Call,
        until: Instant,
    ) -> Result<(Response<Incoming>, Connection), Error> {
        let mut backoff = BACKOFF[0];
        loop {
            let failed = match self.send(call).await {
                Ok((response, connection)) if response.status().is_success() => {
                    return Ok((response, connection));
                }
                Ok((response, _connection)) => self.refusal(response).await,
                Err(failed) => failed,
            };
            let (error, after) = match failed {
                AttemptError::Permanent(error) => return Err(error),
                AttemptError::Transient(error, _) if !call.is_repeatable() => return Err(error),
                AttemptError::Transient(error, after) => (error, after),
            };
            let pause = after.unwrap_or_else(|| jittered(backoff));
            if pause > until.saturating_duration_since(Instant::now()) {
                return Err(error);
            }
            sleep(pause).await;
            backoff = BACKOFF[1].min(2 * backoff);
        }
    }

    /// Sends it once; a kept connection that has ended meanwhile does not count.
    async fn send(&self, call: &Call) -> Result<(Response<Incoming>, Connection), AttemptError> {
        let kept = self.idle.lock().await.take().filter(Connection::is_open);
        let was_kept = kept.is_some();
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.open().await?,
        };
        let within = RESPONSE_TIMEOUT + call.wait;
        let until = Instant::now() + within;
        let request = || self.request(call, whole(call.body.clone()));
        let response = timeout_at(until, connection.send(request())).await;
        let response = response.map_err(|_| AttemptError::Permanent(self.no_response(within)))?;
        let answered = match response {
            Err(_) if was_kept && call.is_repeatable() => {
                connection = self.open().await?;
                let response = timeout_at(until, connection.send(request())).await;
                response.map_err(|_| AttemptError::Permanent(self.no_response(within)))?
            }
            response => response,
        };
        match answered {
            Ok(response) => {
                self.was_answered.store(true, Ordering::Relaxed);
                Ok((response, connection))
            }
            // An alert of TLS is no HTTP; what has answered before has not changed its protocol.
            Err(error) if error.is_parse() && !self.was_answered.load(Ordering::Relaxed) => {
                Err(AttemptError::Permanent(Error::other_protocol(&self.address)))
            }
            Err(error) => Err(AttemptError::Transient(self.lost(error), None)),
        }
    }

    async fn open(&self) -> Result<Connection, AttemptError> {
        match Connection::open(&self.address, self.trusted.as_deref()).await {
            Ok(connection) => {
                self.was_reached.store(true, Ordering::Relaxed);
                Ok(connection)
            }
            Err(error @ Error::OtherProtocol { .. }) => Err(AttemptError::Permanent(error)),
            Err(error) if self.was_reached() => Err(AttemptError::Transient(error, None)),
            Err(error) => Err(AttemptError::Permanent(error)),
        }
    }

    fn request(&self, call: &Call, body: RequestBody) -> Request<RequestBody> {
        let mut request = Request::new(body);
        *request.method_mut() = call.method.clone();
        let path = format!("{}{}", self.address.prefix(), call.path);
        // The callers have encoded the path.
        *request.uri_mut() = path.parse().unwrap_or_default();
        *request.headers_mut() = call.headers.clone();
        let headers = request.headers_mut();
        if let Ok(authority) = HeaderValue::from_str(self.address.authority()) {
            headers.insert(HOST, authority);
        }
        let agent = concat!("sandboxctl/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, token.header());
        }
        request
    }

    /// Why a response is not a success.
    async fn refusal(&self, response: Response<Incoming>) -> AttemptError {
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER);
        let after = after.and_then(|it| it.to_str().ok()).and_then(|it| it.trim().parse().ok());
        let after = after.map(Duration::from_secs);
        const MOST: usize = 64 << 10;
        let body = timeout(RESPONSE_TIMEOUT, Limited::new(response.into_body(), MOST).collect());
        let body = match body.await {
            Ok(Ok(body)) => body.to_bytes(),
            _ => Bytes::new(),
        };
        let error = Error::refused(&self.server(), status, &body);
        match status {
            StatusCode::SERVICE_UNAVAILABLE => AttemptError::Transient(error, after),
            // A rate, or the same request that is being accepted: its connection was lost. A quota that only
            // an end of something frees has no time.
            StatusCode::TOO_MANY_REQUESTS | StatusCode::CONFLICT if after.is_some() => {
                AttemptError::Transient(error, after)
            }
            _ => AttemptError::Permanent(error),
        }
    }

    fn lost(&self, source: impl Into<BoxedError>) -> Error {
        let was_answered = self.was_answered.load(Ordering::Relaxed);
        Error::Lost { server: self.server(), was_answered, source: source.into() }
    }

    fn no_response(&self, after: Duration) -> Error {
        Error::NoResponse { server: self.server(), after }
    }
}

/// Up to half more, so that many clients do not come back at once.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(());
    pause + pause.mul_f64(f64::from((random >> 56) as u8) / 512.0)
}
