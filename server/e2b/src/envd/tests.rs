//! A sandbox's routes over a service without containers.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE};
use axum::response::Response;
use axum::{Extension, Router};
use futures_util::{StreamExt as _, stream};
use sandbox_api::Processes;
use sandbox_api::service::{KeptSpec, SandboxRef, SandboxRequest, Subject};
use sandbox_service::fake::{self, FakeLauncher};
use sandbox_service::{IoPosture, Service, ServiceConfig};
use sandbox_store::{Durability, Store};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::gzip::gzipped;
use super::*;
use crate::connect::envelope;
use crate::connect::tests::messages;
use crate::settings::Settings;

/// A sandbox and its routes.
struct World {
    router: Router,
    service: Service,
    caller: EnvdCaller,
    _dir: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = ServiceConfig::new(dir.path().join("data"));
        config.io = IoPosture::PrivatePerExecution;
        config.allowed_images = vec!["debian:13".to_owned()];
        // Of one process, by the server's own measure.
        config.kept.output = config.kept.scrollback;
        let launcher = Arc::<FakeLauncher>::default();
        *launcher.content.lock().unwrap() = Some(b"0123456789");
        let store = Store::open(&config.data_dir, Durability::Process).unwrap();
        let service = fake::start(config, launcher, store).await.unwrap();
        let subject = Subject::new("me").unwrap();
        let spec = KeptSpec {
            image: Some("debian:13".to_owned()),
            processes: Processes::Kept,
            env: [("COLOUR".to_owned(), "red".into())].into(),
            ..KeptSpec::default()
        };
        let request = SandboxRequest { spec, ..SandboxRequest::default() };
        let id = service.create_sandbox(&subject, request).await.unwrap().sandbox.id;
        let caller = EnvdCaller { subject, sandbox: SandboxRef { id, generation: None } };
        let app = App::new(service.clone(), Settings::default(), CancellationToken::new());
        let router = router().layer(Extension(caller.clone())).with_state(app);
        Self { router, service, caller, _dir: dir }
    }

    async fn send(&self, request: Request) -> Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn unary(&self, method: &str, message: Value) -> (u16, Value) {
        let request = Request::post(format!("/{method}"))
            .header(CONTENT_TYPE, "application/json")
            .header(CONTENT_ENCODING, "identity")
            .body(Body::from(message.to_string()));
        json_of(self.send(request.unwrap()).await).await
    }

    /// A stream that has begun.
    async fn stream(&self, method: &str, timeout_ms: u64, stream: &[Value]) -> Response {
        let body = stream.iter().map(|it| envelope::message(it.to_string().as_bytes()).to_vec());
        let package =
            if method == "WatchDir" { "filesystem.Filesystem" } else { "process.Process" };
        let request = Request::post(format!("/{package}/{method}"))
            .header(CONTENT_TYPE, "application/connect+json")
            .header("connect-timeout-ms", timeout_ms)
            .header("keepalive-ping-interval", "50");
        self.send(request.body(Body::from(body.collect::<Vec<_>>().concat())).unwrap()).await
    }

    async fn start(&self, line: &str, stdin: bool) -> Response {
        let (cmd, args) = line.split_once(' ').unwrap_or((line, ""));
        let args: Vec<_> = args.split(' ').filter(|it| !it.is_empty()).collect();
        let start = json!({ "process": { "cmd": cmd, "args": args }, "stdin": stdin });
        self.stream("Start", 0, &[start]).await
    }

    async fn pids(&self) -> Vec<Value> {
        let (status, list) = self.unary("process.Process/List", json!({})).await;
        assert_eq!(status, 200);
        list["processes"].as_array().unwrap().iter().map(|it| it["pid"].clone()).collect()
    }
}

async fn json_of(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

fn start_of(pid: u32) -> Value {
    json!({ "event": { "start": { "pid": pid } } })
}

fn data(text: &str) -> Value {
    json!({ "event": { "data": { "stdout": STANDARD.encode(text) } } })
}

fn end() -> Value {
    json!({ "event": { "end": { "exitCode": 0, "exited": true, "status": "exit status 0" } } })
}

#[tokio::test]
async fn a_process_is_streamed_from_its_start_to_its_end() {
    let world = World::new().await;
    let (found, last) = messages(world.start("echo a b", false).await).await;
    assert_eq!(found, [start_of(101), data("a"), data("b"), end()]);
    assert_eq!(last, json!({}));
    // What it leaves behind is not waited for once its output is closed.
    let (found, _) = messages(world.start("leave", false).await).await;
    assert_eq!(found, [start_of(102), end()]);
    assert_eq!(world.pids().await, Vec::<Value>::new());
    let (found, last) = messages(world.stream("Start", 0, &[json!({ "process": {} })]).await).await;
    assert!(found.is_empty());
    assert_eq!(last["error"]["code"], "invalid_argument");
}

#[tokio::test]
async fn processes_count_with_the_little_output_that_is_kept_of_them() {
    let world = World::new().await;
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(world.start("sleep", false).await);
    }
    assert_eq!(world.pids().await.len(), 16);
    let (found, last) = messages(world.start("sleep", false).await).await;
    assert!(found.is_empty());
    assert_eq!(last["error"]["code"], "resource_exhausted");
}

