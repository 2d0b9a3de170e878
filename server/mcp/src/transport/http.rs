//! Any number of subjects over streamable HTTP. The owner of the router authenticates: each request
//! carries its [`Subject`] as an extension.

use std::collections::HashMap;
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use rmcp::ServerHandler;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use sandbox_api::service::Subject;
use sandbox_api::{Problem, ProblemKind, without_bom};
use sandbox_service::Service;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;
use tokio_util::sync::CancellationToken;

use crate::lock;
use crate::server::{McpServer, Shared, Source};
use crate::settings::Settings;
use crate::transport::answer::AnswerForm;
use crate::transport::lines::{MAX_MESSAGE_BYTES, error_of_too_long, message_of};
use crate::transport::sessions::{SUBJECT, Sessions, has_room_for_one};
use crate::workspaces::Workspaces;

/// The header with the id of a session, of revisions before 2026-07-28.
const SESSION: &str = "mcp-session-id";
/// The header with a request's revision, and the first one without sessions.
const REVISION: &str = "mcp-protocol-version";
const STATELESS: &str = "2026-07-28";
/// The type of a problem (RFC 9457).
const PROBLEM_JSON: &str = "application/problem+json";
/// The most requests in progress, streams and calls without a client among them.
const MAX_REQUESTS: usize = 1024;
/// The most that is read of why a request is refused.
const MAX_DETAIL_BYTES: usize = 4 << 10;
/// Larger messages are parsed on a blocking thread.
const LARGE_MESSAGE_BYTES: usize = 64 << 10;
/// After how long another attempt makes sense.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What an [`HttpServer`] is made of.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// The settings of every workspace.
    pub settings: Settings,
    /// The directory with an io dir for each subject; `None`: no files.
    pub io_dirs: Option<PathBuf>,
}

/// A server over HTTP for any number of subjects, each with files of its own.
#[derive(Clone)]
pub struct HttpServer {
    workspaces: Arc<Workspaces>,
    shared: Arc<Shared>,
    admission: Admission,
    stop: CancellationToken,
}

/// What decides whether a request is let in.
#[derive(Clone)]
struct Admission {
    sessions: Arc<Sessions>,
    requests: Arc<Requests>,
}

/// A request, as its problem has it (`instance`): an extension of the request.
#[derive(Debug, Clone)]
pub struct Instance(pub String);

tokio::task_local! {
    static INSTANCE: Option<Instance>;
}

/// How many requests of each subject are in progress.
#[derive(Debug, Default)]
struct Requests(Mutex<HashMap<Option<Subject>, usize>>);

/// A request in progress.
struct Permit {
    requests: Arc<Requests>,
    subject: Option<Subject>,
}

impl Requests {
    /// One more of a subject, if there is room.
    fn begin(self: &Arc<Self>, subject: Option<&Subject>) -> Option<Permit> {
        let (mut by_subject, subject) = (lock(&self.0), subject.cloned());
        let own = by_subject.get(&subject).copied().unwrap_or(0);
        if !has_room_for_one(own, by_subject.values().sum(), MAX_REQUESTS) {
            return None;
        }
        by_subject.insert(subject.clone(), own + 1);
        Some(Permit { requests: self.clone(), subject })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut by_subject = lock(&self.requests.0);
        if let Some(own) = by_subject.get_mut(&self.subject) {
            *own -= 1;
        }
        by_subject.retain(|_, own| *own > 0);
    }
}

impl HttpServer {
    /// A server whose sandboxes are those of this service.
    #[must_use]
    pub fn new(service: Service, options: HttpOptions) -> Self {
        let HttpOptions { settings, io_dirs } = options;
        let settings = Arc::new(settings);
        let shared = Arc::new(Shared::new(settings.clone(), io_dirs.is_some()));
        let sessions = Arc::new(Sessions::new(settings.timeout_ceiling));
        Self {
            workspaces: Arc::new(Workspaces::new(service, settings, io_dirs)),
            shared,
            admission: Admission { sessions, requests: Arc::default() },
            stop: CancellationToken::new(),
        }
    }

    /// The server's side of one connection.
    #[must_use]
    pub fn connection(&self) -> McpServer {
        McpServer::of(self.shared.clone(), Source::BySubject(self.workspaces.clone()))
    }

    /// Its route, `/mcp`. Each request needs its [`Subject`] as an extension, and its [`Instance`] if problems
    /// are to have it; the owner of the router checks `Host` and `Origin`.
    pub fn router(&self) -> Router {
        let server = self.clone();
        self.router_of(move || server.connection())
    }

