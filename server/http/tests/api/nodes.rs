//! Several nodes: requests that are answered by another one than that which gets them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _, stream};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use sandbox_api::ByteSize;
use sandbox_api::attach::read_output_message;
use sandbox_api::service::{Subject, Time};
use sandbox_http::{
    Admit, Admitted, Caller, Endpoint, Http, HttpConfig, Listener, Mount, MountAccess, NewSandbox,
    Peer, PeerIdentity, Peers, Places, Refusal, Scope, Shutdown,
};
use sandbox_service::{Location, NodeSession, ServiceError, Target};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use tower::ServiceExt as _;

use super::{Answer, Api, CONTENT, Tokens, World, attach, request};

/// The key of the cluster.
pub(super) const KEY: [u8; 32] = [42; 32];
/// The pieces of a large body, and how many of them fit between a sender and a reader that waits.
const PIECE: usize = 64 << 10;
const PIECES: usize = 512;
const MOST_UNDER_WAY: usize = 400;

/// Which nodes there are, and what they have.
#[derive(Default)]
pub(super) struct Map {
    pub nodes: Vec<NodeSession>,
    pub at: Vec<(Target, i64)>,
    /// What a node sees of it once more, and then no more: the node, and where it sees something.
    pub stale: Vec<(i64, i64)>,
    /// How much later the clock of the cluster is.
    pub later: Duration,
}

/// The map as a node sees it.
struct View(i64, Arc<Mutex<Map>>);

impl Places for View {
    fn place<'a>(
        &'a self,
        _: &'a Subject,
        target: &'a Target,
    ) -> BoxFuture<'a, Result<Location, ServiceError>> {
        let mut map = self.1.lock().unwrap();
        let stale = map.stale.iter().position(|(viewer, _)| *viewer == self.0);
        let stale = stale.map(|at| map.stale.remove(at).1);
        let at = map.at.iter().find(|(it, _)| it == target).map(|(_, id)| *id);
        let at = stale.or(at);
        let location = match at {
            None => Location::Here,
            Some(id) if id == self.0 => Location::Here,
            Some(id) => match map.nodes.iter().find(|node| node.id == id) {
                Some(node) => Location::At(node.clone()),
                None => {
                    let retry_after = Duration::from_secs(15);
                    Location::Away { node: format!("node-{id}"), retry_after }
                }
            },
        };
        async { Ok(location) }.boxed()
    }

    fn ready_nodes(&self) -> BoxFuture<'_, Result<Vec<NodeSession>, ServiceError>> {
        let nodes = self.1.lock().unwrap().nodes.clone();
        async { Ok(nodes) }.boxed()
    }

    fn session(&self) -> Option<i64> {
        Some(self.0)
    }

    fn cluster_time(&self) -> Time {
        Time::now().after(self.1.lock().unwrap().later)
    }
}

/// A status, and a reason.
type Audited = (u16, Option<String>);

/// A node that others reach, and whose own callers ask its router.
pub(super) struct Node {
    pub api: Api,
    pub session: NodeSession,
    /// The status and the reason of each request that was refused.
    pub audit: Arc<Mutex<Vec<Audited>>>,
    http: Http,
    task: JoinHandle<()>,
}

impl Node {
    pub async fn start(map: &Arc<Mutex<Map>>, world: World, mount: Router) -> Self {
        let (max_request, access) = (ByteSize::b(u64::MAX), MountAccess::Scope(Scope::Sandboxes));
        let mount = Mount { path: "/mcp", service: mount, access, max_request };
        Self::start_with(map, world, vec![mount]).await
    }

