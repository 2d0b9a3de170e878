//! E2B's protocol over a service with fake sandboxes: who is let in, what the control API promises, and which
//! sandbox a request is for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt as _;
use sandbox_api::service::{SandboxRef, SandboxStatus, Subject, Time};
use sandbox_api::{ByteSize, PreviewRequest, Pull};
use sandbox_e2b::{App, E2b, Settings, Template};
use sandbox_http::{
    Authenticate, Caller, Http, HttpConfig, Peer, Scope, Shutdown, Unauthenticated,
};
use sandbox_service::fake::{self, FakeLauncher};
use sandbox_service::{PreviewConfig, Service, ServiceConfig};
use sandbox_store::{Durability, Store};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
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
        let caller = match header.and_then(|header| header.strip_prefix("Bearer ")) {
            None => Err(Unauthenticated::Missing),
            Some(name @ ("alice" | "bob")) => Ok((name, Scope::Sandboxes)),
            Some("reader") => Ok(("alice", Scope::ExecutionsRead)),
            Some(_) => Err(Unauthenticated::Invalid { reason: "unknown".to_owned() }),
        };
        let caller = caller.map(|(name, scope)| Caller {
            subject: Subject::new(name).unwrap(),
            scopes: vec![scope],
        });
        Box::pin(std::future::ready(caller))
    }
}

/// The id of no sandbox.
const NONE: &str = "0a1b2c0a1b2c0a1b2c0a1b2c";

struct World {
    router: Router,
    service: Service,
    launcher: Arc<FakeLauncher>,
    _dir: tempfile::TempDir,
}

/// An answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Answer {
    fn id(&self) -> String {
        self.text("sandboxID")
    }

    fn text(&self, member: &str) -> String {
        let text = self.body[member].as_str();
        text.unwrap_or_else(|| panic!("no {member}: {self:?}")).to_owned()
    }
}

impl World {
    /// Where ports are public, as E2B's are.
    async fn new() -> Self {
        Self::with_ports(true).await
    }

    async fn with_ports(public_ports: bool) -> Self {
        Self::with_config(public_ports, HttpConfig::default()).await
    }

    async fn with_config(public_ports: bool, http: HttpConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = |name: &str| Template { image: Some(name.to_owned()), ..Template::default() };
        let settings = Settings {
            templates: [("base", image("base:1")), ("other", image("other:1"))]
                .map(|(name, it)| (name.to_owned(), it))
                .into(),
            domain: Some("box.example".to_owned()),
            public_ports,
            ..Settings::default()
        };
        let mut config = ServiceConfig::new(dir.path().join("data"));
        config.roots = settings.roots(Pull::Never);
        config.prepared = settings.preparations();
        config.previews = Some(PreviewConfig {
            domain: "box.example".to_owned(),
            scheme: "https",
            port: None,
            may_be_public: public_ports,
        });
        let store = Store::open(&config.data_dir, Durability::Process).unwrap();
        let launcher = Arc::<FakeLauncher>::default();
        let service = fake::start(config, launcher.clone(), store).await.unwrap();
        let shutdown = Shutdown::default();
        let auth: Arc<dyn Authenticate> = Arc::new(Tokens);
        let app = App::new(service.clone(), settings, shutdown.stop.clone());
        let mounts = E2b::new(app, auth.clone()).mounts();
        let http = Http::new(http, service.clone(), auth, mounts, shutdown);
        Self { router: http.router(), service, launcher, _dir: dir }
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// A request with these headers.
    async fn with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Value,
    ) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .extension(Peer::Tcp(([127, 0, 0, 1], 7).into()));
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "127.0.0.1:8470");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() { Body::empty() } else { body.to_string().into() };
        self.send(request.body(body).unwrap()).await
    }

    /// One of alice to the control API.
    async fn alice(&self, method: Method, path: &str, body: Value) -> Answer {
        self.with(method, &format!("/e2b{path}"), &[("x-api-key", "alice")], body).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.alice(Method::GET, path, Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.alice(Method::POST, path, body).await
    }

    async fn create(&self, body: Value) -> Answer {
        let created = self.post("/v2/sandboxes", body).await;
        assert_eq!(created.status, 201, "{created:?}");
        created
    }

    /// The status of a sandbox's `/health`, which needs no token.
    async fn health(&self, id: &str) -> Answer {
        self.with(Method::GET, "/e2b/health", &[("e2b-sandbox-id", id)], Value::Null).await
    }

    async fn state(&self, id: &str) -> String {
        self.get(&format!("/sandboxes/{id}")).await.text("state")
    }

    /// When a sandbox is to end.
    async fn end_of(&self, id: &str) -> Time {
        self.get(&format!("/sandboxes/{id}")).await.text("endAt").parse().unwrap()
    }

    /// Whether a sandbox was given so many seconds, after this time.
    async fn was_given(&self, id: &str, seconds: u64, since: Time) -> bool {
        let given = Duration::from_secs(seconds);
        (since.after(given)..=Time::now().after(given)).contains(&self.end_of(id).await)
    }

    async fn listed(&self, query: &str) -> (Vec<String>, Option<String>) {
        let page = self.get(&format!("/v2/sandboxes?{query}")).await;
        assert_eq!(page.status, 200, "{page:?}");
        let ids = page.body.as_array().unwrap().iter();
        let ids = ids.map(|it| it["sandboxID"].as_str().unwrap().to_owned()).collect();
        let next = page.headers.get("x-next-token");
        (ids, next.map(|token| token.to_str().unwrap().to_owned()))
    }
}

