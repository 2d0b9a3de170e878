//! Executions, their files, and sandboxes.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::Method;
use futures_util::poll;
use sandbox_api::service::Time;
use serde_json::json;

use super::{Answer, Api, CONTENT, api, hold_clock, request};

async fn get_with(api: &Api, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = request(Method::GET, path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    api.send(request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn execution_is_answered_at_its_end_or_accepted() {
    let api = api().await;
    let accepted = api.post("/v1/executions", &json!({ "script": "return 1" })).await;
    let id = accepted.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(accepted.status, 202);
    assert_eq!(accepted.header("location"), format!("/v1/executions/{id}"));
    let first = api.get(&format!("/v1/executions/{id}?wait=60")).await;
    assert_eq!(first.json()["status"], "ok");
    let ended = api.post("/v1/executions?wait=60", &json!({ "script": "return 1" })).await;
    assert_eq!((ended.status.as_u16(), &ended.json()["status"]), (200, &"ok".into()));
    assert!(ended.headers.contains_key("location"));
    let command = json!({ "command": { "shell": "true" }, "image": "debian:13" });
    let command = api.post("/v1/executions?wait=60", &command).await;
    assert_eq!(command.json()["schema"], "sandboxctl.exec/1");
    let list = api.get("/v1/executions?kind=script&status=ok&limit=1").await;
    assert_eq!(list.json()["executions"].as_array().unwrap().len(), 1);
    let cursor = list.json()["next_cursor"].as_str().unwrap().to_owned();
    let next = api.get(&format!("/v1/executions?kind=script&status=ok&cursor={cursor}")).await;
    assert_eq!(next.json()["executions"].as_array().unwrap().len(), 1);
    assert_eq!(api.get("/v1/executions?cursor=x").await.json()["errors"][0]["pointer"], "#/cursor");
    assert_eq!(api.get("/v1/usage").await.json()["executions"], 3);
}

#[tokio::test]
async fn what_was_accepted_is_not_refused_though_it_is_forgotten() {
    let api = api().await;
    let body = json!({ "script": "wait" });
    let mut answer = pin!(api.post("/v1/executions?wait=60", &body));
    while api.world.launcher.runs.load(Ordering::SeqCst) == 0 {
        assert!(poll!(answer.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    // It ends, and its record expires, before its caller sees that.
    api.world.finish();
    let later = Time::now().after(Duration::from_secs(3600));
    while api.world.store.expire(later, 0).unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let answer = answer.await;
    // The service answers from memory while the execution is there, and by its id afterwards.
    if answer.status == 200 {
        assert_eq!(answer.json()["status"], "ok");
        return;
    }
    assert_eq!(answer.status, 202);
    let location = answer.header("location").to_owned();
    assert_eq!(location, format!("/v1/executions/{}", answer.json()["id"].as_str().unwrap()));
    assert_eq!(api.get(&location).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn wait_ends_with_the_execution_or_the_time_or_the_server() {
    let api = api().await;
    let id = api.begin("wait").await;
    let path = format!("/v1/executions/{id}?wait=5");
    let start = tokio::time::Instant::now();
    let running = api.get(&path).await;
    assert_eq!((&running.json()["status"], start.elapsed().as_secs()), (&"running".into(), 5));
    let (ended, held) = tokio::join!(api.get(&path), async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let held = hold_clock();
        api.world.finish();
        held
    });
    assert_eq!((&ended.json()["status"], start.elapsed().as_secs()), (&"ok".into(), 7));
    let body = json!({ "script": "wait" });
    let (accepted, ()) = tokio::join!(api.post("/v1/executions?wait=300", &body), async {
        while api.world.launcher.runs.load(Ordering::SeqCst) == 1 {
            tokio::task::yield_now().await;
        }
        drop(held);
        tokio::time::sleep(Duration::from_secs(1)).await;
        api.shutdown.stop.cancel();
    });
    assert_eq!((accepted.status.as_u16(), start.elapsed().as_secs()), (202, 8));
    assert_eq!(api.get("/readyz").await.status, 503);
}

#[tokio::test]
async fn cancel_ends_an_execution() {
    let api = api().await;
    let id = api.begin("wait").await;
    let delete = request(Method::DELETE, &format!("/v1/executions/{id}")).body(Body::empty());
    assert_eq!(api.send(delete.unwrap()).await.status, 200);
    let ended = api.get(&format!("/v1/executions/{id}?wait=60")).await;
    assert_eq!(ended.json()["status"], "cancelled");
}

#[tokio::test]
async fn file_is_an_attachment_with_an_etag() {
    let api = api().await;
    let id = api.run("return 1").await;
    let path = format!("/v1/executions/{id}/files/out.csv");
    let whole = api.get(&path).await;
    assert_eq!((whole.status.as_u16(), &*whole.body), (200, CONTENT));
    let etag = whole.header("etag").to_owned();
    assert!(etag.len() > 2 && etag.starts_with('"') && etag.ends_with('"'), "{etag}");
    for (name, value) in [
        ("etag", &*etag),
        ("content-length", "16"),
        ("content-type", "text/csv"),
        ("content-disposition", "attachment; filename=\"out.csv\""),
        ("x-content-type-options", "nosniff"),
        ("accept-ranges", "bytes"),
    ] {
        assert_eq!(whole.header(name), value);
    }
    assert!(whole.header("content-security-policy").starts_with("sandbox"));
    let part = get_with(&api, &path, &[("range", "bytes=4-7")]).await;
    assert_eq!((part.status.as_u16(), &*part.body), (206, &b"4567"[..]));
    assert_eq!(part.header("content-range"), "bytes 4-7/16");
    assert_eq!(part.header("content-length"), "4");
    let last = get_with(&api, &path, &[("range", "bytes=-2"), ("if-range", &etag)]).await;
    assert_eq!(&*last.body, b"ef");
    let other = get_with(&api, &path, &[("range", "bytes=-2"), ("if-range", "\"b\"")]).await;
    assert_eq!(other.status, 200);
    let behind = get_with(&api, &path, &[("range", "bytes=16-")]).await;
    assert_eq!(behind.problem().status, 416);
    assert_eq!(behind.header("content-range"), "bytes */16");
    let known = get_with(&api, &path, &[("if-none-match", &etag)]).await;
    assert_eq!((known.status.as_u16(), known.header("etag")), (304, &*etag));
    assert_eq!(get_with(&api, &path, &[("if-match", "\"b\"")]).await.problem().status, 412);
    let head = request(Method::HEAD, &path).header("range", "bytes=4-7");
    let head = head.body(Body::empty()).unwrap();
    let head = tower::ServiceExt::oneshot(api.router.clone(), head).await.unwrap();
    assert_eq!(
        (head.status().as_u16(), &head.headers()["content-length"]),
        (200, &"16".parse().unwrap())
    );
    for (name, status) in
        [("dir/page.html", 200), ("%FF", 200), ("%ff", 200), ("none", 404), ("%", 404)]
    {
        let answer = api.get(&format!("/v1/executions/{id}/files/{name}")).await;
        assert_eq!(answer.status, status, "{name}");
    }
}

#[tokio::test]
async fn files_are_there_after_the_end() {
    let api = api().await;
    let id = api.begin("wait").await;
    for what in ["files", "files/out.csv", "archive", "changes"] {
        let early = api.get(&format!("/v1/executions/{id}/{what}")).await;
        assert_eq!(early.problem().status, 409, "{what}");
    }
    api.world.finish();
    api.get(&format!("/v1/executions/{id}?wait=60")).await;
    for what in ["files", "files/out.csv", "archive", "archive?format=tar.zst", "changes"] {
        let answer = api.get(&format!("/v1/executions/{id}/{what}")).await;
        assert_eq!(answer.status, 200, "{what}");
    }
}

#[tokio::test]
async fn file_of_a_sandbox_is_overwritten_unless_a_condition_says_no() {
    let api = api().await;
    let id = api.post("/v1/sandboxes", &json!({ "name": "a" })).await.json()["id"].clone();
    let path = format!("/v1/sandboxes/{}/files/", id.as_str().unwrap());
    let put = async |name: &str, header: (&str, &str)| {
        let put = request(Method::PUT, &format!("{path}{name}")).header(header.0, header.1);
        api.send(put.body("x".into()).unwrap()).await
    };
    assert_eq!(put("taken", ("if-none-match", "\"a\"")).await.status, 200);
    assert_eq!(put("new", ("if-none-match", "*")).await.status, 200);
    let taken = put("taken", ("if-none-match", "*")).await.problem();
    assert_eq!((taken.status, &*taken.detail), (412, "the file exists"));
    assert_eq!(put("taken", ("if-match", "\"a\"")).await.problem().status, 412);
    assert_eq!(put("taken", ("content-range", "bytes 3-3/16")).await.problem().status, 400);
    let path = format!("{path}a");
    assert_eq!(get_with(&api, &path, &[("if-match", "\"a\"")]).await.problem().status, 412);
    assert_eq!(get_with(&api, &path, &[("if-match", "*")]).await.status, 200);
}

#[tokio::test]
async fn sandbox_is_found_by_its_name_and_used_by_its_id() {
    let api = api().await;
    let body = json!({ "name": "a", "spec": { "image": "debian:13" } });
    let new = api.post("/v1/sandboxes", &body).await;
    let id = new.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(
        (new.status.as_u16(), new.header("location")),
        (201, &*format!("/v1/sandboxes/{id}"))
    );
    let generation = |answer: &Answer| {
        ["sandbox-generation", "sandbox-restarted"].map(|name| answer.header(name).to_owned())
    };
    assert_eq!(generation(&new), ["1", "false"]);
    api.world.launcher.all_ended.store(true, Ordering::SeqCst);
    let found = api.post("/v1/sandboxes", &body).await;
    assert_eq!(generation(&found), ["2", "true"]);
    assert_eq!((found.status.as_u16(), &found.json()["id"]), (200, &new.json()["id"]));
    assert_eq!(api.post("/v1/sandboxes", &json!({ "name": "a" })).await.problem().status, 409);
    assert_eq!(api.get("/v1/sandboxes").await.json()["sandboxes"].as_array().unwrap().len(), 1);
    assert_eq!(api.get(&format!("/v1/sandboxes/{id}")).await.status, 200);
    let extend = json!({ "ttl_ms": 7_200_000 });
    let extended = api.post(&format!("/v1/sandboxes/{id}/extend"), &extend).await;
    assert_ne!(extended.json()["expires_at"], new.json()["expires_at"]);
    let operation = json!({ "operation": "stat", "path": "a" });
    let operations = format!("/v1/sandboxes/{id}/operations");
    let failed = api.post(&operations, &operation).await;
    assert_eq!((failed.status.as_u16(), &failed.json()["success"]), (200, &false.into()));
    assert_eq!(failed.header("sandbox-generation"), "2");
    assert_eq!(failed.header("sandbox-restarted"), "false");
    let stale = api.post(&format!("{operations}?generation=1"), &operation).await;
    assert_eq!(stale.problem().status, 410);
    let put = request(Method::PUT, &format!("/v1/sandboxes/{id}/files/dir/b.bin"));
    let written = api.send(put.body("12345".into()).unwrap()).await;
    assert_eq!(
        (&written.json()["path"], &written.json()["bytes_written"]),
        (&"dir/b.bin".into(), &5.into())
    );
    assert_eq!(&*api.get(&format!("/v1/sandboxes/{id}/files/b.bin")).await.body, CONTENT);
    let run = json!({ "script": "return 1" });
    let run = api.post(&format!("/v1/sandboxes/{id}/executions?wait=60&generation=2"), &run).await;
    assert_eq!(
        (run.status.as_u16(), &run.json()["sandbox"]),
        (200, &serde_json::Value::from(id.clone()))
    );
    assert_eq!((&run.json()["generation"], &run.json()["restarted"]), (&2.into(), &false.into()));
    let delete = request(Method::DELETE, &format!("/v1/sandboxes/{id}")).body(Body::empty());
    assert_eq!(api.send(delete.unwrap()).await.status, 204);
    assert_eq!(api.get(&format!("/v1/sandboxes/{id}")).await.problem().status, 410);
}