    pub async fn start_with(map: &Arc<Mutex<Map>>, world: World, mounts: Vec<Mount>) -> Self {
        let identity = PeerIdentity::generate().unwrap();
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let id = map.lock().unwrap().nodes.len() as i64 + 1;
        let session = NodeSession {
            id,
            node: format!("node-{id}"),
            address: listener.endpoint().unwrap().to_string(),
            certificate: identity.digest(),
            slots: 8,
            name: String::new(),
            version: String::new(),
            running: 0,
            sandboxes: 0,
            config_digest: String::new(),
            is_draining: false,
            beat_age: Duration::ZERO,
        };
        map.lock().unwrap().nodes.push(session.clone());
        let peers = Peers::new(identity, &KEY, Arc::new(View(id, map.clone())));
        let audit = Arc::<Mutex<Vec<_>>>::default();
        let refused = audit.clone();
        let config = HttpConfig {
            hosts: vec!["api.example.org".to_owned()],
            peers: Some(peers),
            audit: Some(Arc::new(move |decision| {
                if decision.status >= 400 {
                    let reason = decision.reason.map(str::to_owned);
                    refused.lock().unwrap().push((decision.status, reason));
                }
            })),
            ..HttpConfig::default()
        };
        let (service, shutdown) = (world.service.clone(), Shutdown::default());
        let http = Http::new(config, service, Arc::new(Tokens), mounts, shutdown.clone());
        let task = tokio::spawn(http.serve_peers(listener));
        let api = Api { router: http.router(), world, shutdown };
        Self { api, session, audit, http, task }
    }

    /// The id of a sandbox of alice at this node, wherever there is more room.
    async fn sandbox(&self) -> String {
        let (alice, new) = (Subject::new("alice").unwrap(), json!({}));
        let new = serde_json::from_value(new).unwrap();
        let created = self.api.world.service.create_sandbox(&alice, new).await.unwrap();
        created.sandbox.id
    }

    /// Its connections break off, and nothing listens at its port any more.
    async fn die(&mut self) {
        self.api.shutdown.kill.cancel();
        self.api.shutdown.stop.cancel();
        (&mut self.task).await.unwrap();
    }

    /// How many requests were sent to another node with this result.
    async fn forwarded(&self, result: &str) -> u64 {
        self.figure(&format!("forwarded_requests_total{{result=\"{result}\"}}")).await
    }

    async fn figure(&self, name: &str) -> u64 {
        let admin = request(Method::GET, "/metrics");
        let mut admin = admin.body(Body::empty()).unwrap();
        admin.headers_mut().insert("authorization", "Bearer admin".parse().unwrap());
        let figures = self.api.send(admin).await.body;
        let name = format!("sandboxctl_{name} ");
        let figures = std::str::from_utf8(&figures).unwrap();
        let value = figures.lines().find_map(|line| line.strip_prefix(&name));
        value.map_or(0, |value| value.parse().unwrap())
    }
}

/// Two nodes. What is mounted answers at the second one.
pub(super) async fn two_nodes(mount: Router) -> (Node, Node, Arc<Mutex<Map>>) {
    let map = Arc::<Mutex<Map>>::default();
    let other = Router::new().route("/mcp", any(async || "the wrong node"));
    let gateway = Node::start(&map, World::new().await, other).await;
    let owner = Node::start(&map, World::new().await, mount).await;
    map.lock().unwrap().at.push((Target::Workspace, owner.session.id));
    (gateway, owner, map)
}

pub(super) fn nothing_mounted() -> Router {
    Router::new().route("/mcp", get(async || ""))
}

pub(super) fn has(map: &Mutex<Map>, target: Target, node: &Node) {
    let mut map = map.lock().unwrap();
    map.at.retain(|(it, _)| *it != target);
    map.at.push((target, node.session.id));
}

async fn until(condition: impl AsyncFn() -> bool) {
    let met = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), met).await.unwrap();
}

