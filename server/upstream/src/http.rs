//! A server that is a URL: streamable HTTP over the connection that `--server` has. Redirects are not
//! followed: headers may be secret.

use std::collections::HashMap;
use std::future::ready;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderMap};
use hyper::http::{HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorData, JsonRpcMessage, ServerJsonRpcMessage,
};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sandbox_api::causes;
use sandbox_client::{Connection, ServerAddress, whole};
use sse_stream::{Sse, SseStream};
use tokio_util::sync::CancellationToken;

use crate::child::MAX_MESSAGE;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
/// How long the end of a session may take.
const DELETE_TIMEOUT: Duration = Duration::from_secs(2);

type Error = StreamableHttpError<io::Error>;

/// Requests to one server.
#[derive(Clone)]
pub(crate) struct HttpClient {
    server: Arc<ServerAddress>,
    path: Arc<str>,
    /// A connection that serves no request.
    kept: Arc<Mutex<Option<Connection>>>,
    too_long: CancellationToken,
}

impl HttpClient {
    /// For a URL that was checked.
    pub fn new(url: &str, too_long: CancellationToken) -> io::Result<Self> {
        let uri: hyper::Uri = url.parse().map_err(io::Error::other)?;
        let origin = uri.scheme_str().zip(uri.authority()).ok_or(io::ErrorKind::InvalidInput)?;
        let server = format!("{}://{}", origin.0, origin.1).parse().map_err(io::Error::other)?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).into();
        Ok(Self { server: Arc::new(server), path, kept: Arc::default(), too_long })
    }

    /// Sends a request. Only one that was not sent at all is sent again, over another connection.
    async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(Response<Incoming>, Connection), Error> {
        let request = || {
            let mut request = Request::new(whole(body.clone()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = self.path.parse().unwrap_or_default();
            *request.headers_mut() = headers.clone();
            if let Ok(host) = HeaderValue::from_str(self.server.authority()) {
                request.headers_mut().insert(HOST, host);
            }
            request
        };
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut connection) = kept.filter(Connection::is_open) {
            match connection.send(request()).await {
                Ok(response) => return Ok((response, connection)),
                Err(error) if error.is_canceled() || error.is_closed() => {}
                Err(error) => return Err(lost(error)),
            }
        }
        let mut connection = Connection::open(&self.server, None).await.map_err(lost)?;
        let response = connection.send(request()).await.map_err(lost)?;
        Ok((response, connection))
    }

    /// A body, at most as long as a message may be.
    async fn read(&self, response: Response<Incoming>) -> Result<Bytes, Error> {
        let body = Limited::new(response.into_body(), MAX_MESSAGE).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| match error.is::<LengthLimitError>() {
            true => {
                self.too_long.cancel();
                StreamableHttpError::ResponseBodyTooLarge { max_size: MAX_MESSAGE }
            }
            false => StreamableHttpError::Client(io::Error::other(error)),
        })
    }

    /// The events of a body, at most as long together as a message may be; then the connection is kept.
    fn events(
        &self,
        response: Response<Incoming>,
        connection: Connection,
    ) -> BoxStream<'static, Result<Sse, SseError>> {
        let too_long = self.too_long.clone();
        let pieces = Limited::new(response.into_body(), MAX_MESSAGE).into_data_stream();
        let pieces = pieces.map_err(move |error| {
            if error.is::<LengthLimitError>() {
                too_long.cancel();
            }
            io::Error::other(error)
        });
        let client = self.clone();
        let end = stream::once(async move { client.keep(connection) });
        SseStream::from_bytes_stream(pieces).chain(end.filter_map(|()| ready(None))).boxed()
    }

    fn keep(&self, connection: Connection) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }
}

/// With its causes, which the type does not show.
fn lost(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    StreamableHttpError::Client(io::Error::other(causes(&error)))
}

/// The headers of a request.
fn headers(
    custom: HashMap<HeaderName, HeaderValue>,
    session: Option<Arc<str>>,
    last_event: Option<String>,
) -> Result<HeaderMap, Error> {
    let mut headers: HeaderMap = custom.into_iter().collect();
    let mut add = |name, value: Option<&str>| {
        let value = value.map(HeaderValue::from_str).transpose().map_err(lost)?;
        Ok::<_, Error>(value.map(|value| headers.insert(name, value)))
    };
    add(SESSION, session.as_deref())?;
    add(LAST_EVENT, last_event.as_deref())?;
    add(ACCEPT, Some("application/json, text/event-stream"))?;
    Ok(headers)
}

fn has_type(response: &Response<Incoming>, expected: &str) -> bool {
    let found = response.headers().get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let found = found.and_then(|it| it.split(';').next()).unwrap_or_default();
    found.trim().eq_ignore_ascii_case(expected)
}

/// A response is not what it should be.
fn refusal(status: StatusCode) -> Error {
    StreamableHttpError::UnexpectedServerResponse(status.to_string().into())
}

impl StreamableHttpClient for HttpClient {
    type Error = io::Error;

    async fn post_message(
        &self,
        _uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let was_in_session = session_id.is_some();
        let mut headers = headers(custom_headers, session_id, None)?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        let body = serde_json::to_vec(&message).map_err(lost)?;
        let (response, connection) = self.send(Method::POST, headers, body.into()).await?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && was_in_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Err(refusal(status));
        }
        let session = response.headers().get(SESSION).and_then(|it| it.to_str().ok());
        let session = session.map(str::to_owned);
        if status.is_success() && has_type(&response, EVENTS) {
            let events = self.events(response, connection);
            return Ok(StreamableHttpPostResponse::Sse(events, session));
        }
        let body = self.read(response).await?;
        self.keep(connection);
        let JsonRpcMessage::Request(request) = &message else {
            let accepted = Ok(StreamableHttpPostResponse::Accepted);
            return if status.is_success() { accepted } else { Err(refusal(status)) };
        };
        let answer = serde_json::from_slice::<ServerJsonRpcMessage>(&body);
        if status.is_success() {
            let answer = answer.map_err(lost)?;
            return Ok(StreamableHttpPostResponse::Json(answer, session));
        }
        let error = match answer {
            Ok(JsonRpcMessage::Error(error)) => error.error,
            // A server of the revisions before: the handshake of those follows.
            _ if matches!(request.request, ClientRequest::DiscoverRequest(_)) => {
                ErrorData::invalid_request(status.to_string(), None)
            }
            _ => return Err(refusal(status)),
        };
        // A server that refuses what it cannot read does not know its id.
        let error = ServerJsonRpcMessage::error(error, Some(request.id.clone()));
        Ok(StreamableHttpPostResponse::Json(error, session))
    }

    async fn delete_session(
        &self,
        _uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Error> {
        let headers = headers(custom_headers, Some(session_id), None)?;
        let deleted = self.send(Method::DELETE, headers, Bytes::new());
        tokio::time::timeout(DELETE_TIMEOUT, deleted).await.map_err(lost)?.map(drop)
    }

    async fn get_stream(
        &self,
        _uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Error> {
        let headers = headers(custom_headers, session_id, last_event_id)?;
        let (response, connection) = self.send(Method::GET, headers, Bytes::new()).await?;
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => Err(StreamableHttpError::ServerDoesNotSupportSse),
            status if status.is_success() && has_type(&response, EVENTS) => {
                Ok(self.events(response, connection))
            }
            status => Err(refusal(status)),
        }
    }
}
