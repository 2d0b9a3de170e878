//! The API over a service with fake sandboxes: every response of these tests is checked against the
//! OpenAPI document.

mod access;
mod attach;
mod content;
mod document;
mod errors;
mod events;
mod input;
mod memory;
mod nodes;
mod peers;
mod ports;
mod processes;
mod session;
mod sockets;
mod subjects;

use std::sync::{Arc, LazyLock, mpsc};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt as _;
use sandbox_api::Problem;
use sandbox_api::service::Subject;
use sandbox_http::{
    Authenticate, Caller, Http, HttpConfig, Peer, Scope, Shutdown, Unauthenticated,
};
use sandbox_service::fake::{self, FakeLauncher};
use sandbox_service::{IoPosture, Service, ServiceConfig};
use sandbox_store::{Durability, Store};
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// Callers by their tokens.
struct Tokens;

impl Authenticate for Tokens {
    fn authenticate<'a>(
        &'a self,
        headers: &'a HeaderMap,
        _peer: Peer,
    ) -> BoxFuture<'a, Result<Caller, Unauthenticated>> {
        let header = headers.get("authorization").and_then(|value| value.to_str().ok());
        let all = || vec![Scope::ExecutionsRead, Scope::ExecutionsWrite, Scope::Sandboxes];
        let caller = match header.and_then(|header| header.strip_prefix("Bearer ")) {
            None => Err(Unauthenticated::Missing),
            Some("alice") => Ok(("alice", all())),
            Some("bob") => Ok(("bob", all())),
            Some("reader") => Ok(("alice", vec![Scope::ExecutionsRead])),
            Some("admin") => Ok(("admin", vec![Scope::Admin])),
            Some("flood") => {
                Err(Unauthenticated::TooMany { retry_after: Duration::from_millis(1500) })
            }
            Some("broken") => Err(Unauthenticated::Unavailable { reason: "the store".to_owned() }),
            Some(_) => Err(Unauthenticated::Invalid { reason: "expired".to_owned() }),
        };
        let caller =
            caller.map(|(name, scopes)| Caller { subject: Subject::new(name).unwrap(), scopes });
        Box::pin(std::future::ready(caller))
    }

    fn is_credential(&self, word: &str) -> bool {
        word == "of-an-issuer"
    }
}

/// Of every file.
const CONTENT: &[u8] = b"0123456789abcdef";

/// A service, what its sandboxes do, and its store, which ends with it.
struct World {
    service: Service,
    launcher: Arc<FakeLauncher>,
    store: Store,
    _dir: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap()).await
    }

    /// On the store in the folder `data` of this directory, if there is one.
    async fn at(dir: tempfile::TempDir) -> Self {
        Self::with_config(dir, |config| config).await
    }

    /// The same with another configuration.
    async fn with_config(
        dir: tempfile::TempDir,
        with: impl FnOnce(ServiceConfig) -> ServiceConfig,
    ) -> Self {
        let mut config = with(ServiceConfig::new(dir.path().join("data")));
        config.io = IoPosture::PrivatePerExecution;
        config.allowed_images = vec!["debian:13".to_owned()];
        config.request.metadata_bytes = 4 << 20;
        let launcher = Arc::<FakeLauncher>::default();
        let files = [&b"out.csv"[..], b"dir/page.html", b"\xff"];
        *launcher.files.lock().unwrap() =
            files.map(|path| (path.to_vec(), CONTENT.to_vec())).to_vec();
        *launcher.content.lock().unwrap() = Some(CONTENT);
        let store = Store::open(&config.data_dir, Durability::Process).unwrap();
        let service = fake::start(config, launcher.clone(), store.clone()).await.unwrap();
        Self { service, launcher, store, _dir: dir }
    }

    /// One execution that waits goes on to its end.
    fn finish(&self) {
        self.launcher.go_on.add_permits(1);
    }
}

/// While it is there a clock that is stopped does not go on, though all wait: for the store.
fn hold_clock() -> mpsc::Sender<()> {
    let (sender, end) = mpsc::channel();
    tokio::task::spawn_blocking(move || end.recv());
    sender
}

/// An API over a service.
struct Api {
    router: Router,
    world: World,
    shutdown: Shutdown,
}

/// An answer.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    fn problem(&self) -> Problem {
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let problem: Problem = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem.status, self.status.as_u16());
        assert_eq!(problem.uri, format!("urn:sandboxctl:problem:{}", problem.kind));
        let id = self.headers["x-request-id"].to_str().unwrap();
        assert_eq!(problem.instance, Some(format!("urn:sandboxctl:request:{id}")));
        problem
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name}")).to_str().unwrap()
    }
}