#[tokio::test]
async fn sandbox_is_used_through_the_node_that_does_not_have_it() {
    let (gateway, owner, map) = two_nodes(nothing_mounted()).await;
    let id = owner.sandbox().await;
    has(&map, Target::Sandbox(id.clone()), &owner);
    let path = format!("/v1/sandboxes/{id}");
    let api = &gateway.api;
    assert_eq!(api.get(&path).await.json(), owner.api.get(&path).await.json());
    let operation = json!({ "operation": "mkdir", "path": "a" });
    let answer = api.post(&format!("{path}/operations"), &operation).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["success"]), (200, &json!(false)));
    assert_eq!(answer.header("sandbox-generation"), "1");
    let read = api.get(&format!("{path}/files/dir/a%20b.csv")).await;
    assert_eq!((&read.body[..], read.header("content-type")), (CONTENT, "text/csv"));
    assert!(read.header("content-disposition").contains("a b.csv"), "{read:?}");
    let write = request(Method::PUT, &format!("{path}/files/a")).header("if-none-match", "*");
    let written = api.send(write.body("content".into()).unwrap()).await;
    assert_eq!(written.json()["bytes_written"], 7);
    let taken = request(Method::PUT, &format!("{path}/files/taken")).header("if-none-match", "*");
    assert_eq!(api.send(taken.body("content".into()).unwrap()).await.problem().status, 412);
    let run = api.post(&format!("{path}/executions?wait=60"), &json!({ "script": "log a" })).await;
    assert_eq!((run.status.as_u16(), &run.json()["status"]), (200, &json!("ok")));
    let extended = api.post(&format!("{path}/extend"), &json!({ "ttl_ms": 60_000 })).await;
    assert_eq!(extended.json()["id"], id);
    let answer = api.send(request(Method::DELETE, &path).body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, 204);
    assert_eq!(api.get(&path).await.problem().status, 410);
    assert_eq!(owner.api.get(&path).await.problem().status, 410);
    assert_eq!(gateway.api.world.launcher.launches.load(Ordering::SeqCst), 0);
    assert_eq!(gateway.forwarded("ok").await, 9);
}

#[tokio::test]
async fn caller_is_the_same_at_the_other_node() {
    let (gateway, owner, map) = two_nodes(nothing_mounted()).await;
    let id = owner.sandbox().await;
    has(&map, Target::Sandbox(id.clone()), &owner);
    let path = format!("/v1/sandboxes/{id}");
    let ask = async |token: &str| {
        let mut request = request(Method::GET, &path).body(Body::empty()).unwrap();
        let token = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", token);
        gateway.api.send(request).await
    };
    assert_eq!(ask("alice").await.status, 200);
    assert_eq!(ask("bob").await.problem().status, 404);
    // Not sent on at all.
    assert_eq!(ask("reader").await.problem().status, 403);
    assert_eq!(ask("nobody").await.problem().status, 401);
    assert_eq!(gateway.forwarded("ok").await, 2);
}

#[tokio::test]
async fn files_of_an_execution_come_from_its_node_in_parts_and_conditionally() {
    let (gateway, owner, map) = two_nodes(nothing_mounted()).await;
    let id = owner.api.run("log a").await;
    has(&map, Target::Files(id.clone()), &owner);
    let path = format!("/v1/executions/{id}");
    let list = gateway.api.get(&format!("{path}/files")).await;
    assert_eq!(list.json(), owner.api.get(&format!("{path}/files")).await.json());
    let ask = async |name: &str, value: &str| {
        let request = request(Method::GET, &format!("{path}/files/out.csv")).header(name, value);
        gateway.api.send(request.body(Body::empty()).unwrap()).await
    };
    let part = ask("range", "bytes=2-4").await;
    assert_eq!((part.status.as_u16(), &part.body[..]), (206, &CONTENT[2..5]));
    assert_eq!(part.header("content-range"), "bytes 2-4/16");
    let unchanged = ask("if-none-match", part.header("etag")).await;
    assert_eq!((unchanged.status.as_u16(), unchanged.body.len()), (304, 0));
    let archive = gateway.api.get(&format!("{path}/archive")).await;
    assert_eq!(archive.header("content-type"), "application/gzip");
    assert_eq!(archive.body, owner.api.get(&format!("{path}/archive")).await.body);
}

