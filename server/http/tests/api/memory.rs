//! What one subject can take of the memory for bodies: counted, not timed.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http_body_util::BodyExt as _;
use sandbox_api::{ByteSize, Problem};
use sandbox_http::{Http, HttpConfig, Mount, MountAccess, Peer, Scope, Shutdown};
use serde_json::json;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

use super::{Api, Tokens, World, api, api_with, hold_clock, request};

const MIB: usize = 1 << 20;

fn small_memory() -> HttpConfig {
    HttpConfig { body_memory: ByteSize::b(4 << 20), ..HttpConfig::default() }
}

fn of(subject: &str, method: Method, path: &str) -> axum::http::request::Builder {
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "127.0.0.1")
        .header("authorization", format!("Bearer {subject}"))
        .header("content-type", "application/json")
        .extension(Peer::Tcp(([127, 0, 0, 1], 7).into()))
}

/// A body with metadata of so many bytes, in pieces, and how many of them were read. Without an end it stays
/// away.
fn script(bytes: usize, ends: bool) -> (Body, Arc<AtomicUsize>) {
    let read = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&read);
    let piece = Bytes::from(vec![b'x'; 10 << 10]);
    let pieces = std::iter::repeat_n(piece, bytes.div_ceil(10 << 10));
    let first = stream::iter([Bytes::from_static(br#"{"script":"return 1","metadata":{"a":""#)]);
    let text = first.chain(stream::iter(pieces)).map(move |piece| {
        counter.fetch_add(piece.len(), Ordering::Relaxed);
        piece
    });
    let all = match ends {
        true => text.chain(stream::iter([Bytes::from_static(b"\"}}")])).boxed(),
        false => text.chain(stream::pending()).boxed(),
    };
    (Body::from_stream(all.map(Ok::<_, Infallible>)), read)
}

async fn status(router: &Router, request: Request<Body>) -> StatusCode {
    router.clone().oneshot(request).await.unwrap().status()
}

/// Uploads of alice that have sent so much and then nothing more.
async fn stalled(
    router: &Router,
    path: &str,
    uploads: usize,
    sent: usize,
) -> Vec<JoinHandle<StatusCode>> {
    let mut tasks = Vec::new();
    for _ in 0..uploads {
        let (body, read) = script(sent, false);
        let request = of("alice", Method::POST, path).header("content-length", 40 * MIB);
        let (router, request) = (router.clone(), request.body(body).unwrap());
        tasks.push(tokio::spawn(async move { status(&router, request).await }));
        while read.load(Ordering::Relaxed) < sent {
            tokio::task::yield_now().await;
        }
    }
    tasks
}

#[tokio::test]
async fn json_of_many_values_is_413_before_its_end() {
    let api = api().await;
    let read = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&read);
    let head = Bytes::from_static(br#"{"script":"return 1","args":{"a":["#);
    let zeros = std::iter::repeat_n(Bytes::from(b"0,".repeat(16 << 10)), 42 * 32);
    let body = stream::iter(std::iter::once(head).chain(zeros)).map(move |piece| {
        counter.fetch_add(piece.len(), Ordering::Relaxed);
        Ok::<_, Infallible>(piece)
    });
    let request =
        request(Method::POST, "/v1/executions").header("content-type", "application/json");
    let answer = api.send(request.body(Body::from_stream(body)).unwrap()).await;
    assert_eq!(answer.problem().status, 413);
    let read = read.load(Ordering::Relaxed);
    assert!(read <= MIB + (32 << 10), "{read} bytes were read");
    // As many as the arguments of a script can have are read.
    let args = format!(r#"{{"script":"return 1","args":{{"a":[{}0]}}}}"#, "0,".repeat(499_000));
    assert_eq!(api.post_text("/v1/executions", &args).await.status, 202);
}

#[tokio::test(start_paused = true)]
async fn slow_uploads_of_one_subject_hold_up_no_other() {
    let Api { router, world: _world, .. } = api_with(small_memory()).await;
    let held = hold_clock();
    // They take what has arrived of them: not what they say they will send.
    let begun = stalled(&router, "/v1/executions", 10, 100 << 10).await;
    let (body, _) = script(MIB, true);
    let request = of("alice", Method::POST, "/v1/executions").body(body).unwrap();
    assert_eq!(status(&router, request).await, 202);
    drop(held);
    begun.iter().for_each(JoinHandle::abort);
    for task in begun {
        assert!(task.await.unwrap_err().is_cancelled());
    }
    // And at most the share of their subject.
    let _full = stalled(&router, "/v1/executions", 1, MIB * 3 / 2).await;
    for (subject, expected) in [("alice", 429), ("bob", 202)] {
        let (body, _) = script(MIB, true);
        let request = of(subject, Method::POST, "/v1/executions").body(body).unwrap();
        let _held = (expected == 202).then(hold_clock);
        assert_eq!(status(&router, request).await, expected, "{subject}");
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_of_what_is_mounted_are_in_the_same_memory() {
    // It answers what it makes of a body that breaks off.
    let read = async |body: Body| match body.collect().await {
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let service = Router::new().route("/mcp", post(read));
    let max_request = ByteSize::b(2 << 20);
    let mount =
        Mount { path: "/mcp", service, access: MountAccess::Scope(Scope::Sandboxes), max_request };
    let World { service, _dir, .. } = World::new().await;
    let http =
        Http::new(small_memory(), service, Arc::new(Tokens), vec![mount], Shutdown::default());
    let router = http.router();
    let send = async |subject: &str| {
        let (body, _) = script(MIB, true);
        let request = of(subject, Method::POST, "/mcp").body(body).unwrap();
        router.clone().oneshot(request).await.unwrap()
    };
    assert_eq!(send("alice").await.status(), 200);
    let (body, read) = script(MIB, true);
    let request = of("alice", Method::POST, "/mcp").header("content-length", 2 * MIB + 1);
    assert_eq!(status(&router, request.body(body).unwrap()).await, 413);
    assert_eq!(read.load(Ordering::Relaxed), 0);
    let (body, _) = script(MIB * 3 / 2, false);
    let request = of("alice", Method::POST, "/v1/executions").body(body).unwrap();
    let _full = tokio::spawn({
        let router = router.clone();
        async move { status(&router, request).await }
    });
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let refused = problem(send("alice").await).await;
    assert_eq!(refused.status, 429);
    assert_eq!(send("bob").await.status(), 200);
}

async fn problem(response: Response) -> Problem {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

/// A request whose execution is large.
fn large(subject: &str, path: &str) -> Request<Body> {
    let body = json!({ "script": "return 1", "metadata": { "a": "x".repeat(MIB) } });
    of(subject, Method::POST, path).body(Body::from(body.to_string())).unwrap()
}

/// The id of an execution that is large.
async fn large_execution(api: &Api, subject: &str) -> String {
    let accepted = api.router.clone().oneshot(large(subject, "/v1/executions")).await.unwrap();
    let accepted = accepted.into_body().collect().await.unwrap().to_bytes();
    let accepted: serde_json::Value = serde_json::from_slice(&accepted).unwrap();
    accepted["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn execution_that_ended_is_not_refused_for_want_of_memory() {
    let api = api_with(small_memory()).await;
    let send = async |request| api.router.clone().oneshot(request).await.unwrap();
    let path = "/v1/executions?wait=60";
    let unread = [send(large("alice", path)).await, send(large("alice", path)).await];
    assert!(unread.iter().all(|response| response.status() == 200));
    let accepted = send(large("alice", path)).await;
    let runs = api.world.launcher.runs.load(Ordering::SeqCst);
    assert_eq!((accepted.status().as_u16(), runs), (202, 3));
    let location = accepted.headers()["location"].to_str().unwrap().to_owned();
    assert!(!accepted.headers().contains_key("retry-after"));
    drop(unread);
    let request = of("alice", Method::GET, &location).body(Body::empty()).unwrap();
    assert_eq!(send(request).await.status(), 200);
}

#[tokio::test]
async fn piece_of_a_stream_waits_for_memory() {
    let stream = async || {
        let pieces = [Bytes::from(vec![b'x'; MIB]), Bytes::from(vec![b'y'; MIB])];
        Body::from_stream(stream::iter(pieces).map(Ok::<_, Infallible>))
    };
    let service = Router::new().route("/mcp", post(stream));
    let mount = Mount {
        path: "/mcp",
        service,
        access: MountAccess::Scope(Scope::Sandboxes),
        max_request: ByteSize::b(1000),
    };
    let World { service, _dir, .. } = World::new().await;
    let http =
        Http::new(small_memory(), service, Arc::new(Tokens), vec![mount], Shutdown::default());
    let router = http.router();
    let begin = async || {
        let request = of("alice", Method::POST, "/mcp").body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().into_body()
    };
    let mut unread = [begin().await, begin().await];
    for body in &mut unread {
        body.frame().await.unwrap().unwrap();
    }
    let mut waits = std::pin::pin!(begin().await.collect());
    assert!((&mut waits).now_or_never().is_none());
    drop(unread);
    assert_eq!(waits.await.unwrap().to_bytes().len(), 2 * MIB);
}

#[tokio::test]
async fn unread_answers_use_the_share_of_their_subject() {
    let api = api_with(small_memory()).await;
    let get = async |subject: &str, id: &str| {
        let path = format!("/v1/executions/{id}");
        let request = of(subject, Method::GET, &path).body(Body::empty()).unwrap();
        api.router.clone().oneshot(request).await.unwrap()
    };
    let ids = [large_execution(&api, "alice").await, large_execution(&api, "bob").await];
    let unread = [get("alice", &ids[0]).await, get("alice", &ids[0]).await];
    assert!(unread.iter().all(|response| response.status() == 200));
    assert_eq!(get("alice", &ids[0]).await.status(), 429);
    assert_eq!(get("bob", &ids[1]).await.status(), 200);
    let [first, second] = unread;
    // The memory of one that is read is held up to its last piece.
    let mut body = first.into_body();
    let (mut bytes, whole) = (0, hyper::body::Body::size_hint(&body).exact().unwrap());
    while let Some(frame) = body.frame().await {
        let piece = frame.unwrap().into_data().unwrap().len();
        assert!(piece <= 64 << 10, "{piece}");
        bytes += piece as u64;
    }
    assert_eq!(bytes, whole);
    drop(body);
    assert_eq!(get("alice", &ids[0]).await.status(), 200);
    drop(second);
}
