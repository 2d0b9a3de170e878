//! Hosts, origins, credentials, the audit, and headers of every answer.

use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::Method;
use sandbox_http::{HttpConfig, ResourceMetadata};
use serde_json::json;

use super::{Answer, Api, api, api_with, request};

async fn with(api: &Api, method: Method, path: &str, headers: &[(&'static str, &str)]) -> Answer {
    let mut request = request(method, path);
    for (name, value) in headers {
        request.headers_mut().unwrap().insert(*name, value.parse().unwrap());
    }
    api.send(request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn credentials_are_missing_invalid_or_not_now() {
    let api = api_with(HttpConfig {
        hosts: vec!["api.example.org".to_owned()],
        resource: Some(ResourceMetadata {
            url: "https://api.example.org".to_owned(),
            authorization_servers: vec!["https://login.example.org".to_owned()],
        }),
        ..HttpConfig::default()
    })
    .await;
    let of =
        async |token: &str| with(&api, Method::GET, "/v1/usage", &[("authorization", token)]).await;
    let missing = of("Basic YTpi").await;
    assert_eq!(missing.problem().status, 401);
    let metadata =
        "resource_metadata=\"https://api.example.org/.well-known/oauth-protected-resource\"";
    assert_eq!(
        missing.header("www-authenticate"),
        format!("Bearer realm=\"sandboxctl\", scope=\"executions:read\", {metadata}")
    );
    let invalid = of("Bearer forged").await;
    assert!(invalid.header("www-authenticate").contains("error=\"invalid_token\""));
    assert!(!String::from_utf8_lossy(&invalid.body).contains("expired"));
    let many = of("Bearer flood").await;
    assert_eq!((many.problem().status, many.header("retry-after")), (429, "2"));
    assert_eq!(of("Bearer broken").await.problem().status, 503);
    assert_eq!(of("Bearer alice").await.status, 200);
    let metadata = api.get("/.well-known/oauth-protected-resource").await.json();
    assert_eq!(metadata["authorization_servers"], json!(["https://login.example.org"]));
    let of_mcp = api.get("/.well-known/oauth-protected-resource/mcp").await.json();
    assert_eq!(of_mcp["resource"], "https://api.example.org/mcp");
    // Who needs the tools alone asks for no more.
    assert_eq!(of_mcp["scopes_supported"], json!(["sandboxes"]));
    assert!(metadata["scopes_supported"].as_array().unwrap().len() > 1);
    let without_issuer = api_with(HttpConfig {
        resource: Some(ResourceMetadata {
            url: "https://api.example.org".to_owned(),
            authorization_servers: Vec::new(),
        }),
        hosts: vec!["api.example.org".to_owned()],
        ..HttpConfig::default()
    })
    .await;
    let metadata = without_issuer.get("/.well-known/oauth-protected-resource/mcp").await.json();
    assert!(metadata.get("authorization_servers").is_none(), "{metadata:#}");
    api.run("return 1").await;
    assert_eq!(with(&api, Method::GET, "/metrics", &[]).await.status, 403);
    let metrics = with(&api, Method::GET, "/metrics", &[("authorization", "Bearer admin")]).await;
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    let lines = [
        "sandboxctl_executions_accepted_total 1.0",
        "sandboxctl_executions_queued 0.0",
        "sandboxctl_executions_ended_total{status=\"ok\"} 1.0",
        "sandboxctl_executions_ended_total{status=\"limit\"} 0.0",
        "sandboxctl_queue_wait_seconds_bucket{le=\"+Inf\"} 1",
        "sandboxctl_queue_wait_seconds_count 1",
        "sandboxctl_execution_seconds_count{status=\"ok\"} 1",
        "sandboxctl_pool_filled_total 1.0",
        "sandboxctl_http_requests_total{route=\"get_usage\",status=\"200\"} 1",
        "# EOF",
    ];
    for line in lines {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[tokio::test]
async fn pages_call_only_from_configured_origins() {
    let api = api_with(HttpConfig {
        hosts: vec!["api.example.org".to_owned()],
        origins: vec!["https://console.example.org".to_owned()],
        ..HttpConfig::default()
    })
    .await;
    let from = async |method, origin| {
        let headers = [("origin", origin), ("access-control-request-method", "POST")];
        with(&api, method, "/v1/executions", &headers).await
    };
    assert_eq!(from(Method::POST, "https://evil.example").await.problem().status, 403);
    assert_eq!(from(Method::OPTIONS, "https://evil.example").await.problem().status, 403);
    let preflight = {
        let request = request(Method::OPTIONS, "/v1/executions")
            .header("origin", "https://console.example.org")
            .header("access-control-request-method", "POST");
        let request = request.body(Body::empty()).unwrap();
        tower::ServiceExt::oneshot(api.router.clone(), request).await.unwrap()
    };
    assert_eq!(preflight.status(), 204);
    assert!(preflight.headers()["access-control-allow-methods"].to_str().unwrap().contains("POST"));
    let allowed = from(Method::GET, "https://console.example.org").await;
    assert_eq!(allowed.header("access-control-allow-origin"), "https://console.example.org");
    assert!(!allowed.headers.contains_key("access-control-allow-credentials"));
    let same = from(Method::GET, "https://api.example.org").await;
    assert_eq!(same.status, 200);
    assert!(!same.headers.contains_key("access-control-allow-origin"));
    let elsewhere = with(&api, Method::GET, "/healthz", &[("host", "evil.example")]).await;
    assert_eq!(elsewhere.problem().status, 421);
}

#[tokio::test]
async fn every_answer_has_an_id_and_tells_browsers_what_it_is_not() {
    let api = api().await;
    for path in ["/healthz", "/v1/usage", "/nothing", "/docs"] {
        let answer = with(&api, Method::GET, path, &[("x-request-id", "step-7")]).await;
        assert_eq!(answer.header("x-request-id"), "step-7");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("cross-origin-resource-policy"), "same-origin");
        assert!(answer.header("content-security-policy").starts_with("default-src 'none'"));
    }
    assert_eq!(api.get("/v1/usage").await.header("cache-control"), "no-store");
    assert_eq!(api.get("/v1/usage").await.header("x-request-id").len(), 32);
}

#[tokio::test]
async fn audit_has_every_decision_with_its_subject() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let traces = Arc::new(Mutex::new(Vec::new()));
    let audit = {
        let (seen, traces) = (Arc::clone(&seen), Arc::clone(&traces));
        move |decision: &sandbox_http::AccessDecision<'_>| {
            let subject = decision.subject.map(|it| it.as_str().to_owned());
            let refused = decision.refused.map(|it| it.as_str());
            let reason = decision.reason.map(str::to_owned);
            traces.lock().unwrap().extend(decision.trace_id.map(str::to_owned));
            seen.lock().unwrap().push((
                subject,
                decision.route.map(str::to_owned),
                decision.status,
                refused,
                reason,
            ));
        }
    };
    let api = api_with(HttpConfig {
        hosts: vec!["api.example.org".to_owned()],
        audit: Some(Arc::new(audit)),
        ..HttpConfig::default()
    })
    .await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let traceparent = format!("00-{trace}-00f067aa0ba902b7-01");
    let headers = [("authorization", "Bearer alice"), ("traceparent", &*traceparent)];
    with(&api, Method::GET, "/v1/usage", &headers).await;
    api.get("/v1/executions/of-bob").await;
    with(&api, Method::GET, "/metrics", &[]).await;
    with(&api, Method::GET, "/v1/usage", &[("authorization", "Bearer forged")]).await;
    with(&api, Method::GET, "/healthz", &[("host", "evil.example")]).await;
    assert_eq!(*traces.lock().unwrap(), [trace]);
    let alice = || Some("alice".to_owned());
    let route = |name: &str| Some(name.to_owned());
    assert_eq!(
        *seen.lock().unwrap(),
        [
            (alice(), route("get_usage"), 200, None, None),
            (alice(), route("get_execution"), 404, Some("not_found"), None),
            (alice(), route("get_metrics"), 403, Some("forbidden"), None),
            (None, route("get_usage"), 401, Some("unauthenticated"), Some("expired".to_owned())),
            (None, None, 421, Some("misdirected"), None),
        ]
    );
}