#[tokio::test]
async fn head_of_a_request_arrives_without_credentials_and_with_its_id() {
    let echo = any(async |headers: HeaderMap| {
        let shown =
            headers.iter().map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap()));
        shown.collect::<String>()
    });
    let (gateway, _owner, _map) = two_nodes(Router::new().route("/mcp", echo)).await;
    let request = request(Method::GET, "/mcp?a=b")
        .header("x-sandboxctl-forwarded", "mine")
        .header("x-request-id", "step-7")
        .header("connection", "x-private")
        .header("x-private", "1")
        .header("last-event-id", "9");
    let answer = gateway.api.router.clone().oneshot(request.body(Body::empty()).unwrap());
    let answer = answer.await.unwrap();
    assert_eq!(answer.headers()["x-request-id"], "step-7");
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let head = std::str::from_utf8(&body).unwrap();
    for there in ["x-request-id: step-7\n", "host: api.example.org\n", "last-event-id: 9\n"] {
        assert!(head.contains(there), "{head}");
    }
    for absent in ["authorization", "alice", "x-private", "mine"] {
        assert!(!head.contains(absent), "{head}");
    }
    assert_eq!(head.matches("x-sandboxctl-forwarded: v1 ").count(), 1, "{head}");
}

#[tokio::test]
async fn upload_that_is_not_read_waits_and_download_too() {
    let taken = Arc::new(tokio::sync::Semaphore::new(0));
    let go_on = taken.clone();
    let upload = post(async move |body: Body| {
        go_on.acquire().await.unwrap().forget();
        let mut bytes = 0;
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            bytes += piece.unwrap().len();
        }
        bytes.to_string()
    });
    let given = Arc::new(AtomicUsize::new(0));
    let count = given.clone();
    let download = upload.get(async move || Body::from_stream(pieces(count)));
    let (gateway, _owner, _map) = two_nodes(Router::new().route("/mcp", download)).await;

    let sent = Arc::new(AtomicUsize::new(0));
    let body = Body::from_stream(pieces(sent.clone()));
    // Not counted as JSON.
    let upload = request(Method::POST, "/mcp").header("content-type", "multipart/form-data");
    let upload = upload.body(body).unwrap();
    let upload = tokio::spawn(gateway.api.router.clone().oneshot(upload));
    settled(&sent).await;
    assert!(sent.load(Ordering::SeqCst) < MOST_UNDER_WAY, "{sent:?}");
    taken.add_permits(1);
    let answer = upload.await.unwrap().unwrap().into_body().collect().await.unwrap().to_bytes();
    assert_eq!(answer, (PIECES * PIECE).to_string());

    let download = request(Method::GET, "/mcp").body(Body::empty()).unwrap();
    let mut body = gateway.api.router.clone().oneshot(download).await.unwrap().into_body();
    let mut bytes = body.frame().await.unwrap().unwrap().into_data().unwrap().len();
    settled(&given).await;
    assert!(given.load(Ordering::SeqCst) < MOST_UNDER_WAY, "{given:?}");
    while let Some(frame) = body.frame().await {
        bytes += frame.unwrap().into_data().unwrap().len();
    }
    assert_eq!(bytes, PIECES * PIECE);
}

/// Pieces of a body, counted when they are taken.
fn pieces(
    count: Arc<AtomicUsize>,
) -> impl futures_util::Stream<Item = std::io::Result<Bytes>> + Send + 'static {
    stream::iter(0..PIECES).map(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(Bytes::from_static(&[7; PIECE]))
    })
}