#[tokio::test]
async fn sandbox_is_created_described_and_killed_on_both_generations_of_paths() {
    let world = World::new().await;
    for path in ["/sandboxes", "/v2/sandboxes"] {
        let asked = json!({
            "templateID": "base:latest", "timeout": 60, "metadata": { "a": "b" }, "envVars": { "X": "1" },
            "allow_internet_access": true, "secure": true, "memberOfALaterVersion": { "x": 1 },
            "mcp": { "server": {} }, "autoPauseMemory": false,
        });
        let created = world.post(path, asked).await;
        assert_eq!(created.status, 201, "{created:?}");
        let id = created.id();
        assert_eq!(created.text("envdAccessToken").len(), 64);
        assert_eq!(created.body["trafficAccessToken"], Value::Null);
        assert_eq!(
            (created.text("templateID"), created.text("clientID")),
            ("base".into(), "sandboxctl".into())
        );
        assert_eq!(world.health(&id).await.status, 204);
        let info = world.get(&format!("/sandboxes/{id}")).await;
        assert_eq!((info.status, &info.body["metadata"]), (200, &json!({ "a": "b" })), "{info:?}");
        for member in ["cpuCount", "memoryMB", "diskSizeMB"] {
            assert!(info.body[member].as_u64().is_some_and(|it| it > 0), "{member}: {info:?}");
        }
        assert_eq!(info.body["lifecycle"], json!({ "autoResume": false, "onTimeout": "kill" }));
        // It is one of the service's own, too.
        let alice = Subject::new("alice").unwrap();
        let view = world.service.sandbox(&alice, &id).await.unwrap();
        assert_eq!(view.spec.mount_path.as_deref(), Some("/home/user"));
        let killed = world.alice(Method::DELETE, &format!("/sandboxes/{id}"), Value::Null).await;
        assert_eq!(killed.status, 204);
        let gone = world.health(&id).await;
        assert_eq!((gone.status, gone.text("message")), (502, "The sandbox was not found".into()));
        assert_eq!(gone.body["sandboxId"], id.as_str());
        for (method, path) in [(Method::DELETE, ""), (Method::GET, ""), (Method::POST, "/timeout")]
        {
            let path = format!("/sandboxes/{id}{path}");
            let answer = world.alice(method, &path, json!({ "timeout": 1 })).await;
            assert_eq!(
                (answer.status, &answer.body["code"]),
                (404, &json!(404)),
                "{path} {answer:?}"
            );
        }
    }
}

