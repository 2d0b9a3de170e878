//! Events as server-sent events.

use axum::body::Body;
use axum::http::Method;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;

use super::{DOCUMENT, api, hold_clock, request, validate};

/// The messages of a stream: id, event, data.
pub(super) fn messages(stream: &str) -> Vec<(String, String, Value)> {
    let message = |text: &str| {
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
            let value = lines.next().unwrap_or_else(|| panic!("no {name} {text}"));
            assert!(lines.next().is_none(), "{text}");
            value.trim_start().to_owned()
        };
        let data: Value = serde_json::from_str(&field("data:")).unwrap();
        validate(&DOCUMENT["components"]["schemas"]["ExecutionEvent"], &data, "event");
        (field("id:"), field("event:"), data)
    };
    stream.split("\n\n").filter(|it| !it.is_empty() && !it.starts_with(':')).map(message).collect()
}

#[tokio::test]
async fn events_are_numbered_and_end_with_the_end() {
    let api = api().await;
    let id = api.run("log a\nb").await;
    let answer = api.get(&format!("/v1/executions/{id}/events")).await;
    assert_eq!(answer.header("content-type"), "text/event-stream");
    let all = messages(std::str::from_utf8(&answer.body).unwrap());
    let names: Vec<_> = all.iter().map(|(id, event, _)| (&**id, &**event)).collect();
    assert_eq!(names, [("1", "queued"), ("2", "start"), ("3", "log"), ("4", "end")]);
    assert_eq!(all[2].2["text"], "a\nb");
    assert_eq!(all[3].2["document"]["schema"], "sandboxctl.result/1");
}

#[tokio::test]
async fn client_that_comes_back_gets_what_follows() {
    let api = api().await;
    let id = api.run("log a").await;
    let path = format!("/v1/executions/{id}/events");
    let after = async |query: &str, last: Option<&str>| {
        let mut request = request(Method::GET, &format!("{path}{query}"));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let answer = api.send(request.body(Body::empty()).unwrap()).await;
        match answer.status.as_u16() {
            200 => Ok(messages(std::str::from_utf8(&answer.body).unwrap()).len()),
            status => Err(status),
        }
    };
    assert_eq!(after("?after=3", None).await, Ok(1));
    assert_eq!(after("", Some("2")).await, Ok(2));
    assert_eq!(after("?after=0", Some("4")).await, Ok(0));
    assert_eq!(after("", Some("x")).await, Err(422));
    assert_eq!(after("", Some("-1")).await, Err(422));
}

#[tokio::test(start_paused = true)]
async fn stream_lives_until_the_end_or_the_server_stops() {
    let api = api().await;
    let held = hold_clock();
    let id = api.begin("log-and-wait a").await;
    let open = async || {
        let request = request(Method::GET, &format!("/v1/executions/{id}/events"));
        let request = request.body(Body::empty()).unwrap();
        api.router.clone().oneshot(request).await.unwrap().into_body()
    };
    let (mut one, two) = (open().await, open().await);
    let mut text = String::new();
    let mut read_until = async |what: &str| {
        while !text.contains(what) {
            let frame = one.frame().await.unwrap().unwrap();
            text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
    };
    read_until("event: log").await;
    drop(held);
    read_until("\n\n:").await;
    assert!(!text.contains("event: end"), "{text}");
    api.world.finish();
    let rest = one.collect().await.unwrap().to_bytes();
    assert!(std::str::from_utf8(&rest).unwrap().contains("event: end"));
    drop(two);
    let id = api.begin("wait").await;
    let request = request(Method::GET, &format!("/v1/executions/{id}/events"));
    let response = api.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    api.shutdown.stop.cancel();
    response.into_body().collect().await.unwrap();
}