/// Returns when a count does not change any more.
async fn settled(count: &AtomicUsize) {
    let mut last = usize::MAX;
    loop {
        let now = count.load(Ordering::SeqCst);
        if now == last && now > 0 {
            return;
        }
        last = now;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn connection_that_changes_its_protocol_is_passed_on() {
    let changes = get(async |mut request: Request| {
        assert_eq!(request.headers()["upgrade"], "echo");
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let (mut from, mut to) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
            tokio::io::copy(&mut from, &mut to).await.unwrap();
        });
        let headers = [("connection", "upgrade"), ("upgrade", "echo")];
        (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
    });
    let (gateway, _owner, _map) = two_nodes(Router::new().route("/mcp", changes)).await;
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let Some(Endpoint::Tcp(address)) = listener.endpoint() else { panic!() };
    let Node { http, .. } = gateway;
    tokio::spawn(http.serve(vec![listener], None));
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "GET /mcp HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer alice\r\n\
                connection: upgrade\r\nupgrade: echo\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
    for word in [&b"\x00\xff no http \r\n\r\n"[..], b"more"] {
        stream.write_all(word).await.unwrap();
        let mut echo = vec![0; word.len()];
        stream.read_exact(&mut echo).await.unwrap();
        assert_eq!(echo, word);
    }
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn client_is_attached_to_a_process_of_another_node() {
    let (gateway, owner, map) = two_nodes(nothing_mounted()).await;
    let id = owner.api.world.with_process("cat", None).await;
    has(&map, Target::Sandbox(id.clone()), &owner);
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let Some(Endpoint::Tcp(address)) = listener.endpoint() else { panic!() };
    let Node { http, api, .. } = gateway;
    tokio::spawn(http.serve(vec![listener], None));
    let path = format!("/v1/sandboxes/{id}/processes/1/attach?after=now");
    let page = [("sec-websocket-protocol", "sandboxctl.process.1, bearer.alice")];
    let stream = TcpStream::connect(address).await.unwrap();
    let mut socket = attach::ask(stream, &path, &page).await.unwrap();
    for word in [&b"one"[..], b"\xfftwo"] {
        socket.send(Message::binary(word)).await.unwrap();
        let Message::Binary(output) = attach::next(&mut socket).await else { panic!() };
        assert_eq!(read_output_message(&output).unwrap().2, word);
    }
    // What is refused there is refused here.
    let missing = format!("/v1/sandboxes/{id}/processes/9/attach");
    let stream = TcpStream::connect(address).await.unwrap();
    assert_eq!(attach::ask(stream, &missing, &page).await.err(), Some(404));
    let process = api.get(&format!("/v1/sandboxes/{id}/processes/1")).await;
    assert_eq!(process.json()["state"], "running");
}

#[tokio::test]
async fn request_is_sent_on_once_and_its_node_is_looked_up_once_more() {
    let (gateway, owner, map) = two_nodes(nothing_mounted()).await;
    let third = Node::start(&map, World::new().await, nothing_mounted()).await;
    let id = third.sandbox().await;
    has(&map, Target::Sandbox(id.clone()), &third);
    let stale = (gateway.session.id, owner.session.id);
    let path = format!("/v1/sandboxes/{id}/files/a");
    map.lock().unwrap().stale = vec![stale];
    assert_eq!(gateway.api.get(&path).await.status, 200);
    assert_eq!((gateway.forwarded("moved").await, gateway.forwarded("ok").await), (1, 1));
    map.lock().unwrap().stale = vec![stale; 2];
    let refused = gateway.api.get(&path).await;
    assert_eq!((refused.problem().status, refused.header("retry-after")), (503, "1"));
    // A body that the second node may have read is not sent again.
    map.lock().unwrap().stale = vec![stale];
    let write = request(Method::PUT, &path).body("content".into()).unwrap();
    assert_eq!(gateway.api.send(write).await.problem().status, 503);
    let misdirected = owner.audit.lock().unwrap().clone();
    assert_eq!(misdirected, vec![(421, None); 4]);
    assert_eq!(owner.forwarded("ok").await + owner.forwarded("moved").await, 0);
}

#[tokio::test]
async fn node_that_is_away_or_cannot_be_reached_is_said_so() {
    let (gateway, mut owner, map) = two_nodes(nothing_mounted()).await;
    let id = owner.sandbox().await;
    has(&map, Target::Sandbox(id.clone()), &owner);
    let path = format!("/v1/sandboxes/{id}/files/a");
    // Something else is at its address.
    map.lock().unwrap().nodes[1].certificate = [0; 32];
    let refused = gateway.api.get(&path).await;
    assert_eq!((refused.problem().status, refused.header("retry-after")), (503, "1"));
    assert_eq!(gateway.forwarded("unreachable").await, 2);
    map.lock().unwrap().nodes[1] = NodeSession { id: 77, ..owner.session.clone() };
    map.lock().unwrap().at.retain(|(it, _)| *it == Target::Workspace);
    map.lock().unwrap().at.push((Target::Sandbox(id.clone()), 77));
    owner.die().await;
    let refused = gateway.api.get(&path).await;
    assert_eq!((refused.problem().status, refused.header("retry-after")), (503, "1"));
    let write = request(Method::PUT, &path).body("content".into()).unwrap();
    assert_eq!(gateway.api.send(write).await.problem().status, 503);
    map.lock().unwrap().nodes.pop();
    let away = gateway.api.get(&path).await;
    assert_eq!((away.problem().status, away.header("retry-after")), (503, "15"));
    // What is in the store is answered from there: this node does not have it.
    assert_eq!(gateway.api.get(&format!("/v1/sandboxes/{id}")).await.problem().status, 404);
}

#[tokio::test]
async fn node_that_is_lost_before_it_answers_may_have_done_something() {
    let begun = Arc::new(tokio::sync::Notify::new());
    let notify = begun.clone();
    let never = post(async move || {
        notify.notify_one();
        std::future::pending::<Response>().await
    });
    let (gateway, mut owner, _map) = two_nodes(Router::new().route("/mcp", never)).await;
    let request = request(Method::POST, "/mcp").body(Body::from("x")).unwrap();
    let answer = tokio::spawn(gateway.api.router.clone().oneshot(request));
    begun.notified().await;
    owner.die().await;
    assert_eq!(answer.await.unwrap().unwrap().status(), 502);
    assert_eq!(gateway.forwarded("failed").await, 1);
}

#[tokio::test]
async fn connections_are_used_again() {
    let peer = any(async |request: Request| {
        let peer: Option<&Peer> = request.extensions().get();
        peer.unwrap().to_string()
    });
    let (gateway, _owner, _map) = two_nodes(Router::new().route("/mcp", peer)).await;
    let mut ports = std::collections::HashSet::new();
    for _ in 0..20 {
        let request = request(Method::GET, "/mcp").body(Body::empty()).unwrap();
        let answer = gateway.api.router.clone().oneshot(request).await.unwrap();
        ports.insert(answer.into_body().collect().await.unwrap().to_bytes());
        // The connection is idle a moment after its answer.
        tokio::task::yield_now().await;
    }
    assert!(ports.len() < 10, "{ports:?}");
}

/// A gateway whose store has what the owner's had: as in a shared database.
async fn gateway_with_the_store_of(owner: &Node, map: &Arc<Mutex<Map>>) -> Node {
    let dir = tempfile::tempdir().unwrap();
    let backup = dir.path().join("backup");
    owner.api.world.store.backup(&backup, &|| true).unwrap();
    sandbox_store::Store::restore(&dir.path().join("data"), &backup, &|| true).unwrap();
    Node::start(map, World::at(dir).await, nothing_mounted()).await
}

/// A node that runs an execution, and one that got the store when it had begun.
async fn while_it_runs() -> (Node, Node, Arc<Mutex<Map>>, String) {
    let map = Arc::<Mutex<Map>>::default();
    let owner = Node::start(&map, World::new().await, nothing_mounted()).await;
    let id = owner.api.begin("log-and-wait a").await;
    let path = format!("/v1/executions/{id}");
    until(async || owner.api.get(&path).await.json()["status"] == "running").await;
    has(&map, Target::Execution(id.clone()), &owner);
    let gateway = gateway_with_the_store_of(&owner, &map).await;
    (gateway, owner, map, id)
}

/// The answer to a request that is begun now.
fn ask(node: &Node, path: &str) -> JoinHandle<Answer> {
    let (router, request) = (node.api.router.clone(), request(Method::GET, path));
    tokio::spawn(async move {
        let (parts, body) =
            router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    })
}

#[tokio::test]
async fn wait_and_events_come_from_the_node_that_runs_it() {
    let (gateway, owner, _map, id) = while_it_runs().await;
    let wait = ask(&gateway, &format!("/v1/executions/{id}?wait=60"));
    let events = ask(&gateway, &format!("/v1/executions/{id}/events"));
    until(async || gateway.forwarded("ok").await >= 1).await;
    owner.api.world.finish();
    assert_eq!(wait.await.unwrap().json()["status"], "ok");
    let events = events.await.unwrap();
    let direct = owner.api.get(&format!("/v1/executions/{id}/events")).await;
    assert_eq!(events.body, direct.body);
}

#[tokio::test]
async fn events_and_wait_go_on_when_the_node_that_runs_it_dies() {
    let (gateway, mut owner, map, id) = while_it_runs().await;
    let path = format!("/v1/executions/{id}");
    let wait = ask(&gateway, &format!("{path}?wait=60"));
    let follow = request(Method::GET, &format!("{path}/events")).body(Body::empty()).unwrap();
    let mut stream = gateway.api.router.clone().oneshot(follow).await.unwrap().into_body();
    let mut text = String::new();
    while !text.contains("event: log") {
        let frame = stream.frame().await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
    }
    // The wait is there too, and the request of the figure.
    until(async || owner.figure("http_requests_in_flight").await == 2).await;
    map.lock().unwrap().at.clear();
    owner.die().await;
    let rest = stream.collect().await.unwrap().to_bytes();
    text.push_str(std::str::from_utf8(&rest).unwrap());
    let ids: Vec<u64> =
        text.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect();
    assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
    assert_eq!((&ids[..3], text.matches("event: end").count()), (&[1, 2, 3][..], 1), "{text}");
    assert!(text.trim_end().lines().last().unwrap().contains("killed"), "{text}");
    let waited = wait.await.unwrap();
    assert_eq!((waited.status.as_u16(), &waited.json()["status"]), (200, &json!("killed")));
}

#[tokio::test]
async fn cancel_reaches_the_node_that_runs_it_or_the_store() {
    let (gateway, mut owner, _map, id) = while_it_runs().await;
    let path = format!("/v1/executions/{id}");
    let cancel = async || {
        let request = request(Method::DELETE, &path).body(Body::empty()).unwrap();
        gateway.api.send(request).await
    };
    assert_eq!(cancel().await.status, 200);
    until(async || owner.api.get(&path).await.json()["status"] == "cancelled").await;
    owner.die().await;
    // The store of this node says that it was killed.
    assert_eq!(cancel().await.json()["status"], "killed");
}

#[tokio::test]
async fn new_sandbox_is_made_where_its_name_is_or_where_there_is_room() {
    let (gateway, owner, map) = two_nodes(nothing_mounted()).await;
    let launches = |node: &Node| node.api.world.launcher.launches.load(Ordering::SeqCst);
    map.lock().unwrap().nodes[0].running = 3;
    let named = json!({ "name": "notebook" });
    assert_eq!(gateway.api.post("/v1/sandboxes", &named).await.status, 201);
    assert_eq!((launches(&gateway), launches(&owner)), (0, 1));
    // The other one has more room now, but not the name.
    has(&map, Target::SandboxNamed("notebook".to_owned()), &owner);
    map.lock().unwrap().nodes[1].sandboxes = 5;
    assert_eq!(gateway.api.post("/v1/sandboxes", &named).await.status, 200);
    assert_eq!(gateway.api.post("/v1/sandboxes", &json!({})).await.status, 201);
    assert_eq!((launches(&gateway), launches(&owner)), (1, 1));
    // A mistake is refused wherever it arrives.
    assert_eq!(gateway.api.post("/v1/sandboxes", &json!({ "x": 1 })).await.problem().status, 422);
    assert_eq!(gateway.api.post_text("/v1/sandboxes", "{").await.problem().status, 400);
}

/// Lets everybody in, to make a sandbox of this name.
struct Makes;

impl Admit for Makes {
    fn route<'a>(&'a self, _: &'a str, _: &'a mut Parts) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(false))
    }

    fn admit<'a>(
        &'a self,
        head: &'a mut Parts,
        _: Peer,
    ) -> BoxFuture<'a, Result<Admitted, Response>> {
        let name = head.headers.get("x-name").map(|name| name.to_str().unwrap().to_owned());
        head.extensions.insert(NewSandbox { name });
        let subject = Subject::new("carol").unwrap();
        let caller = Some(Caller { subject, scopes: vec![Scope::Sandboxes] });
        let admitted = Admitted { caller, is_public: false, target: Target::Here };
        Box::pin(std::future::ready(Ok(admitted)))
    }

    fn refuse(&self, refusal: Refusal) -> Response {
        refusal.into_response()
    }
}

