//! The OpenAPI document itself.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::{DOCUMENT, api, validate};

/// Calls this for every object in the document.
fn walk(value: &Value, visit: &mut impl FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Object(members) => {
            visit(members);
            members.values().for_each(|value| walk(value, visit));
        }
        Value::Array(items) => items.iter().for_each(|item| walk(item, visit)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_component_is_used() {
    let mut targets = BTreeSet::new();
    walk(&DOCUMENT, &mut |members| {
        if let Some(target) = members.get("$ref").and_then(Value::as_str) {
            assert!(DOCUMENT.pointer(target.trim_start_matches('#')).is_some(), "{target}");
            targets.insert(target.to_owned());
        }
    });
    for (kind, components) in DOCUMENT["components"].as_object().unwrap() {
        for name in components.as_object().unwrap().keys() {
            let is_used = kind == "securitySchemes"
                || targets.contains(&format!("#/components/{kind}/{name}"));
            assert!(is_used, "{kind} {name}");
            let is_name = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
            assert!(name.chars().all(is_name), "{name}");
        }
    }
}

#[test]
fn operations_are_complete_and_have_names_of_their_own() {
    let mut names = BTreeSet::new();
    for (path, methods) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name), "{name}");
            assert!(!operation["summary"].as_str().unwrap().is_empty(), "{name}");
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let in_path: BTreeSet<&str> = parameters
                .filter(|it| it["in"] == "path")
                .map(|it| it["name"].as_str().unwrap())
                .collect();
            let named: BTreeSet<&str> = path
                .split('/')
                .filter_map(|it| it.strip_prefix('{').and_then(|it| it.strip_suffix('}')))
                .collect();
            assert_eq!(in_path, named, "{method} {path}");
            let statuses: Vec<&String> =
                operation["responses"].as_object().unwrap().keys().collect();
            let is_good = |status: &&String| {
                status.starts_with('2') || ["101", "308"].contains(&status.as_str())
            };
            assert!(statuses.iter().any(is_good), "{name}: {statuses:?}");
        }
    }
}

#[test]
fn parameters_and_events_are_what_openapi_3_1_and_generators_of_clients_know() {
    walk(&DOCUMENT, &mut |members| {
        if members.get("in").is_some_and(|it| it == "path" || it == "header") {
            // What else there may be in a query.
            for odd in ["allowReserved", "allowEmptyValue"] {
                assert!(!members.contains_key(odd), "{odd}: {members:?}");
            }
        }
    });
    let events = DOCUMENT["paths"]["/v1/executions/{id}/events"]["get"]["responses"].clone();
    // OpenAPI 3.1 has one schema for a stream: that of an event, whose data is JSON.
    let data = &events["200"]["content"]["text/event-stream"]["schema"]["properties"]["data"];
    assert_eq!(data["contentMediaType"], "application/json");
    assert_eq!(data["contentSchema"]["$ref"], "#/components/schemas/ExecutionEvent");
}

#[test]
fn examples_are_valid_and_schemas_are_schemas() {
    for schema in DOCUMENT["components"]["schemas"].as_object().unwrap().values() {
        let mut root = schema.clone();
        root["components"] = DOCUMENT["components"].clone();
        jsonschema::draft202012::new(&root).unwrap_or_else(|error| panic!("{error}: {schema:#}"));
    }
    let mut count = 0;
    walk(&DOCUMENT, &mut |members| {
        if let (Some(schema), Some(example)) = (members.get("schema"), members.get("example")) {
            validate(schema, example, "example");
            count += 1;
        }
    });
    assert!(count > 3, "{count}");
}

#[test]
fn no_description_speaks_of_rust() {
    let mut wrong = Vec::new();
    walk(&DOCUMENT, &mut |members| {
        for key in ["description", "summary"] {
            let Some(text) = members.get(key).and_then(Value::as_str) else { continue };
            if ["::", "`None`", "`Some", "[`", "crate"].iter().any(|word| text.contains(word)) {
                wrong.push(text.to_owned());
            }
        }
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// `BLESS=1 cargo test -p sandbox-http --test api committed` writes it anew.
#[tokio::test]
async fn committed_document_is_that_of_the_server() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference/openapi.json");
    let answer = api().await.get("/v1/openapi.json").await;
    assert_eq!(answer.status, 200);
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "docs/src/reference/openapi.json is not what the server gives: \
         BLESS=1 cargo test -p sandbox-http --test api committed"
    );
}