async fn api() -> Api {
    let hosts = vec!["api.example.org".to_owned()];
    api_with(HttpConfig { hosts, ..HttpConfig::default() }).await
}

async fn api_with(config: HttpConfig) -> Api {
    let (world, shutdown) = (World::new().await, Shutdown::default());
    let service = world.service.clone();
    let http = Http::new(config, service, Arc::new(Tokens), Vec::new(), shutdown.clone());
    Api { router: http.router(), world, shutdown }
}

/// A request of alice.
fn request(method: Method, path: &str) -> axum::http::request::Builder {
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "api.example.org")
        .header("authorization", "Bearer alice")
        .extension(Peer::Tcp(([127, 0, 0, 1], 7).into()))
}

impl Api {
    /// The answer, which is as the document says.
    async fn send(&self, request: Request<Body>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let answer = Answer { status: parts.status, headers: parts.headers, body };
        check(&method, &path, &answer);
        answer
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(request(Method::GET, path).body(Body::empty()).unwrap()).await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, &body.to_string()).await
    }

    async fn post_text(&self, path: &str, body: &str) -> Answer {
        let request = request(Method::POST, path).header("content-type", "application/json");
        self.send(request.body(body.to_owned().into()).unwrap()).await
    }

    /// The id of an execution of this script.
    async fn begin(&self, script: &str) -> String {
        let answer = self.post("/v1/executions", &json!({ "script": script })).await;
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// The same when it has ended.
    async fn run(&self, script: &str) -> String {
        let id = self.begin(script).await;
        let ended = self.get(&format!("/v1/executions/{id}?wait=60")).await.json();
        assert_eq!(ended["status"], "ok");
        id
    }

    /// The id of a sandbox.
    async fn sandbox(&self) -> String {
        let answer = self.post("/v1/sandboxes", &json!({})).await;
        assert_eq!(answer.status, 201);
        answer.json()["id"].as_str().unwrap().to_owned()
    }
}

static DOCUMENT: LazyLock<Value> = LazyLock::new(sandbox_http::openapi_document);

/// The operation of a path.
fn operation<'a>(method: &Method, path: &str) -> Option<&'a Value> {
    let segments: Vec<&str> = path.split('/').collect();
    let matches = |template: &str| {
        let template: Vec<&str> = template.split('/').collect();
        let has_tail = template.last() == Some(&"{path}");
        let is_as_long = match has_tail {
            true => segments.len() >= template.len(),
            false => segments.len() == template.len(),
        };
        is_as_long
            && template
                .iter()
                .zip(&segments)
                .all(|(one, other)| one == other || one.starts_with('{'))
    };
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let (_, methods) = paths.iter().find(|(template, _)| matches(template))?;
    methods.get(method.as_str().to_ascii_lowercase())
}

/// Whether the answer is as the document says.
fn check(method: &Method, path: &str, answer: &Answer) {
    let Some(operation) = operation(method, path) else {
        answer.problem();
        return;
    };
    let status = answer.status.as_str();
    let response = operation["responses"]
        .get(status)
        .unwrap_or_else(|| panic!("{method} {path}: {status} is not documented: {answer:?}"));
    let response = match response["$ref"].as_str() {
        Some(target) => DOCUMENT.pointer(target.trim_start_matches('#')).unwrap(),
        None => response,
    };
    let content = response["content"].as_object();
    let Some(content) = content else {
        assert!(answer.body.is_empty(), "{method} {path}: {answer:?}");
        return;
    };
    let content_type = answer.header("content-type");
    let is_of = |media_type: &str| {
        media_type == "*/*"
            || media_type == content_type
            || content_type.starts_with(&format!("{media_type};"))
    };
    let (_, media) = content
        .iter()
        .find(|(media_type, _)| is_of(media_type))
        .unwrap_or_else(|| panic!("{method} {path}: {content_type} is not documented"));
    if content_type.ends_with("json") && media["schema"] != json!({}) {
        validate(&media["schema"], &answer.json(), path);
    }
}

/// Whether a value is as its schema says.
fn validate(schema: &Value, value: &Value, what: &str) {
    let mut root = schema.clone();
    root["components"] = DOCUMENT["components"].clone();
    let validator = jsonschema::draft202012::new(&root).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{what}: {value:#}: {errors:#?}");
}