    /// The same with another handler of the connections.
    pub fn router_of<H>(&self, handler: impl Fn() -> H + Send + Sync + 'static) -> Router
    where
        H: ServerHandler + Send + 'static,
    {
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_max_request_body_bytes(MAX_MESSAGE_BYTES)
            .with_cancellation_token(self.stop.clone());
        let sessions = self.admission.sessions.clone();
        let service = StreamableHttpService::new(move || Ok(handler()), sessions, config);
        Router::new()
            .route_service("/mcp", service)
            .layer(from_fn(in_its_form))
            .layer(from_fn_with_state(self.admission.clone(), admit))
            .layer(from_fn(answer_problems))
    }

    /// Ends all streams, cancels what is in progress, and waits until scripts and commands have ended.
    pub async fn close(&self) {
        self.stop.cancel();
        self.workspaces.close().await;
    }
}

/// Bounds what is in progress, and keeps sessions to their subjects.
async fn admit(State(admission): State<Admission>, mut request: Request, next: Next) -> Response {
    let Admission { sessions, requests } = admission;
    let subject = request.extensions().get::<Subject>().cloned();
    let Some(permit) = requests.begin(subject.as_ref()) else { return busy() };
    let is_post = request.method() == Method::POST;
    let (may_begin_one, session) = {
        let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        let session = header(SESSION).map(|id| sessions.enter(id, subject.as_ref()));
        (is_post && header(REVISION).is_none_or(|it| it < STATELESS), session)
    };
    let is_in_session = session.is_some();
    if matches!(session, Some(None)) {
        // Another subject's session is not there.
        return no_session();
    }
    if !is_in_session && may_begin_one && sessions.make_room(subject.as_ref()).await.is_err() {
        return busy();
    }
    // A stream without a call does not keep its session.
    let permit = Arc::new((permit, session.flatten().filter(|_| is_post)));
    if is_in_session {
        // A call goes on for a while when its client is gone.
        request.extensions_mut().insert(permit.clone());
    }
    let response = SUBJECT.scope(subject, next.run(request)).await;
    if is_in_session && response.status() == StatusCode::NOT_FOUND && !is_json(&response) {
        return no_session();
    }
    // It is in progress until its last byte is sent.
    let (parts, body) = response.into_parts();
    let stream = body.into_data_stream().map(move |piece| {
        _ = &permit;
        piece
    });
    Response::from_parts(parts, Body::from_stream(stream))
}

/// Reads a message, and answers it in the form that its client can take; what is no message is answered
/// as over lines.
async fn in_its_form(request: Request, next: Next) -> Response {
    if request.method() != Method::POST {
        let is_delete = request.method() == Method::DELETE;
        let mut response = next.run(request).await;
        if is_delete && response.status() == StatusCode::ACCEPTED {
            // A session that is deleted is gone: nothing is still to come.
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        return response;
    }
    let (mut parts, body) = request.into_parts();
    let mut pieces = body.into_data_stream();
    let mut text = Vec::new();
    while let Some(piece) = pieces.next().await {
        let Ok(piece) = piece else {
            return problem(StatusCode::BAD_REQUEST, "the request is incomplete", None);
        };
        text.extend_from_slice(&piece);
        if text.len() > MAX_MESSAGE_BYTES {
            let error = axum::Json(error_of_too_long(&text));
            return (StatusCode::PAYLOAD_TOO_LARGE, error).into_response();
        }
    }
    text.drain(..text.len() - without_bom(&text).len());
    let is_large = text.len() > LARGE_MESSAGE_BYTES;
    let answer = async move {
        let form = match message_of(&text) {
            Ok(message) => AnswerForm::of(&message, &parts.headers),
            Err(error) => return (StatusCode::BAD_REQUEST, axum::Json(error)).into_response(),
        };
        form.ask(&mut parts.headers);
        form.apply(next.run(Request::from_parts(parts, Body::from(text))).await).await
    };
    match is_large {
        true => beside_others(answer).await,
        false => answer.await,
    }
}

/// Answers of the protocol are JSON; other refusals become problems.
async fn answer_problems(request: Request, next: Next) -> Response {
    let instance = request.extensions().get::<Instance>().cloned();
    INSTANCE.scope(instance, async { problem_of(next.run(request).await).await }).await
}

/// A refusal as a problem, unless it is JSON.
async fn problem_of(response: Response) -> Response {
    let status = response.status();
    if !(status.is_client_error() || status.is_server_error()) || is_json(&response) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let detail = to_bytes(body, MAX_DETAIL_BYTES).await.unwrap_or_default();
    let detail = String::from_utf8_lossy(&detail);
    let detail = match &*detail {
        "" => status.canonical_reason().unwrap_or_default().to_lowercase(),
        detail => detail.to_owned(),
    };
    let (problem, body) = problem(status, detail, None).into_parts();
    let mut parts = parts;
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.extend(problem.headers);
    Response::from_parts(parts, body)
}

fn is_json(response: &Response) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|it| it.to_str().ok()).unwrap_or_default();
    content_type.starts_with("application/json") || content_type.starts_with(PROBLEM_JSON)
}