#[tokio::test]
async fn input_reaches_a_process_until_it_is_closed() {
    let world = World::new().await;
    let cat = world.start("cat", true).await;
    let process = json!({ "pid": 101 });
    let input = json!({ "process": process, "input": { "stdin": STANDARD.encode("one") } });
    assert_eq!(world.unary("process.Process/SendInput", input).await, (200, json!({})));
    let more = [
        json!({ "start": { "process": process } }),
        json!({ "data": { "input": { "stdin": STANDARD.encode("two") } } }),
        json!({ "keepalive": {} }),
    ];
    let (answer, last) = messages(world.stream("StreamInput", 0, &more).await).await;
    assert_eq!((answer, last), (vec![json!({})], json!({})));
    let (early, last) = messages(world.stream("StreamInput", 0, &more[1..]).await).await;
    assert!(early.is_empty());
    assert_eq!(last["error"]["code"], "invalid_argument");
    let close = json!({ "process": process });
    assert_eq!(world.unary("process.Process/CloseStdin", close).await, (200, json!({})));
    let (found, _) = messages(cat).await;
    assert_eq!(found, [start_of(101), data("one"), data("two"), end()]);
    // What has ended is not found, though it never had a stdin.
    let (found, _) = messages(world.start("echo", false).await).await;
    assert_eq!(found, [start_of(102), end()]);
    let input = json!({ "process": { "pid": 102 }, "input": { "stdin": STANDARD.encode("x") } });
    let (status, error) = world.unary("process.Process/SendInput", input).await;
    assert_eq!((status, &error["code"]), (404, &json!("not_found")));
}

#[tokio::test]
async fn a_client_that_goes_away_ends_nothing() {
    let world = World::new().await;
    drop(world.start("sleep", false).await);
    assert_eq!(world.pids().await, [101]);
    let process = json!({ "pid": 101 });
    let about = [json!({ "process": process })];
    let again = world.stream("Connect", 0, &about).await;
    let kill = json!({ "process": process, "signal": "SIGNAL_SIGKILL" });
    assert_eq!(world.unary("process.Process/SendSignal", kill.clone()).await.0, 200);
    let (found, _) = messages(again).await;
    assert_eq!(found[0], start_of(101));
    let killed = &found[1]["event"]["end"];
    assert_eq!((&killed["exitCode"], &killed["status"]), (&json!(-1), &json!("signal: killed")));
    let (status, error) = world.unary("process.Process/SendSignal", kill).await;
    assert_eq!((status, &error["code"]), (404, &json!("not_found")));
    // It is remembered for a while.
    let (late, last) = messages(world.stream("Connect", 0, &about).await).await;
    assert_eq!((late.len(), last), (2, json!({})));
    let (_, last) =
        messages(world.stream("Connect", 0, &[json!({ "process": { "pid": 7 } })]).await).await;
    assert_eq!(last["error"]["code"], "not_found");
}

#[tokio::test]
async fn a_list_has_what_a_process_was_started_with() {
    let world = World::new().await;
    let config =
        json!({ "cmd": "sleep", "args": ["a b", "", "c"], "envs": { "A": "b c" }, "cwd": "/tmp" });
    let start = json!({ "process": config, "tag": "mine" });
    drop(world.stream("Start", 0, &[start]).await);
    let (_, list) = world.unary("process.Process/List", json!({})).await;
    assert_eq!(list, json!({ "processes": [{ "config": config, "pid": 101, "tag": "mine" }] }));
}

