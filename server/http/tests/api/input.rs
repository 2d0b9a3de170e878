//! What invalid requests get.

use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::Method;
use sandbox_api::{ByteSize, ProblemKind};
use sandbox_http::HttpConfig;
use serde_json::json;

use super::{Answer, api, api_with, request};

#[tokio::test]
async fn invalid_body_is_400_or_422_with_its_place() {
    let api = api().await;
    for (path, body, status, pointer) in [
        ("/v1/executions", "", 400, None),
        ("/v1/executions", "{", 400, None),
        ("/v1/executions", "{}{}", 400, None),
        ("/v1/executions", "\u{0}", 400, None),
        ("/v1/executions", "[]", 422, Some("#")),
        ("/v1/executions", "{}", 422, Some("#/script")),
        ("/v1/executions", r#"{"script":1}"#, 422, Some("#/script")),
        ("/v1/executions", r#"{"script":"a","io_dir":"/etc"}"#, 422, Some("#/io_dir")),
        ("/v1/executions", r#"{"script":"a","limits":{"pids":-1}}"#, 422, Some("#/limits/pids")),
        ("/v1/executions", r#"{"script":"a","secrets":{"A":1}}"#, 422, Some("#/secrets/A")),
        ("/v1/executions", r#"{"script":{"b64":"!"}}"#, 422, Some("#/script/b64")),
        ("/v1/sandboxes", r#"{"ttl_ms":"1h"}"#, 422, Some("#/ttl_ms")),
        ("/v1/sandboxes/s1/extend", "{}", 422, Some("#")),
        ("/v1/sandboxes/s1/operations", r#"{"operation":"reed"}"#, 422, Some("#")),
        (
            "/v1/sandboxes/s1/operations",
            r#"{"operation":"view","path":"a","lines":[1,2]}"#,
            422,
            Some("#"),
        ),
        ("/v1/executions", r#"{"script":"a","args":{"a":1,"a":2}}"#, 422, Some("#/args")),
    ] {
        let answer = api.post_text(path, body).await;
        let problem = answer.problem();
        assert_eq!(problem.status, status, "{body}: {problem:?}");
        let at = problem.errors.first().map(|it| it.pointer.as_str());
        assert_eq!(at, pointer, "{body}: {problem:?}");
        let kind = if status == 400 { ProblemKind::Malformed } else { ProblemKind::Invalid };
        assert_eq!(problem.kind, kind);
    }
}

#[tokio::test]
async fn invalid_parameter_is_422_with_its_name() {
    let api = api().await;
    let id = api.run("return 1").await;
    for (path, name) in [
        (format!("/v1/executions/{id}?wait=301"), "wait"),
        (format!("/v1/executions/{id}?wait=-1"), "wait"),
        (format!("/v1/executions/{id}?wait="), "wait"),
        (format!("/v1/executions/{id}?wait=1&wait=2"), "wait"),
        (format!("/v1/executions/{id}?await=1"), "await"),
        ("/v1/executions?limit=0".to_owned(), "limit"),
        ("/v1/executions?limit=201".to_owned(), "limit"),
        ("/v1/executions?status=done".to_owned(), "status"),
        (format!("/v1/executions/{id}/events?after=x"), "after"),
        (format!("/v1/executions/{id}/archive?format=zip"), "format"),
        ("/v1/sandboxes/s1/files/a?generation=a".to_owned(), "generation"),
        // Those without parameters have none.
        ("/v1/usage?x=1".to_owned(), "x"),
        ("/v1/sandboxes?foo".to_owned(), "foo"),
        (format!("/v1/executions/{id}/files?a=1&b=2"), "a"),
    ] {
        let problem = api.get(&path).await.problem();
        assert_eq!((problem.status, problem.kind), (422, ProblemKind::Invalid), "{path}");
        assert_eq!(problem.errors[0].pointer, name, "{path}: {problem:?}");
    }
    let created = api.post_text("/v1/sandboxes?zzz=1", "{}").await.problem();
    assert_eq!((created.status, &*created.errors[0].pointer), (422, "zzz"));
    // No monitor is turned away.
    assert_eq!(api.get("/readyz?verbose").await.status, 200);
    assert_eq!(api.get("/v1/usage?").await.status, 200);
}

#[tokio::test]
async fn unknown_path_method_type_and_id_have_their_answers() {
    let api = api().await;
    for (method, path, status) in [
        (Method::GET, "/nothing", 404),
        (Method::GET, "/v1", 404),
        (Method::GET, "/v1/executions/", 404),
        (Method::GET, "/v1/executions/nothing", 404),
        (Method::GET, "/v1/executions/%ff", 404),
        (Method::DELETE, "/v1/executions/nothing", 404),
        (Method::GET, "/v1/executions/nothing/events", 404),
        (Method::GET, "/v1/executions/nothing/files/a", 404),
        (Method::GET, "/v1/executions/../../etc/passwd", 404),
        (Method::GET, "/.well-known/oauth-protected-resource", 404),
        (Method::PUT, "/v1/executions", 405),
        (Method::PATCH, "/v1/executions/e1", 405),
        (Method::OPTIONS, "/v1/executions", 405),
        (Method::POST, "/healthz", 405),
    ] {
        let answer = api.send(request(method.clone(), path).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.problem().status, status, "{method} {path}");
        if status == 405 {
            assert!(answer.header("allow").contains("GET"), "{method} {path}");
        }
    }
    for content_type in
        [None, Some("text/plain"), Some("application/jsonx"), Some("multipart/mixed")]
    {
        let mut request = request(Method::POST, "/v1/executions");
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let answer = api.send(request.body("{}".into()).unwrap()).await;
        assert_eq!(answer.problem().status, 415, "{content_type:?}");
    }
    for (name, value, status) in [
        ("transfer-encoding", "gzip, chunked", 400),
        ("transfer-encoding", "chunked, chunked", 400),
        ("content-encoding", "gzip", 415),
    ] {
        let coded = request(Method::POST, "/v1/executions")
            .header("content-type", "application/json")
            .header(name, value)
            .body(json!({ "script": "return 1" }).to_string().into());
        assert_eq!(api.send(coded.unwrap()).await.problem().status, status, "{name}: {value}");
    }
    let json = request(Method::POST, "/v1/executions")
        .header("content-type", "Application/JSON; charset=utf-8")
        .body(json!({ "script": "return 1" }).to_string().into());
    assert_eq!(api.send(json.unwrap()).await.status, 202);
}

#[tokio::test]
async fn large_body_is_413_before_and_while_it_is_read() {
    let api = api_with(HttpConfig {
        max_request: ByteSize::b(1000),
        max_upload: ByteSize::b(2000),
        ..HttpConfig::default()
    })
    .await;
    let script = json!({ "script": "x".repeat(2000) }).to_string();
    let send = async |method: Method, path: &str, body: Body, length: Option<usize>| {
        let mut request = request(method, path)
            .header("host", "127.0.0.1")
            .header("content-type", "application/json");
        request.headers_mut().unwrap().insert("host", "127.0.0.1".parse().unwrap());
        if let Some(length) = length {
            request = request.header("content-length", length);
        }
        api.send(request.body(body).unwrap()).await.problem()
    };
    let chunked = |text: &str| {
        let chunks: Vec<_> =
            text.as_bytes().chunks(100).map(bytes::Bytes::copy_from_slice).collect();
        Body::from_stream(futures_util::stream::iter(
            chunks.into_iter().map(Ok::<_, std::convert::Infallible>),
        ))
    };
    let said = send(Method::POST, "/v1/executions", Body::empty(), Some(1001)).await;
    assert_eq!((said.status, said.kind), (413, ProblemKind::TooLarge));
    let unsaid = send(Method::POST, "/v1/executions", chunked(&script), None).await;
    assert_eq!((unsaid.status, unsaid.kind), (413, ProblemKind::TooLarge));
    let wrong = send(Method::POST, "/v1/executions", Body::empty(), None).await;
    assert_eq!(wrong.status, 400);
}

#[tokio::test]
async fn refusal_repeats_little_of_what_it_refuses() {
    let api = api().await;
    let long = "x".repeat(100_000);
    for body in [json!({ "limits": { "timeout_ms": long } }), json!({ &long: 1 })] {
        let answer = api.post("/v1/executions", &body).await;
        assert_eq!(answer.problem().status, 422);
        assert!(answer.body.len() < 5000, "{}", answer.body.len());
    }
}

#[tokio::test]
async fn idempotency_key_is_for_one_request() {
    let api = api().await;
    let send = async |key: &str, script: &str| {
        let request = request(Method::POST, "/v1/executions")
            .header("content-type", "application/json")
            .header("idempotency-key", key);
        let body = json!({ "script": script }).to_string();
        api.send(request.body(body.into()).unwrap()).await
    };
    let id = |answer: &Answer| answer.json()["id"].as_str().unwrap().to_owned();
    let first = send("k1", "return 1").await;
    let again = send("k1", "return 1").await;
    assert_eq!((first.status.as_u16(), id(&first)), (202, id(&again)));
    let other = send("k1", "return 2").await.problem();
    assert_eq!((other.status, other.kind), (422, ProblemKind::KeyReused));
    assert_ne!(id(&send("k2", "return 1").await), id(&first));
    for key in ["", "a b", "a\tb", &"k".repeat(256)] {
        let problem = send(key, "return 1").await.problem();
        assert_eq!((problem.status, &*problem.errors[0].pointer), (422, "Idempotency-Key"));
    }
}

#[tokio::test]
async fn form_gives_a_request_its_inputs() {
    let api = api().await;
    let send = async |parts: &[(&str, Option<&str>, &str)]| {
        let mut body = String::new();
        for (name, file, content) in parts {
            let file = file.map(|it| format!("; filename=\"{it}\"")).unwrap_or_default();
            body.push_str(&format!(
                "--B\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{content}\r\n"
            ));
        }
        body.push_str("--B--\r\n");
        let request = request(Method::POST, "/v1/executions")
            .header("content-type", "multipart/form-data; boundary=B");
        api.send(request.body(body.into()).unwrap()).await
    };
    let script = r#"{"script":"return 1"}"#;
    let ok = send(&[("request", None, script), ("input", Some("a.txt"), "text")]).await;
    assert_eq!(ok.status, 202);
    let refused: [(&[_], u16); 8] = [
        (&[], 422),
        (&[("input", Some("a"), "x"), ("request", None, script)], 422),
        (&[("request", None, script), ("request", None, script)], 422),
        (&[("request", None, script), ("other", None, "x")], 422),
        (&[("request", None, script), ("input", None, "x")], 422),
        (&[("request", None, script), ("input", Some("a"), "x"), ("input", Some("a"), "x")], 422),
        (&[("request", None, "{")], 400),
        (&[("request", None, r#"{"scripts":1}"#)], 422),
    ];
    for (parts, status) in refused {
        assert_eq!(send(parts).await.problem().status, status, "{parts:?}");
    }
    let request =
        request(Method::POST, "/v1/executions").header("content-type", "multipart/form-data");
    assert_eq!(api.send(request.body("x".into()).unwrap()).await.problem().status, 400);
}

#[tokio::test]
async fn server_whose_engine_fails_is_not_ready_and_does_not_say_why() {
    let api = api().await;
    api.run("return 1").await;
    assert_eq!(api.get("/readyz").await.status, 200);
    api.world.launcher.failing.store(1, Ordering::SeqCst);
    let ready = api.get("/readyz").await;
    assert_eq!((ready.status.as_u16(), &ready.json()["ready"]), (503, &false.into()));
    assert!(!ready.json().to_string().contains("connect"), "{ready:?}");
}

#[tokio::test]
async fn what_is_not_allowed_is_403_with_its_place() {
    let forbidden = json!({ "script": "return 1", "image": "evil" });
    let problem = api().await.post("/v1/executions", &forbidden).await.problem();
    assert_eq!((problem.status, &*problem.errors[0].pointer), (403, "#/image"));
}