#[tokio::test]
async fn new_sandbox_of_a_mount_is_made_where_one_of_the_api_is() {
    let map = Arc::<Mutex<Map>>::default();
    let start = async |name: &'static str| {
        let answer = post(async move |body: Bytes| match &body[..] {
            b"full" if name == "owner" => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            _ => format!("{name} has {}", body.len()).into_response(),
        });
        let mount = Mount {
            path: "/own",
            service: Router::new().route("/own", answer),
            access: MountAccess::Own(Arc::new(Makes)),
            max_request: ByteSize::b(u64::MAX),
        };
        Node::start_with(&map, World::new().await, vec![mount]).await
    };
    let (gateway, owner) = (start("gateway").await, start("owner").await);
    let ask = async |name: Option<&str>, body: Vec<u8>| {
        let mut request = request(Method::POST, "/own");
        if let Some(name) = name {
            request = request.header("x-name", name);
        }
        let response = gateway.api.router.clone().oneshot(request.body(Body::from(body)).unwrap());
        let response = response.await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    map.lock().unwrap().nodes[0].running = 3;
    assert_eq!(ask(None, b"1234".to_vec()).await, (200, "owner has 4".to_owned()));
    // By its name.
    has(&map, Target::SandboxNamed("other".to_owned()), &owner);
    map.lock().unwrap().nodes[1].sandboxes = 5;
    assert_eq!(ask(Some("other"), b"12".to_vec()).await, (200, "owner has 2".to_owned()));
    map.lock().unwrap().nodes[1].sandboxes = 0;
    assert_eq!(ask(None, b"full".to_vec()).await, (200, "gateway has 4".to_owned()));
    assert_eq!(ask(None, vec![b' '; (1 << 20) + 1]).await.0, 413);
}

#[tokio::test]
async fn refused_sandbox_is_made_at_the_next_node() {
    let (gateway, owner, map) = two_nodes(nothing_mounted()).await;
    map.lock().unwrap().nodes[0].running = 3;
    let body = json!({});
    // Its engine does not answer.
    owner.api.world.launcher.failing.store(usize::MAX, Ordering::SeqCst);
    assert_eq!(gateway.api.post("/v1/sandboxes", &body).await.status, 201);
    assert_eq!(gateway.api.world.launcher.launches.load(Ordering::SeqCst), 1);
    gateway.api.world.launcher.failing.store(usize::MAX, Ordering::SeqCst);
    let refused = gateway.api.post("/v1/sandboxes", &body).await;
    assert_eq!(refused.problem().status, 503, "{refused:?}");
    // Nothing listens at either address.
    map.lock().unwrap().nodes.iter_mut().for_each(|node| {
        (node.id, node.address) = (node.id + 10, "127.0.0.1:1".to_owned());
    });
    assert_eq!(gateway.api.post("/v1/sandboxes", &body).await.problem().status, 503);
}