#[tokio::test]
async fn no_caller_is_let_in_without_a_token_of_the_api() {
    let world = World::new().await;
    let list = async |headers: &[(&str, &str)]| {
        world.with(Method::GET, "/e2b/v2/sandboxes", headers, Value::Null).await
    };
    for (headers, status) in [
        (&[][..], 401),
        (&[("x-api-key", "mallory")][..], 401),
        (&[("authorization", "Basic YWxpY2U6")][..], 401),
        (&[("x-api-key", "reader")][..], 403),
        (&[("authorization", "Bearer alice")][..], 200),
        (&[("x-api-key", "alice"), ("origin", "https://app.example")][..], 200),
    ] {
        let answer = list(headers).await;
        assert_eq!(answer.status, status, "{headers:?} {answer:?}");
        assert_eq!(answer.headers["access-control-allow-origin"], "*");
    }
    let preflight = [("origin", "https://app.example"), ("access-control-request-method", "POST")];
    let answer = world.with(Method::OPTIONS, "/e2b/v2/sandboxes", &preflight, Value::Null).await;
    assert_eq!(
        (answer.status, &answer.headers["access-control-allow-origin"]),
        (204, &"*".parse().unwrap())
    );
}

#[tokio::test]
async fn subjects_neither_see_nor_reach_nor_sign_for_sandboxes_of_each_other() {
    let world = World::new().await;
    let one = world.create(json!({})).await;
    let bob = [("x-api-key", "bob")];
    let other = world.with(Method::POST, "/e2b/v2/sandboxes", &bob, json!({})).await;
    for (method, path) in [
        (Method::GET, ""),
        (Method::DELETE, ""),
        (Method::POST, "/connect"),
        (Method::POST, "/pause"),
        (Method::GET, "/metrics"),
    ] {
        let path = format!("/e2b/sandboxes/{}{path}", one.id());
        let answer = world.with(method, &path, &bob, Value::Null).await;
        assert_eq!(answer.status, 404, "{path} {answer:?}");
    }
    assert_eq!(world.listed("").await.0, [one.id()]);
    // Each token is of one sandbox, and an API key is none.
    let id = one.id();
    let tokens = [other.text("envdAccessToken"), "alice".to_owned(), String::new()];
    for token in &tokens {
        let headers =
            [("e2b-sandbox-id", &*id), ("x-access-token", token.as_str()), ("x-api-key", "alice")];
        for path in ["/e2b/files?path=a", "/e2b/envs", "/e2b/process.Process/List"] {
            let answer = world.with(Method::POST, path, &headers, json!({})).await;
            assert_eq!(
                (answer.status, &answer.body["code"]),
                (401, &json!(401)),
                "{path} {answer:?}"
            );
        }
    }
}

#[tokio::test]
async fn end_of_a_sandbox_is_moved_in_both_directions_and_connections_never_shorten() {
    let world = World::new().await;
    let since = Time::now();
    let id = world.create(json!({ "timeout": 100 })).await.id();
    let timeout = async |seconds: u64| {
        world.post(&format!("/sandboxes/{id}/timeout"), json!({ "timeout": seconds })).await
    };
    assert!(world.was_given(&id, 100, since).await);
    let since = Time::now();
    assert_eq!(timeout(50).await.status, 204);
    assert!(world.was_given(&id, 50, since).await);
    for (path, body, given) in [
        ("/v2/sandboxes/{id}/connect", json!({ "timeout": 10 }), None),
        ("/sandboxes/{id}/connect", json!({ "timeout": 200 }), Some(200)),
        ("/sandboxes/{id}/connect", json!({ "timeout": 20, "unknown": 1 }), None),
        ("/sandboxes/{id}/refreshes", json!({ "duration": 30 }), None),
        ("/sandboxes/{id}/refreshes", json!({ "duration": 250 }), Some(250)),
    ] {
        let (since, before) = (Time::now(), world.end_of(&id).await);
        let answer = world.post(&path.replace("{id}", &id), body).await;
        assert!(matches!(answer.status, 200 | 204), "{path} {answer:?}");
        match given {
            Some(seconds) => assert!(world.was_given(&id, seconds, since).await, "{path}"),
            None => assert_eq!(world.end_of(&id).await, before, "{path}"),
        }
    }
    // It is made for a day, of which a part is over.
    let whole = world.service.kept_bounds().max_ttl.as_secs();
    tokio::time::sleep(Duration::from_millis(3)).await;
    let long = timeout(whole).await;
    assert_eq!(long.status, 400, "{long:?}");
    assert!(long.text("message").contains("at most"), "{long:?}");
    assert_eq!(timeout(whole - 60).await.status, 204);
    let long = timeout(1_000_000).await;
    assert_eq!((long.status, &long.headers["should-retry"]), (400, &"false".parse().unwrap()));
    assert_eq!(timeout(0).await.status, 204);
    assert_eq!(world.health(&id).await.status, 502);
}

