//! Processes of kept sandboxes, and what else is reported of these.

use std::time::Duration;

use axum::body::Body;
use axum::http::Method;
use http_body_util::BodyExt as _;
use sandbox_api::ProblemKind;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::events::messages;
use super::{Answer, Api, api, request};

impl Api {
    /// The path of a sandbox that keeps processes.
    async fn living(&self) -> String {
        let spec = json!({ "spec": { "image": "debian:13", "processes": "kept" } });
        let answer = self.post("/v1/sandboxes", &spec).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        format!("/v1/sandboxes/{}", answer.json()["id"].as_str().unwrap())
    }

    /// Starts a process there, and gives its path.
    async fn start(&self, sandbox: &str, request: &Value) -> String {
        let answer = self.post(&format!("{sandbox}/processes"), request).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        let path = format!("{sandbox}/processes/{}", answer.json()["id"]);
        assert_eq!(answer.header("location"), path);
        path
    }

    async fn delete(&self, path: &str) -> Answer {
        self.send(request(Method::DELETE, path).body(Body::empty()).unwrap()).await
    }

    async fn send_bytes(&self, path: &str, bytes: &'static str) -> Answer {
        self.send(request(Method::POST, path).body(bytes.into()).unwrap()).await
    }
}

fn shell(line: &str) -> Value {
    json!({ "command": { "shell": line } })
}

fn cat() -> Value {
    json!({ "command": { "shell": "cat" }, "stdin": true, "tag": "echo" })
}

#[tokio::test]
async fn process_lives_on_takes_input_and_ends() {
    let api = api().await;
    let sandbox = api.living().await;
    let process = api.start(&sandbox, &cat()).await;
    let found = api.get(&process).await;
    assert_eq!(found.header("sandbox-generation"), "1");
    assert_eq!(
        (&found.json()["state"], &found.json()["exit_code"]),
        (&json!("running"), &Value::Null)
    );
    assert_eq!(api.send_bytes(&format!("{process}/stdin"), "ab\n").await.status, 204);
    assert_eq!(api.send_bytes(&format!("{process}/stdin"), "").await.status, 204);
    assert_eq!(api.send_bytes(&format!("{process}/stdin/close"), "").await.status, 204);
    let ended = api.get(&format!("{process}?wait=60")).await.json();
    assert_eq!((&ended["state"], &ended["exit_code"]), (&json!("ended"), &json!(0)));
    let events = api.get(&format!("{process}/events")).await;
    let events = messages(std::str::from_utf8(&events.body).unwrap());
    let names: Vec<_> = events.iter().map(|(id, event, _)| (&**id, &**event)).collect();
    assert_eq!(names, [("1", "start"), ("2", "output"), ("3", "exit"), ("4", "end")]);
    assert_eq!(events[1].2["text"], "ab\n");
    assert_eq!(events[2].2["exit_code"], 0);
    assert_eq!(events[3].2["document"]["state"], "ended");
    // What has ended takes nothing any more.
    for path in ["stdin", "stdin/close"] {
        let problem = api.send_bytes(&format!("{process}/{path}"), "x").await.problem();
        assert_eq!((problem.status, problem.kind), (409, ProblemKind::ProcessEnded), "{path}");
    }
    let signal = api.post(&format!("{process}/signal"), &json!({ "signal": "TERM" })).await;
    assert_eq!(signal.problem().kind, ProblemKind::ProcessEnded);
    assert_eq!(api.delete(&process).await.status, 200);
}