/// A problem with this status.
fn problem(status: StatusCode, detail: impl Into<String>, hint: Option<&str>) -> Response {
    let kind = match status {
        StatusCode::NOT_FOUND => ProblemKind::NotFound,
        StatusCode::METHOD_NOT_ALLOWED => ProblemKind::MethodNotAllowed,
        StatusCode::PAYLOAD_TOO_LARGE => ProblemKind::TooLarge,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => ProblemKind::UnsupportedMediaType,
        StatusCode::SERVICE_UNAVAILABLE => ProblemKind::Unavailable,
        status if status.is_server_error() => ProblemKind::Internal,
        _ => ProblemKind::Malformed,
    };
    let mut problem = Problem::new(kind, detail).hint(hint);
    problem.status = status.as_u16();
    problem.instance = INSTANCE.try_with(Clone::clone).ok().flatten().map(|it| it.0);
    let mut response = (status, axum::Json(problem)).into_response();
    let is_problem = HeaderValue::from_static(PROBLEM_JSON);
    response.headers_mut().insert(header::CONTENT_TYPE, is_problem);
    response
}

/// What keeps its thread busy: other tasks go on at another one meanwhile, if there may be another.
async fn beside_others<T>(busy: impl Future<Output = T>) -> T {
    let mut busy = pin!(busy);
    poll_fn(|context| match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => block_in_place(|| busy.as_mut().poll(context)),
        _ => busy.as_mut().poll(context),
    })
    .await
}

/// There is no such session for who asks.
fn no_session() -> Response {
    let hint = Some("begin another one with `initialize`");
    problem(StatusCode::NOT_FOUND, "there is no such session", hint)
}

