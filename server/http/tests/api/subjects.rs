//! Two subjects, by every route of the document.

use axum::body::Body;
use axum::http::{Method, Request};
use sandbox_http::Peer;
use serde_json::Value;

use super::{Answer, Api, DOCUMENT, api};

/// The example of the body that an operation reads, and its type.
fn body(operation: &Value) -> Option<(String, String)> {
    let content = operation["requestBody"]["content"].as_object()?;
    let json = content.get("application/json").and_then(|media| media.get("example"));
    Some(match json {
        Some(example) => ("application/json".to_owned(), example.to_string()),
        None => ("application/octet-stream".to_owned(), "content".to_owned()),
    })
}

async fn send(api: &Api, token: &str, method: &str, path: &str, operation: &Value) -> Answer {
    let mut request = Request::builder()
        .method(Method::from_bytes(method.to_uppercase().as_bytes()).unwrap())
        .uri(path)
        .header("host", "127.0.0.1")
        .header("authorization", format!("Bearer {token}"))
        .extension(Peer::Tcp(([127, 0, 0, 1], 7).into()));
    let body = match body(operation) {
        None => Body::empty(),
        Some((content_type, body)) => {
            request = request.header("content-type", content_type);
            body.into()
        }
    };
    api.send(request.body(body).unwrap()).await
}

fn path_of(template: &str, id: &str) -> String {
    template
        .replace("{id}", id)
        .replace("{path}", "out.csv")
        .replace("{name}", "none.js")
        .replace("{process}", "1")
        .replace("{port}", "8080")
}

#[tokio::test]
async fn no_route_shows_one_subject_what_another_has() {
    let api = api().await;
    let (execution, sandbox) = (api.run("return 'of alice'").await, api.sandbox().await);
    let mut tried = 0;
    for (template, methods) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let id = if template.contains("/sandboxes/") { &sandbox } else { &execution };
            let path = path_of(template, id);
            let is_public = operation["security"].as_array().unwrap().is_empty();
            let anonymous = send(&api, "nobody", method, &path, operation).await;
            assert_eq!(anonymous.status == 401, !is_public, "{method} {template}");
            let bob = send(&api, "bob", method, &path, operation).await;
            if template.contains("{id}") {
                tried += 1;
                assert_eq!(bob.problem().status, 404, "{method} {template}");
                let unknown = path_of(template, "unknown");
                let unknown = send(&api, "bob", method, &unknown, operation).await;
                // Not even the refusal distinguishes the two.
                let (mut one, mut other) = (bob.problem(), unknown.problem());
                (one.instance, other.instance) = (None, None);
                one.detail = one.detail.replace(&**id, "unknown");
                assert_eq!(one, other, "{method} {template}");
            } else if !is_public && method == "get" {
                let text = String::from_utf8_lossy(&bob.body).into_owned();
                assert!(!text.contains(&*execution) && !text.contains(&*sandbox), "{template}");
            }
        }
    }
    assert!(tried >= 14, "{tried}");
    // Nothing was changed by all that.
    let path = format!("/v1/sandboxes/{sandbox}");
    let operation = &DOCUMENT["paths"]["/v1/sandboxes/{id}"]["get"];
    assert_eq!(send(&api, "alice", "get", &path, operation).await.status, 200);
}

#[tokio::test]
async fn every_route_needs_its_scope() {
    let api = api().await;
    let (execution, sandbox) = (api.run("return 1").await, api.sandbox().await);
    for (template, methods) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let Some(scope) = operation["security"][0]["bearer"][0].as_str() else { continue };
            let id = if template.contains("/sandboxes/") { &sandbox } else { &execution };
            let path = path_of(template, id);
            let answer = send(&api, "reader", method, &path, operation).await;
            match scope {
                "executions:read" => assert_eq!(answer.status, 200, "{method} {template}"),
                _ => {
                    assert_eq!(answer.problem().status, 403, "{method} {template}");
                    let challenge = answer.header("www-authenticate");
                    assert!(challenge.contains(&format!("scope=\"{scope}\"")), "{challenge}");
                }
            }
        }
    }
}