#[tokio::test]
async fn processes_are_listed_by_state_and_tag_and_stopped() {
    let api = api().await;
    let sandbox = api.living().await;
    let listed = async |query: &str| {
        let list = api.get(&format!("{sandbox}/processes{query}")).await.json();
        let ids = list["processes"].as_array().unwrap().iter().map(|it| it["id"].as_u64().unwrap());
        ids.collect::<Vec<_>>()
    };
    assert!(listed("").await.is_empty());
    let sleep = api.start(&sandbox, &shell("sleep")).await;
    api.start(&sandbox, &shell("exit 3")).await;
    let echo = api.start(&sandbox, &cat()).await;
    assert_eq!(listed("").await, [3, 2, 1]);
    assert_eq!(listed("?state=running").await, [3, 1]);
    assert_eq!(listed("?state=ended").await, [2]);
    assert_eq!(listed("?tag=echo&generation=1").await, [3]);
    assert!(listed("?tag=other").await.is_empty());
    let seen = api.get(&sandbox).await.json();
    assert_eq!(seen["processes"], 2);
    let stopped = api.delete(&format!("{sleep}?wait=60")).await;
    assert_eq!((stopped.status.as_u16(), &stopped.json()["stopped"]), (200, &json!("cancelled")));
    let signal = json!({ "signal": "KILL", "to": "tree" });
    assert_eq!(api.post(&format!("{echo}/signal"), &signal).await.status, 204);
    assert_eq!(api.get(&format!("{echo}?wait=60")).await.json()["signal"], 9);
    assert!(listed("?state=running").await.is_empty());
}

#[tokio::test]
async fn start_with_a_key_is_done_once() {
    let api = api().await;
    let sandbox = api.living().await;
    let start = async |body: Value| {
        let request = request(Method::POST, &format!("{sandbox}/processes"))
            .header("content-type", "application/json")
            .header("idempotency-key", "k");
        api.send(request.body(body.to_string().into()).unwrap()).await
    };
    assert_eq!(start(shell("sleep")).await.json()["id"], 1);
    let again = start(shell("sleep")).await;
    assert_eq!((again.status.as_u16(), &again.json()["id"]), (201, &json!(1)));
    assert_eq!(start(shell("echo a")).await.problem().kind, ProblemKind::KeyReused);
}

#[tokio::test]
async fn events_are_read_from_where_the_client_was() {
    let api = api().await;
    let sandbox = api.living().await;
    let process = api.start(&sandbox, &shell("echo a b")).await;
    let read = async |query: &str, last: Option<&str>| {
        let mut request = request(Method::GET, &format!("{process}/events{query}"));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let answer = api.send(request.body(Body::empty()).unwrap()).await;
        match answer.status.as_u16() {
            200 => Ok(messages(std::str::from_utf8(&answer.body).unwrap()).len()),
            status => Err(status),
        }
    };
    assert_eq!(read("", None).await, Ok(5));
    assert_eq!(read("?after=2&mode=wait", None).await, Ok(3));
    assert_eq!(read("?after=0", Some("4")).await, Ok(1));
    assert_eq!(read("?after=now", None).await, Ok(0));
    for wrong in ["?after=x", "?after=-1", "?after=", "?mode=slow", "?since=1"] {
        assert_eq!(read(wrong, None).await, Err(422), "{wrong}");
    }
    // One that runs is followed.
    let process = api.start(&sandbox, &cat()).await;
    let open = request(Method::GET, &format!("{process}/events?after=now"));
    let open = open.body(Body::empty()).unwrap();
    let stream = api.router.clone().oneshot(open).await.unwrap().into_body();
    api.send_bytes(&format!("{process}/stdin"), "later").await;
    api.send_bytes(&format!("{process}/stdin/close"), "").await;
    let rest = stream.collect().await.unwrap().to_bytes();
    let names: Vec<_> = messages(std::str::from_utf8(&rest).unwrap())
        .into_iter()
        .map(|(_, name, _)| name)
        .collect();
    assert_eq!(names, ["output", "exit", "end"]);
}