/// Too much is in progress.
fn busy() -> Response {
    let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, "too many requests", None);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER.as_secs()));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::post;
    use rmcp::transport::streamable_http_server::session::SessionManager as _;
    use serde_json::json;
    use tower::ServiceExt as _;

    #[test]
    fn requests_of_one_subject_take_the_room_of_no_other() {
        let [alice, bob] = ["alice", "bob"].map(|name| Some(Subject::new(name).unwrap()));
        let requests = Arc::new(Requests::default());
        let begin = |subject: &Option<Subject>| requests.begin(subject.as_ref());
        let mut of_alice: Vec<_> = std::iter::from_fn(|| begin(&alice)).collect();
        assert_eq!(of_alice.len(), MAX_REQUESTS / 2);
        let of_bob: Vec<_> = std::iter::from_fn(|| begin(&bob)).collect();
        assert_eq!(of_bob.len(), MAX_REQUESTS / 4);
        // A caller without requests gets some, and one that ends a request may begin another.
        assert!(begin(&None).is_some() && begin(&alice).is_none());
        drop(of_bob);
        of_alice.pop();
        assert!(begin(&alice).is_some());
        drop(of_alice);
        assert!(lock(&requests.0).is_empty());
    }

    #[tokio::test]
    async fn session_of_another_subject_is_answered_as_one_that_is_not_there() {
        let sessions = Arc::new(Sessions::new(Duration::ZERO));
        let [alice, bob] = ["alice", "bob"].map(|name| Subject::new(name).unwrap());
        let (id, _transport) = SUBJECT.scope(Some(alice), sessions.create_session()).await.unwrap();
        // As the protocol's SDK answers where there is no session.
        let not_found = || async {
            Response::builder().status(404).body(Body::from("Session not found")).unwrap()
        };
        let admission = Admission { sessions, requests: Arc::default() };
        let admitted = from_fn_with_state(admission, admit);
        let router = Router::new().route("/mcp", post(not_found)).layer(admitted);
        let mut answers = Vec::new();
        for session in [&*id, "unknown"] {
            let request = Request::post("/mcp").header(SESSION, session).extension(bob.clone());
            let answer = router.clone().oneshot(request.body(Body::empty()).unwrap());
            let (head, body) = answer.await.unwrap().into_parts();
            let body = to_bytes(body, 1000).await.unwrap();
            answers.push((head.status, head.headers, body));
        }
        assert_eq!(answers[0], answers[1]);
        let (status, headers, body) = &answers[0];
        assert_eq!(
            (status.as_u16(), headers[header::CONTENT_TYPE].as_bytes()),
            (404, PROBLEM_JSON.as_bytes())
        );
        let problem: Problem = serde_json::from_slice(body).unwrap();
        assert_eq!((problem.kind, problem.status), (ProblemKind::NotFound, 404));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn large_message_is_parsed_beside_other_tasks() {
        let (sender, received) = std::sync::mpsc::channel();
        let received = Arc::new(Mutex::new(received));
        let parsed = post(move || async move {
            let received = lock(&received).recv_timeout(Duration::from_secs(20));
            received.map_or("alone", |()| "beside others")
        });
        let router = Router::new().route("/mcp", parsed).layer(from_fn(in_its_form));
        let params = json!({ "_meta": { "x": "x".repeat(LARGE_MESSAGE_BYTES) } });
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping", "params": params });
        let request = Request::post("/mcp").body(Body::from(message.to_string())).unwrap();
        let answered = tokio::spawn(router.oneshot(request));
        tokio::spawn(async move { sender.send(()) }).await.unwrap().unwrap();
        let answer = answered.await.unwrap().unwrap();
        assert_eq!(to_bytes(answer.into_body(), 99).await.unwrap(), "beside others");
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused_as_over_lines() {
        let taken = post(async || StatusCode::ACCEPTED);
        let router = Router::new().route("/mcp", taken).layer(from_fn(in_its_form));
        let send = async |message: &str| {
            let request = Request::post("/mcp").body(Body::from(message.to_owned())).unwrap();
            router.clone().oneshot(request).await.unwrap()
        };
        for (message, code, id) in [
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600, json!(null)),
            (r#"{"jsonrpc":"2.0","id":7,"method":5}"#, -32600, json!(7)),
            (
                r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":"\ud83d"}}"#,
                -32700,
                json!(7),
            ),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600, json!(null)),
            ("no JSON", -32700, json!(null)),
            ("", -32700, json!(null)),
        ] {
            let refused = send(message).await;
            assert_eq!(refused.status(), 400, "{message}");
            assert!(is_json(&refused), "{message}");
            let error = to_bytes(refused.into_body(), 1000).await.unwrap();
            let error: serde_json::Value = serde_json::from_slice(&error).unwrap();
            assert_eq!((&error["error"]["code"], error.get("id")), (&json!(code), Some(&id)));
        }
        let long = "x".repeat(MAX_MESSAGE_BYTES);
        let refused = send(&format!(r#"{{"id":7,"method":"ping","params":"{long}"}}"#)).await;
        assert_eq!((refused.status().as_u16(), is_json(&refused)), (413, true));
        let error = to_bytes(refused.into_body(), 1000).await.unwrap();
        let error: serde_json::Value = serde_json::from_slice(&error).unwrap();
        assert_eq!(error["id"], 7);
        for message in [
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no JSON"}}"#,
        ] {
            assert_eq!(send(message).await.status(), 202, "{message}");
        }
    }

    #[tokio::test]
    async fn refusals_in_plain_text_become_problems() {
        let text = post(async || {
            let allow = [(header::ALLOW, "GET")];
            (StatusCode::NOT_ACCEPTABLE, allow, "Client must accept JSON").into_response()
        });
        let json = post(async || (StatusCode::BAD_REQUEST, axum::Json(json!({"id": null}))));
        let router = Router::new().route("/text", text).route("/json", json);
        let router = router.layer(from_fn(answer_problems));
        let send = async |path: &str| {
            let answer = router.clone().oneshot(Request::post(path).body(Body::empty()).unwrap());
            let (head, body) = answer.await.unwrap().into_parts();
            (head, to_bytes(body, 1000).await.unwrap())
        };
        let (head, body) = send("/text").await;
        assert_eq!(
            (head.status.as_u16(), &head.headers[header::ALLOW]),
            (406, &"GET".parse().unwrap())
        );
        assert_eq!(head.headers[header::CONTENT_TYPE], PROBLEM_JSON);
        let problem: Problem = serde_json::from_slice(&body).unwrap();
        assert_eq!((problem.status, &*problem.detail), (406, "Client must accept JSON"));
        let (head, body) = send("/json").await;
        assert_eq!((head.status.as_u16(), &body[..]), (400, &b"{\"id\":null}"[..]));
    }

    #[tokio::test]
    async fn problems_name_their_request() {
        let text = post(async || (StatusCode::NOT_ACCEPTABLE, "Client must accept JSON"));
        let router = Router::new().route("/text", text).route("/busy", post(async || busy()));
        let router = router.layer(from_fn(answer_problems));
        for path in ["/text", "/busy"] {
            for instance in [Some("urn:sandboxctl:request:r-7"), None] {
                let mut request = Request::post(path).body(Body::empty()).unwrap();
                if let Some(instance) = instance {
                    request.extensions_mut().insert(Instance(instance.to_owned()));
                }
                let answer = router.clone().oneshot(request).await.unwrap();
                let body = to_bytes(answer.into_body(), 1000).await.unwrap();
                let problem: Problem = serde_json::from_slice(&body).unwrap();
                assert_eq!(problem.instance.as_deref(), instance, "{path}");
            }
        }
    }
}