#[tokio::test]
async fn a_stream_ends_at_its_timeout_and_with_its_sandbox() {
    let world = World::new().await;
    let sleep = json!({ "process": { "cmd": "sleep" }, "tag": "slow" });
    let (found, last) = messages(world.stream("Start", 20, &[sleep]).await).await;
    assert_eq!(found, [start_of(101)]);
    assert_eq!(last["error"]["code"], "deadline_exceeded");
    let by_tag = world.stream("Connect", 0, &[json!({ "process": { "tag": "slow" } })]).await;
    let (caller, service) = (&world.caller, &world.service);
    service.delete_sandbox(&caller.subject, &caller.sandbox.id).await.unwrap();
    let (_, last) = tokio::time::timeout(Duration::from_secs(10), messages(by_tag)).await.unwrap();
    assert_eq!(last["error"]["code"], "unavailable");
    // SDKs up to 2.45 look for these words.
    assert!(
        last["error"]["message"].as_str().unwrap().contains("killed or reached its end of life")
    );
}

#[tokio::test]
async fn what_is_not_offered_is_answered_at_once() {
    let world = World::new().await;
    for method in
        ["process.Process/Freeze", "filesystem.Filesystem/Mount", "filesystem.Filesystem/x"]
    {
        let (status, error) = world.unary(method, json!({})).await;
        assert_eq!((status, &error["code"]), (501, &json!("unimplemented")), "{method}");
    }
    let init = Request::post("/init").body(Body::empty()).unwrap();
    assert_eq!(json_of(world.send(init).await).await.0, 501);
    let wrong = [
        (Request::get("/process.Process/Start"), 405),
        (Request::put("/files?path=a"), 405),
        (Request::post("/process.Process/%ff"), 400),
        (Request::post("/filesystem.Filesystem/%ff"), 400),
        (Request::get("/files?path=a&path=b"), 400),
        (Request::post("/files?path=a&path=b"), 400),
    ];
    for (request, status) in wrong {
        let answer = json_of(world.send(request.body(Body::empty()).unwrap()).await).await;
        assert_eq!((answer.0, &answer.1["code"]), (status, &json!(status)), "{answer:?}");
        assert!(answer.1["message"].is_string(), "{answer:?}");
    }
    let health = Request::get("/health").body(Body::empty()).unwrap();
    assert_eq!(json_of(world.send(health).await).await.0, 204);
    let stat = json!({ "path": "a.txt" });
    let (status, error) = world.unary("filesystem.Filesystem/Stat", stat).await;
    assert_eq!((status, &error["code"]), (404, &json!("not_found")));
    let nobody = format!("Basic {}", STANDARD.encode("nobody:"));
    let envs = Request::get("/envs").header(AUTHORIZATION, nobody).body(Body::empty()).unwrap();
    assert_eq!(json_of(world.send(envs).await).await.0, 401);
}

#[tokio::test]
async fn a_directory_is_watched_by_a_stream_or_a_watcher() {
    let world = World::new().await;
    let event = json!({ "name": "out.txt", "type": "EVENT_TYPE_WRITE" });
    let asked = json!({ "path": "/home/user", "includeEntry": true });
    let asked_once = std::slice::from_ref(&asked);
    let unbounded = world.stream("WatchDir", 0, asked_once).await.into_body().into_data_stream();
    let begun = unbounded.take(2).map(|message| {
        serde_json::from_slice::<Value>(&message.unwrap()[envelope::HEAD..]).unwrap()
    });
    let begun: Vec<_> = begun.collect().await;
    assert_eq!(begun, [json!({ "start": {} }), json!({ "filesystem": event })]);
    let (found, last) = messages(world.stream("WatchDir", 20, asked_once).await).await;
    assert_eq!(found[0], json!({ "start": {} }));
    assert_eq!(last["error"]["code"], "deadline_exceeded");
    let call = async |method: &str, message: Value| {
        world.unary(&format!("filesystem.Filesystem/{method}"), message).await
    };
    let (status, created) = call("CreateWatcher", asked).await;
    assert_eq!(status, 200);
    let events = call("GetWatcherEvents", created.clone()).await;
    assert_eq!(events, (200, json!({ "events": [event] })));
    let events = call("GetWatcherEvents", created.clone()).await;
    assert_eq!(events, (200, json!({ "events": [] })));
    assert_eq!(call("RemoveWatcher", created.clone()).await, (200, json!({})));
    for method in ["GetWatcherEvents", "RemoveWatcher"] {
        let (status, error) = call(method, created.clone()).await;
        assert_eq!((status, &error["code"]), (404, &json!("not_found")), "{method}");
    }
}