#[tokio::test]
async fn paused_sandbox_is_not_there_until_it_is_connected() {
    let world = World::new().await;
    let id = world.create(json!({ "timeout": 100 })).await.id();
    let pause = async |body: Value| world.post(&format!("/sandboxes/{id}/pause"), body).await;
    assert_eq!(pause(json!({ "memory": false })).await.status, 501);
    world.launcher.refuses_pauses.store(true, Ordering::SeqCst);
    let refused = pause(json!({})).await;
    assert_eq!((refused.status, world.state(&id).await), (501, "running".to_owned()));
    assert!(refused.text("message").contains("there is no freezer"), "{refused:?}");
    world.launcher.refuses_pauses.store(false, Ordering::SeqCst);
    assert_eq!(pause(json!({ "memory": true })).await.status, 204);
    assert_eq!(world.state(&id).await, "paused");
    assert_eq!(pause(json!({})).await.status, 409);
    assert_eq!(world.health(&id).await.text("message"), "The sandbox was not found");
    assert_eq!(world.listed("state=running").await.0, [""; 0]);
    assert_eq!(world.listed("state=paused").await.0, std::slice::from_ref(&id));
    let since = Time::now();
    let resumed =
        world.post(&format!("/v2/sandboxes/{id}/connect"), json!({ "timeout": 40 })).await;
    assert_eq!((resumed.status, resumed.id()), (201, id.clone()), "{resumed:?}");
    assert_eq!((world.state(&id).await.as_str(), world.health(&id).await.status), ("running", 204));
    assert!(world.was_given(&id, 40, since).await);
    let again = world.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await;
    assert_eq!(again.status, 200);
}