#[tokio::test]
async fn terminal_has_a_size_and_others_have_none() {
    let api = api().await;
    let sandbox = api.living().await;
    let pty = json!({ "command": { "shell": "sleep" }, "pty": { "cols": 80, "rows": 24 } });
    let terminal = api.start(&sandbox, &pty).await;
    let size = json!({ "cols": 120, "rows": 40 });
    assert_eq!(api.post(&format!("{terminal}/resize"), &size).await.status, 204);
    let wrong = json!({ "cols": 0, "rows": 40 });
    let problem = api.post(&format!("{terminal}/resize"), &wrong).await.problem();
    assert_eq!((problem.status, &*problem.errors[0].pointer), (422, "#/cols"));
    let plain = api.start(&sandbox, &shell("sleep")).await;
    let problem = api.post(&format!("{plain}/resize"), &size).await.problem();
    assert_eq!((problem.status, problem.kind), (409, ProblemKind::Conflict));
    let problem = api.send_bytes(&format!("{plain}/stdin"), "x").await.problem();
    assert_eq!((problem.status, problem.kind), (409, ProblemKind::NoStdin));
    assert!(problem.detail.contains("0 bytes"), "{problem:?}");
    // Not even when it has ended: what it lacks is what its caller can mend.
    let ended = api.start(&sandbox, &shell("exit 0")).await;
    api.get(&format!("{ended}?wait=60")).await;
    for path in ["stdin", "stdin/close"] {
        let problem = api.send_bytes(&format!("{ended}/{path}"), "x").await.problem();
        assert_eq!((problem.status, problem.kind), (409, ProblemKind::NoStdin), "{path}");
        assert!(problem.hint.is_some_and(|hint| hint.contains("stdin")), "{path}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_process_is_one_clear_error() {
    let api = api().await;
    let sandbox = api.living().await;
    let processes = format!("{sandbox}/processes");
    for (body, status, pointer) in [
        ("", 400, None),
        ("[]", 422, Some("#")),
        (r#"{"comand":{}}"#, 422, Some("#/comand")),
        (r#"{"command":{"shell":"a"},"pty":{"cols":80}}"#, 422, Some("#/pty")),
        (r#"{"command":{"shell":"a"},"pty":{"cols":80,"rows":70000}}"#, 422, Some("#/pty/rows")),
        (r#"{"command":{"shell":"a"},"timeout_ms":"5s"}"#, 422, Some("#/timeout_ms")),
    ] {
        let problem = api.post_text(&processes, body).await.problem();
        assert_eq!(problem.status, status, "{body}: {problem:?}");
        let at = problem.errors.first().map(|it| it.pointer.as_str());
        assert_eq!(at, pointer, "{body}: {problem:?}");
    }
    let process = api.start(&sandbox, &shell("sleep")).await;
    for (path, body) in [
        ("signal", r#"{"signal":"SIGTERM"}"#),
        ("signal", r#"{"signal":"TERM","to":"all"}"#),
        ("signal", "{}"),
        ("resize", r#"{"cols":80}"#),
    ] {
        let problem = api.post_text(&format!("{process}/{path}"), body).await.problem();
        assert_eq!(problem.status, 422, "{body}: {problem:?}");
    }
    for other in ["99", "0", "x", "-1", "4294967296"] {
        let problem = api.get(&format!("{processes}/{other}")).await.problem();
        assert_eq!((problem.status, problem.kind), (404, ProblemKind::NotFound), "{other}");
    }
    for (path, name) in [
        (format!("{process}?wait=301"), "wait"),
        (format!("{process}?wait=1ms"), "wait"),
        (format!("{processes}?state=dead"), "state"),
        (format!("{processes}?limit=1"), "limit"),
    ] {
        let problem = api.get(&path).await.problem();
        assert_eq!((problem.status, &*problem.errors[0].pointer), (422, name), "{path}");
    }
    // A process belongs to its generation.
    let gone = api.get(&format!("{process}?generation=2")).await.problem();
    assert_eq!((gone.status, gone.kind), (410, ProblemKind::Gone));
    // A sandbox without processes, and one of another subject.
    let plain = format!("/v1/sandboxes/{}/processes", api.sandbox().await);
    let problem = api.post(&plain, &shell("sleep")).await.problem();
    assert!(problem.hint.is_some(), "{problem:?}");
    let mut of_bob = request(Method::GET, &process).body(Body::empty()).unwrap();
    of_bob.headers_mut().insert("authorization", "Bearer bob".parse().unwrap());
    assert_eq!(api.send(of_bob).await.problem().status, 404);
}

#[tokio::test]
async fn sandbox_is_paused_and_goes_on() {
    let api = api().await;
    let sandbox = api.living().await;
    api.start(&sandbox, &shell("sleep")).await;
    let paused = api.send_bytes(&format!("{sandbox}/pause"), "").await;
    assert_eq!((paused.status.as_u16(), &paused.json()["status"]), (200, &json!("paused")));
    assert_eq!(api.get(&sandbox).await.json()["status"], "paused");
    let resumed = api.send_bytes(&format!("{sandbox}/resume?generation=1"), "").await;
    assert_eq!((resumed.status.as_u16(), &resumed.json()["status"]), (200, &json!("ready")));
    let stale = api.send_bytes(&format!("{sandbox}/pause?generation=7"), "").await;
    assert_eq!(stale.problem().status, 410);
}

#[tokio::test]
async fn sandboxes_are_found_by_metadata_name_and_status_a_page_at_a_time() {
    let api = api().await;
    for (name, team) in [("a", "red"), ("b", "blue"), ("c", "red")] {
        let body = json!({ "name": name, "metadata": { "team": team, "n": "1" } });
        assert_eq!(api.post("/v1/sandboxes", &body).await.status, 201);
        // Those of one millisecond are in the order of their ids.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let page = async |query: &str| {
        let list = api.get(&format!("/v1/sandboxes{query}")).await.json();
        let names = list["sandboxes"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|it| it["name"].as_str().unwrap().to_owned()).collect();
        (names.join(" "), list["next_cursor"].as_str().map(str::to_owned))
    };
    assert_eq!(page("").await, ("c b a".to_owned(), None));
    assert_eq!(page("?metadata.team=red").await.0, "c a");
    assert_eq!(page("?metadata.team=red&metadata.n=1&name=a").await.0, "a");
    assert_eq!(page("?metadata.team=green").await.0, "");
    assert_eq!(page("?status=ready").await.0, "c b a");
    assert_eq!(page("?status=stopped").await.0, "");
    let (first, cursor) = page("?limit=2").await;
    assert_eq!(first, "c b");
    let rest = page(&format!("?limit=2&cursor={}", cursor.unwrap())).await;
    assert_eq!(rest, ("a".to_owned(), None));
    for (query, name) in [
        ("?metadata.team=a&metadata.team=b", "metadata.team"),
        ("?name=a&name=b", "name"),
        ("?status=gone", "status"),
        ("?limit=0", "limit"),
        ("?metadata=x", "metadata"),
        ("?team=x", "team"),
    ] {
        let problem = api.get(&format!("/v1/sandboxes{query}")).await.problem();
        assert_eq!((problem.status, &*problem.errors[0].pointer), (422, name), "{query}");
    }
}

#[tokio::test]
async fn life_of_a_sandbox_may_become_shorter_and_its_metadata_be_replaced() {
    let api = api().await;
    let sandbox = format!("/v1/sandboxes/{}", api.sandbox().await);
    let patch = async |body: Value| {
        let request = request(Method::PATCH, &sandbox).header("content-type", "application/json");
        api.send(request.body(body.to_string().into()).unwrap()).await
    };
    let before = api.get(&sandbox).await.json();
    let after = patch(json!({ "ttl_ms": 60_000, "metadata": { "a": 1 } })).await.json();
    assert_eq!(after["metadata"], json!({ "a": 1 }));
    assert!(after["expires_at"].as_str() < before["expires_at"].as_str(), "{after}");
    let same = patch(json!({})).await.json();
    assert_eq!(
        (&same["metadata"], &same["expires_at"]),
        (&after["metadata"], &after["expires_at"])
    );
    let problem = patch(json!({ "ttl": 5 })).await.problem();
    assert_eq!((problem.status, &*problem.errors[0].pointer), (422, "#/ttl"));
}

#[tokio::test]
async fn watch_streams_changes_from_when_it_is_on() {
    let api = api().await;
    let sandbox = api.living().await;
    let watch = async |query: &str| {
        let request = request(Method::GET, &format!("{sandbox}/watch{query}"));
        api.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    };
    let answer = watch("?path=a%20b&recursive=true").await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let first = answer.into_body().frame().await.unwrap().unwrap().into_data().unwrap();
    let first = std::str::from_utf8(&first).unwrap();
    let data = r#"data: {"event":"change","seq":1,"name":"out.txt","change":"write"}"#;
    for line in ["event: change", "id: 1", data] {
        assert!(first.lines().any(|it| it == line), "{first}");
    }
    for (query, status) in [
        ("?path=missing", 404),
        ("?recursive=maybe", 422),
        ("?depth=1", 422),
        ("?generation=7", 410),
    ] {
        assert_eq!(watch(query).await.status(), status, "{query}");
    }
}