#[tokio::test]
async fn a_sandbox_says_what_it_uses_and_what_its_environment_is() {
    let world = World::new().await;
    let get = |path| Request::get(path).body(Body::empty()).unwrap();
    let envs = json_of(world.send(get("/envs")).await).await;
    assert_eq!(envs, (200, json!({ "COLOUR": "red" })));
    let (status, metrics) = json_of(world.send(get("/metrics")).await).await;
    assert_eq!(status, 200);
    assert_eq!((&metrics["cpu_used_pct"], &metrics["mem_used"]), (&json!(25.0), &json!(1 << 20)));
    assert!(metrics["mem_total"].as_u64() > metrics["mem_used"].as_u64());
}

#[tokio::test]
async fn files_are_uploaded_in_parts_or_as_they_are() {
    let world = World::new().await;
    let upload = async |query: &str, media_type: &str, encoding: &str, body: Body| {
        let request = Request::post(format!("/files{query}"))
            .header(CONTENT_TYPE, media_type)
            .header(CONTENT_ENCODING, encoding);
        json_of(world.send(request.body(body).unwrap()).await).await
    };
    let file = |path: &str, name: &str| json!({ "path": path, "name": name, "type": "file" });
    let (octets, form) = ("application/octet-stream", "multipart/form-data; boundary=x");
    let part = |name: &str| {
        format!("--x\r\ncontent-disposition: form-data; name=\"file\"{name}\r\n\r\nabc\r\n")
    };
    let two = ["; filename=\"a/b.txt\"", "; filename=\"/tmp/c\""].map(part).concat() + "--x--\r\n";
    let answer = upload("", form, "identity", two.clone().into()).await;
    assert_eq!(answer, (200, json!([file("/home/user/a/b.txt", "b.txt"), file("/tmp/c", "c")])));
    let (status, error) = upload("?path=x", form, "identity", two.into()).await;
    assert_eq!((status, &error["code"]), (400, &json!(400)));
    let unnamed = part("") + "--x--\r\n";
    let answer = upload("?path=n&username=root", form, "identity", unnamed.clone().into()).await;
    assert_eq!(answer, (200, json!([file("/root/n", "n")])));
    assert_eq!(upload("", form, "identity", unnamed.into()).await.0, 400);
    let plain = upload("?path=p.bin", octets, "identity", "abc".into()).await;
    assert_eq!(plain, (200, json!([file("/home/user/p.bin", "p.bin")])));
    let made = gzipped(stream::iter([Ok("abc".into())])).collect::<Vec<_>>().await;
    let made: Vec<u8> = made.into_iter().flat_map(|it| it.unwrap().to_vec()).collect();
    assert_eq!(upload("?path=z", octets, "gzip", made.into()).await.0, 200);
    assert_eq!(upload("?path=z", octets, "gzip", "abc".into()).await.0, 400);
    assert_eq!(upload("?path=z", octets, "br", "abc".into()).await.0, 400);
    assert_eq!(upload("", octets, "identity", "abc".into()).await.0, 400);
    assert_eq!(upload("?path=z&username=me", octets, "identity", "abc".into()).await.0, 401);
    let get = Request::get("/files?path=none").body(Body::empty()).unwrap();
    let (status, error) = json_of(world.send(get).await).await;
    assert_eq!(
        (status, error["message"].as_str()),
        (404, Some("path '/home/user/none' does not exist"))
    );
}

#[tokio::test]
async fn file_of_the_kernels_is_read_by_a_command_and_missing_where_nothing_is_printed() {
    let world = World::new().await;
    let get = Request::get("/files?path=/proc/version").body(Body::empty()).unwrap();
    let read = world.send(get).await;
    assert_eq!(
        (read.status(), &read.headers()["content-disposition"]),
        (StatusCode::OK, &"attachment".parse().unwrap())
    );
    let content = axum::body::to_bytes(read.into_body(), 1 << 20).await.unwrap();
    assert_eq!(&content[..], b"/proc/version");
    for method in ["Stat", "ListDir"] {
        let asked = json!({ "path": "/proc/nothing" });
        let (status, error) = world.unary(&format!("filesystem.Filesystem/{method}"), asked).await;
        assert_eq!((status, &error["code"]), (404, &json!("not_found")), "{method}");
    }
}

#[test]
fn the_user_is_that_of_the_basic_header() {
    let of = |text: &str| user_of(format!("Basic {}", STANDARD.encode(text)).as_bytes());
    assert_eq!(of("root:").as_deref(), Some("root"));
    assert_eq!((of(":x"), of("root"), user_of(b"Bearer x")), (None, None, None));
    assert_eq!(user_of("Bäsic x".as_bytes()), None);
}