#[tokio::test]
async fn paused_sandbox_is_frozen_again_after_a_request_that_came_with_the_pause() {
    let world = World::new().await;
    let id = world.create(json!({ "timeout": 100 })).await.id();
    assert_eq!(world.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    // As a request does that was let in before.
    let (alice, service) = (Subject::new("alice").unwrap(), &world.service);
    let sandbox = SandboxRef { id: id.clone(), generation: None };
    let thawed = service.resume_sandbox(&alice, &sandbox).await.unwrap();
    assert_eq!(thawed.status, SandboxStatus::Ready);
    while service.sandbox(&alice, &id).await.unwrap().status != SandboxStatus::Paused {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.state(&id).await, "paused");
}

#[tokio::test]
async fn sandbox_whose_time_is_over_is_paused_if_that_is_asked_for() {
    let world = World::new().await;
    let body = |resumes: bool| json!({ "timeout": 60, "autoPause": true, "autoResume": { "enabled": resumes } });
    let since = Time::now();
    let (stays, resumes) =
        (world.create(body(false)).await.id(), world.create(body(true)).await.id());
    for id in [&stays, &resumes] {
        assert!(world.was_given(id, 60, since).await);
        let ended = world.post(&format!("/sandboxes/{id}/timeout"), json!({ "timeout": 0 })).await;
        assert_eq!(ended.status, 204);
        while world.state(id).await != "paused" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(world.health(&stays).await.status, 502);
    assert_eq!(world.health(&resumes).await.status, 204);
    assert_eq!(world.state(&resumes).await, "running");
}

#[tokio::test]
async fn what_would_make_another_sandbox_than_is_asked_for_is_refused_in_words() {
    let world = World::new().await;
    for (asked, status, words) in [
        (json!({ "templateID": "nothing" }), 404, "there are: base, other"),
        (json!({ "templateID": "nothing:latest" }), 404, "there are: base, other"),
        (json!({ "templateID": "base:v2" }), 501, "`latest`"),
        (json!({ "timeout": 0 }), 400, "timeout"),
        (json!({ "timeout": 1_000_000 }), 400, "longer"),
        (json!({ "timeout": "long" }), 400, "cannot be read"),
        (json!({ "volumeMounts": [{ "name": "a" }] }), 501, "volumes"),
        (json!({ "iam": { "tokens": { "a": {} } } }), 501, "iam"),
        (json!({ "autoPause": true, "autoPauseMemory": false }), 501, "memory"),
        (json!({ "network": { "rules": { "a": [{}] } } }), 501, "`rules`"),
        (json!({ "network": { "allowOut": ["a.example"] } }), 403, "a.example"),
        (json!({ "network": { "allowOut": ["0.0.0.0/0"] } }), 501, "serve --allow HOST"),
        (json!({ "templateID": "mcp-gateway" }), 404, "mcp-gateway"),
        (json!({ "metadata": { "sandboxctl.e2b": "{}" } }), 400, "sandboxctl.e2b"),
        (json!({ "envVars": { "A=B": "" } }), 400, "env"),
    ] {
        let refused = world.post("/v2/sandboxes", asked.clone()).await;
        assert_eq!(refused.status, status, "{asked} {refused:?}");
        assert!(refused.text("message").contains(words), "{asked} {refused:?}");
        assert_eq!(refused.headers["should-retry"], "false");
    }
    let harmless =
        json!({ "volumeMounts": [], "iam": {}, "network": { "denyOut": ["0.0.0.0/0"] } });
    world.create(harmless).await;
    assert_eq!(world.listed("").await.0.len(), 1);
    // The SDK starts the gateway in it, and reports that it fails.
    let with_gateway = world.create(json!({ "templateID": "mcp-gateway", "mcp": {} })).await;
    assert_eq!(with_gateway.text("templateID"), "base");
}

#[tokio::test]
async fn path_without_that_of_the_mount_is_answered_in_words() {
    let world = World::new().await;
    for path in ["/sandboxes", "/v2/sandboxes", "/sandboxes/a/timeout", "/templates/a"] {
        let answer = world.with(Method::POST, path, &[("x-api-key", "alice")], json!({})).await;
        assert_eq!((answer.status, &answer.body["code"]), (404, &json!(404)), "{path} {answer:?}");
        assert!(answer.text("message").contains("E2B_API_URL"), "{answer:?}");
    }
}

#[tokio::test]
async fn body_that_is_read_whole_takes_the_memory_of_its_caller() {
    let body_memory = ByteSize::b(512 << 10);
    let world = World::with_config(true, HttpConfig { body_memory, ..HttpConfig::default() }).await;
    let id = world.create(json!({})).await.id();
    let large = "a".repeat(700 << 10);
    let refused = world.post("/v2/sandboxes", json!({ "metadata": { "a": large } })).await;
    assert_eq!((refused.status, &refused.body["code"]), (413, &json!(413)), "{refused:?}");
    let token = world.get(&format!("/sandboxes/{id}")).await.text("envdAccessToken");
    let headers = [
        ("e2b-sandbox-id", &*id),
        ("x-access-token", &token),
        ("content-type", "application/json"),
    ];
    let path = "/e2b/filesystem.Filesystem/Stat";
    let refused = world.with(Method::POST, path, &headers, json!({ "path": large })).await;
    assert_eq!(refused.body["code"], "resource_exhausted", "{refused:?}");
    // What is refused is given back.
    let stat = world.with(Method::POST, path, &headers, json!({ "path": "a" })).await;
    assert_ne!(stat.body["code"], "resource_exhausted", "{stat:?}");
}

#[tokio::test]
async fn what_is_not_offered_is_answered_at_once_with_a_sentence() {
    let world = World::new().await;
    let id = world.create(json!({})).await.id();
    for (method, path) in [
        (Method::POST, format!("/sandboxes/{id}/fork")),
        (Method::POST, format!("/sandboxes/{id}/snapshots")),
        (Method::GET, "/snapshots".to_owned()),
        (Method::POST, "/v3/templates".to_owned()),
        (Method::DELETE, "/templates/a".to_owned()),
        (Method::GET, "/volumes".to_owned()),
        (Method::PATCH, format!("/sandboxes/{id}")),
        (Method::GET, format!("/sandboxes/metrics?sandbox_ids={id}")),
    ] {
        let answer = world.alice(method, &path, json!({})).await;
        assert_eq!((answer.status, &answer.body["code"]), (501, &json!(501)), "{path} {answer:?}");
        assert!(answer.text("message").starts_with("this server does not offer "), "{answer:?}");
        assert_eq!(answer.headers["should-retry"], "false");
    }
    let period = world.get(&format!("/sandboxes/{id}/metrics?start=now")).await;
    assert_eq!((period.status, &period.body["code"]), (400, &json!(400)), "{period:?}");
    let fork = world.post("/sandboxes/nothing/fork", json!({})).await;
    assert_eq!(fork.status, 404);
}

#[tokio::test]
async fn list_has_filters_an_order_and_pages() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for (template, kind) in [("base", "a"), ("other", "a"), ("base", "b d")] {
        // Times have milliseconds.
        tokio::time::sleep(Duration::from_millis(3)).await;
        let body = json!({ "templateID": template, "metadata": { "kind": kind } });
        ids.push(world.create(body).await.id());
    }
    let newest: Vec<_> = ids.iter().rev().cloned().collect();
    assert_eq!(world.listed("").await, (newest.clone(), None));
    assert_eq!(world.listed("order=asc&state=running,paused").await.0, ids);
    assert_eq!(world.listed("template=other").await.0, ids[1..2]);
    assert_eq!(world.listed("metadata=kind%3Da").await.0, [ids[1].clone(), ids[0].clone()]);
    assert_eq!(world.listed("metadata=kind%3Db%252520d").await.0, ids[2..]);
    let started = world.get(&format!("/sandboxes/{}", ids[1])).await.text("startedAt");
    assert_eq!(world.listed(&format!("startedAfter={started}")).await.0, newest[..2]);
    let mut query = "limit=2".to_owned();
    let mut pages = Vec::new();
    loop {
        let (page, next) = world.listed(&query).await;
        pages.push(page);
        let Some(next) = next else { break };
        query = format!("limit=2&nextToken={next}");
    }
    assert_eq!(pages, [&newest[..2], &newest[2..]]);
    assert_eq!(world.get("/v2/sandboxes?nextToken=x").await.status, 400);
}

#[tokio::test]
async fn repeated_creation_under_its_key_gives_the_same_sandbox() {
    let world = World::new().await;
    let create = async |key: &str, body: Value| {
        let headers = [("x-api-key", "alice"), ("idempotency-key", key)];
        world.with(Method::POST, "/e2b/v2/sandboxes", &headers, body).await
    };
    let first = create("a-1", json!({})).await;
    assert_eq!(create("a-1", json!({})).await.id(), first.id());
    assert_ne!(create("a-2", json!({})).await.id(), first.id());
    assert_eq!(create("a-1", json!({ "envVars": { "A": "1" } })).await.status, 409);
    for wrong in ["", &"k".repeat(256)] {
        assert_eq!(create(wrong, json!({})).await.status, 400);
    }
    let long = "k".repeat(255);
    assert_eq!(create(&long, json!({})).await.id(), create(&long, json!({})).await.id());
}

#[tokio::test]
async fn signature_and_token_find_their_sandbox_without_an_id() {
    let world = World::new().await;
    let (_, one) = (world.create(json!({})).await, world.create(json!({})).await);
    let (token, id) = (one.text("envdAccessToken"), one.id());
    let signed = |path: &str, operation: &str, until: Option<i64>| {
        let end = until.map(|until| format!(":{until}")).unwrap_or_default();
        let digest = Sha256::digest(format!("{path}:{operation}::{token}{end}"));
        let signature = STANDARD_NO_PAD.encode(digest).replace('+', "%2B").replace('/', "%2F");
        let until = until.map(|until| format!("&signature_expiration={until}")).unwrap_or_default();
        format!("/files?path={path}&signature=v1_{signature}{until}")
    };
    let status = async |method: Method, url: &str, headers: &[(&str, &str)]| {
        let answer = world.with(method, url, headers, Value::Null).await;
        (answer.status, answer.body["message"].as_str().unwrap_or_default().to_owned())
    };
    // Whatever becomes of it, it is let in. SDKs sign URLs of the server's root, whatever URL they were given.
    for at in ["", "/e2b"] {
        let url = format!("{at}{}", signed("a", "read", None));
        let (status, message) = status(Method::GET, &url, &[]).await;
        assert!(status != 401 && !message.is_empty(), "{url}: {status}");
    }
    assert_ne!(
        status(Method::GET, "/e2b/files?path=a", &[("x-access-token", token.as_str())]).await.0,
        401
    );
    for (method, url, words) in [
        (Method::POST, signed("a", "read", None), "invalid signature"),
        (Method::GET, signed("a", "read", None).replace("path=a", "path=b"), "invalid signature"),
        (Method::GET, signed("a", "read", Some(1)), "signature is already expired"),
        (
            Method::GET,
            signed("a", "read", Some(1)).replace("=1", "=9999999999"),
            "invalid signature",
        ),
    ] {
        let refused = (401, words.to_owned());
        assert_eq!(status(method.clone(), &url, &[]).await, refused, "{url}");
        let named = [("e2b-sandbox-id", &*id)];
        assert_eq!(status(method, &url, &named).await, refused, "{url}");
    }
    // At the root nothing else counts.
    let others = [("x-access-token", "x"), ("e2b-sandbox-id", NONE), ("e2b-sandbox-port", "8080")];
    let url = signed("a", "read", None);
    assert_eq!(status(Method::GET, &url, &others).await, status(Method::GET, &url, &[]).await);
    let own = [("x-access-token", token.as_str()), ("e2b-sandbox-id", &*id)];
    assert_eq!(status(Method::GET, "/files?path=a", &own).await.0, 401);
    let missing = status(Method::GET, "/e2b/files?path=a", &[("e2b-sandbox-id", &*id)]).await;
    assert_eq!(missing, (401, "missing signature query parameter".to_owned()));
    // No header says whose path was signed.
    let url = format!("/e2b{url}");
    let user = [("authorization", "Basic bm9ib2R5Og==")];
    assert_eq!(status(Method::GET, &url, &user).await, status(Method::GET, &url, &[]).await);
    // A token decides alone.
    let both = status(Method::GET, &url, &[("x-access-token", "x")]).await;
    assert_eq!(both.0, 401);
    assert_eq!(status(Method::GET, "/e2b/health", &[]).await.0, 401);
}

#[tokio::test]
async fn ports_are_reached_by_headers_and_by_host() {
    let world = World::new().await;
    let public = world.create(json!({})).await.id();
    let private = world.create(json!({ "network": { "allowPublicTraffic": false } })).await;
    let traffic = private.text("trafficAccessToken");
    let private = private.id();
    let by_host =
        |id: &str, port: u16| vec![("host".to_owned(), format!("{port}-{id}.box.example:8443"))];
    let by_header = |id: &str, port: u16| {
        vec![
            ("e2b-sandbox-id".to_owned(), id.to_owned()),
            ("e2b-sandbox-port".to_owned(), port.to_string()),
        ]
    };
    let ask = async |path: &str, headers: Vec<(String, String)>| {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let answer = world.with(Method::GET, path, &headers, Value::Null).await;
        (answer.status, answer.body["message"].as_str().unwrap_or_default().to_owned())
    };
    let closed = (502, "The sandbox is running but port is not open".to_owned());
    let missing = (502, "The sandbox was not found".to_owned());
    assert_eq!(ask("/", by_host(&public, 8080)).await, closed);
    assert_eq!(ask("/e2b/", by_header(&public, 8080)).await, closed);
    assert_eq!(ask("/", by_host(NONE, 8080)).await, missing);
    assert_eq!(ask("/health", by_host(&public, 49983)).await.0, 204);
    assert_eq!(ask("/health", by_host(NONE, 49983)).await, missing);
    // What a request says beside its host does not count.
    let mut both = by_host(NONE, 8080);
    both.extend(by_header(&public, 8080));
    assert_eq!(ask("/", both).await, missing);
    let with_token = |mut headers: Vec<(String, String)>| {
        headers.push(("e2b-traffic-access-token".to_owned(), traffic.clone()));
        headers
    };
    assert_eq!(ask("/", by_host(&private, 8080)).await.0, 403);
    assert_eq!(ask("/", with_token(by_host(&private, 8080))).await, closed);
    assert_eq!(ask("/e2b/", with_token(by_header(&private, 8080))).await, closed);
    let key = ("x-api-key".to_owned(), "alice".to_owned());
    let api = vec![("host".to_owned(), "api.box.example".to_owned()), key];
    assert_eq!(ask("/v2/sandboxes", api).await.0, 200);
    let without_key = vec![("host".to_owned(), "api.box.example".to_owned())];
    assert_eq!(ask("/sandboxes", without_key).await.0, 401);
}

#[tokio::test]
async fn ports_need_a_token_where_the_server_has_no_public_ones() {
    let world = World::with_ports(false).await;
    let created = world.create(json!({})).await;
    let (id, host) = (created.id(), format!("8080-{}.box.example", created.id()));
    let (traffic, envd) = (created.text("trafficAccessToken"), created.text("envdAccessToken"));
    let by_header = [("e2b-sandbox-id", &*id), ("e2b-sandbox-port", "8080")];
    for (path, named) in [("/", &[("host", &*host)][..]), ("/e2b/", &by_header[..])] {
        for (token, status) in [
            (None, 403),
            (Some(("e2b-traffic-access-token", "0a")), 403),
            (Some(("x-access-token", &*traffic)), 403),
            (Some(("e2b-traffic-access-token", &*traffic)), 502),
            // As old SDKs send it to a server of theirs in the sandbox.
            (Some(("x-access-token", &*envd)), 502),
        ] {
            let headers: Vec<_> = named.iter().copied().chain(token).collect();
            let answer = world.with(Method::GET, path, &headers, Value::Null).await;
            assert_eq!(answer.status, status, "{path} {token:?} {answer:?}");
        }
    }
    assert_eq!(world.health(&id).await.status, 204);
}

#[tokio::test]
async fn preview_of_a_sandbox_is_one_beside_its_host_of_e2b() {
    let world = World::new().await;
    let id = world.create(json!({})).await.id();
    let alice = Subject::new("alice").unwrap();
    let sandbox = SandboxRef { id, generation: None };
    for public in [true, false] {
        let request = PreviewRequest { ttl_ms: None, public };
        let preview = world.service.open_preview(&alice, &sandbox, 8080, request).await.unwrap();
        let host = preview.url.strip_prefix("https://").unwrap().trim_end_matches('/').to_owned();
        let token = preview.token.unwrap_or_default();
        let mut headers = vec![("host", &*host)];
        if !public {
            headers.push(("sandbox-port-token", &*token));
        }
        let answer = world.with(Method::GET, "/", &headers, Value::Null).await;
        assert_eq!(
            (answer.status, &answer.body["kind"]),
            (502, &json!("port_closed")),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn what_a_client_takes_off_for_the_next_node_decides_nothing() {
    let world = World::new().await;
    let id = world.create(json!({})).await.id();
    let ask = async |connection: &str, path: &str| {
        let headers = [
            ("e2b-sandbox-id", &*id),
            ("e2b-sandbox-port", "8080"),
            ("sandboxctl-e2b-decided", "control"),
            ("connection", connection),
        ];
        world.with(Method::GET, path, &headers, Value::Null).await.status
    };
    assert_eq!(ask("close", "/e2b/sandboxes").await, 502);
    for connection in
        ["e2b-sandbox-id, e2b-sandbox-port", "close, E2b-Sandbox-Id", "e2b-sandbox-port"]
    {
        let path = format!("/e2b/sandboxes/{id}");
        for path in ["/e2b/sandboxes", "/e2b/envs", &path] {
            assert_eq!(ask(connection, path).await, 401, "{connection} {path}");
        }
    }
}
