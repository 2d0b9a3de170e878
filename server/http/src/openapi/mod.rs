//! The OpenAPI 3.1 document, made from the table of routes.

use std::collections::{BTreeMap, BTreeSet};

use sandbox_api::{Problem, ProblemKind, schema};
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::access::Needs;
use crate::limit::Limit;
use crate::refusal::PROBLEM_JSON;
use crate::route::{Content, Route, Tag};

const COMPONENTS: &str = "/components/schemas";

/// The document of these routes.
pub(crate) fn document(routes: &[Route]) -> Value {
    let mut requests = generator(schema::request_settings());
    let mut answers = generator(schema::answer_settings());
    let mut paths = Map::new();
    let mut statuses = BTreeSet::new();
    for route in routes {
        let operation = operation(route, &mut requests, &mut answers, &mut statuses);
        let method = route.method.as_str().to_ascii_lowercase();
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[method] = operation;
    }
    answers.subschema_for::<Problem>();
    let (mut schemas, renamed) =
        merge(requests.take_definitions(true), answers.take_definitions(true));
    for path in paths.values_mut().filter_map(Value::as_object_mut) {
        for operation in path.values_mut() {
            for part in ["parameters", "requestBody"] {
                rename(&mut operation[part], &renamed);
            }
        }
    }
    remove_nulls(&mut paths);
    keep_used(&mut schemas, paths.values());
    json!({
        "openapi": "3.1.1",
        "info": {
            "title": "sandboxctl",
            "version": "1",
            "summary": "Untrusted scripts and commands, each in a fresh container",
            "description": DESCRIPTION,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [{ "url": "/", "description": "This server" }],
        "tags": Tag::ALL.iter().map(|tag| json!({
            "name": tag.as_str(),
            "description": tag.description(),
        })).collect::<Vec<_>>(),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": problems(&statuses),
            "headers": {
                "X-Request-Id": {
                    "description": "The id of the request: the caller's own, or a random one.",
                    "schema": { "type": "string" },
                },
            },
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A JWT of the configured issuer, or a token of `sandboxctl token \
                        create`. Over a UNIX socket its user is known without one.",
                },
            },
        },
    })
}

const DESCRIPTION: &str = "\
Runs scripts and commands in sandboxes, and keeps their results and files.

Names are `snake_case`, times RFC 3339 in UTC, sizes bytes and durations milliseconds, as the names \
of members say. Every error is a Problem Details document (RFC 9457): its `kind` is stable. Objects \
belong to the subject that created them; another subject's are not found. A request with an \
`Idempotency-Key` may be repeated: it is accepted once.

What is no JSON is answered 400, another content type 415, an unknown member, a wrong type or an \
invalid parameter 422.";

fn generator(mut settings: schemars::generate::SchemaSettings) -> SchemaGenerator {
    settings.definitions_path = COMPONENTS.into();
    settings.into_generator()
}

fn operation(
    route: &Route,
    requests: &mut SchemaGenerator,
    answers: &mut SchemaGenerator,
    statuses: &mut BTreeSet<u16>,
) -> Value {
    let mut responses = Map::new();
    for answer in &route.answers {
        let content = (!answer.content.is_empty()).then(|| content(&answer.content, answers));
        let mut headers =
            json!({ "X-Request-Id": { "$ref": "#/components/headers/X-Request-Id" } });
        for (name, description) in &answer.headers {
            headers[*name] = json!({ "description": description, "schema": { "type": "string" } });
        }
        responses.insert(
            answer.status.to_string(),
            json!({ "description": answer.description, "headers": headers, "content": content }),
        );
    }
    for status in route.problems() {
        statuses.insert(status);
        // An answer may use the status of a problem, as /readyz does.
        responses.entry(status.to_string()).or_insert_with(
            || json!({ "$ref": format!("#/components/responses/Problem{status}") }),
        );
    }
    let body = route
        .body
        .as_ref()
        .map(|body| json!({ "required": body.limit != Limit::Upload, "content": content(&body.content, requests) }));
    let security = match route.needs {
        Needs::Nothing => json!([]),
        Needs::Caller => json!([{ "bearer": [] }]),
        Needs::Scope(scope) => json!([{ "bearer": [scope.as_str()] }]),
    };
    let parameters = parameters(route, requests);
    json!({
        "operationId": route.name,
        "tags": [route.tag.as_str()],
        "summary": route.summary,
        "description": (!route.description.is_empty()).then_some(route.description),
        "parameters": (!parameters.is_empty()).then_some(parameters),
        "requestBody": body,
        "responses": responses,
        "security": security,
    })
}

fn content(contents: &[Content], generator: &mut SchemaGenerator) -> Value {
    let mut all = Map::new();
    for content in contents {
        let schema = transformed((content.schema)(generator), generator);
        let mut media = json!({ "schema": schema });
        if let Some(example) = content.example {
            media["example"] = example();
        }
        all.insert(content.media_type.to_owned(), media);
    }
    all.into()
}

/// Definitions are transformed when they are taken; their siblings are not.
fn transformed(mut schema: Schema, generator: &mut SchemaGenerator) -> Schema {
    for transform in generator.transforms_mut() {
        transform.transform(&mut schema);
    }
    schema
}

fn parameters(route: &Route, generator: &mut SchemaGenerator) -> Vec<Value> {
    let mut all = Vec::new();
    let names = route.path.split('/').filter_map(|segment| {
        segment.strip_prefix('{').and_then(|segment| segment.strip_suffix('}'))
    });
    for name in names {
        let description = match name {
            "path" => {
                "The path of a file, relative to the io dir. Its slashes may be percent-encoded or not; \
                bytes that are not UTF-8 are."
            }
            "process" => "The number of the process.",
            "name" => "The name of the asset.",
            _ => "The id, as it was given at the creation.",
        };
        let schema = match name {
            "process" => json!({ "type": "integer", "minimum": 1 }),
            _ => json!({ "type": "string", "minLength": 1 }),
        };
        all.push(json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": description,
            "schema": schema,
        }));
    }
    for (name, description, schema) in &route.headers {
        all.push(json!({
            "name": name,
            "in": "header",
            "required": false,
            "description": description,
            "schema": schema,
        }));
    }
    let query = route.query.map(|query| transformed(query(generator), generator));
    let members = query.as_ref().and_then(|it| it.get("properties")).and_then(Value::as_object);
    let required = query.as_ref().and_then(|it| it.get("required")).and_then(Value::as_array);
    for (name, mut schema) in members.cloned().unwrap_or_default() {
        let description = schema.as_object_mut().and_then(|it| it.remove("description"));
        without_null(&mut schema);
        all.push(json!({
            "name": name,
            "in": "query",
            "required": required.is_some_and(|it| it.contains(&Value::from(name.as_str()))),
            "description": description,
            "schema": schema,
        }));
    }
    all
}

/// A parameter is there or not: it is never null.
fn without_null(schema: &mut Value) {
    if let Some(types) = schema.get_mut("type").filter(|it| it.is_array()) {
        let others = types.as_array().into_iter().flatten().find(|it| *it != "null").cloned();
        *types = others.unwrap_or_default();
    }
    let choice = schema.get("anyOf").and_then(Value::as_array).cloned();
    if let Some(choice) = choice {
        let others: Vec<Value> = choice.into_iter().filter(|it| it["type"] != "null").collect();
        if let [other] = &*others {
            let other = other.clone();
            *schema = other;
        }
    }
}

/// The answers that are problems, by their status.
fn problems(statuses: &BTreeSet<u16>) -> Value {
    let mut all = Map::new();
    for &status in statuses {
        let kinds = ProblemKind::OWN.iter().filter(|kind| kind.status() == status);
        let kinds: Vec<String> = kinds.map(|kind| format!("`{kind}`: {}", kind.title())).collect();
        let description = match &*kinds {
            [] => "the sandbox or its engine failed".to_owned(),
            kinds => kinds.join("; "),
        };
        let mut headers =
            json!({ "X-Request-Id": { "$ref": "#/components/headers/X-Request-Id" } });
        let mut add = |name: &str, description: &str| {
            headers[name] = json!({ "description": description, "schema": { "type": "string" } });
        };
        match status {
            401 => add("WWW-Authenticate", "How to authenticate."),
            416 => add("Content-Range", "The size of the file."),
            429 | 503 => add("Retry-After", "The seconds after which it may succeed, if known."),
            _ => {}
        }
        all.insert(
            format!("Problem{status}"),
            json!({
                "description": description,
                "headers": headers,
                "content": { PROBLEM_JSON: {
                    "schema": { "$ref": format!("#{COMPONENTS}/Problem") },
                }},
            }),
        );
    }
    all.into()
}

type Schemas = Map<String, Value>;

/// One list of definitions. A type whose requests differ from its answers is there twice: in
/// requests its name ends with `Input`. The second value has the new names.
fn merge(requests: Schemas, answers: Schemas) -> (Schemas, BTreeMap<String, String>) {
    let mut differing: BTreeSet<&str> = requests
        .iter()
        .filter(|(name, schema)| answers.get(*name).is_some_and(|other| other != *schema))
        .map(|(name, _)| name.as_str())
        .collect();
    // What refers to one of them differs too, if it is in both.
    loop {
        let more: Vec<&str> = requests
            .iter()
            .filter(|(name, schema)| {
                answers.contains_key(*name)
                    && !differing.contains(name.as_str())
                    && differing.iter().any(|it| refers(schema, it))
            })
            .map(|(name, _)| name.as_str())
            .collect();
        if more.is_empty() {
            break;
        }
        differing.extend(more);
    }
    let renamed: BTreeMap<String, String> =
        differing.into_iter().map(|name| (name.to_owned(), format!("{name}Input"))).collect();
    let mut all = answers;
    for (name, mut schema) in requests {
        rename(&mut schema, &renamed);
        let name = renamed.get(&name).cloned().unwrap_or(name);
        all.insert(name, schema);
    }
    (all, renamed)
}

/// Drops the definitions to which nothing leads: from the paths or from problems.
fn keep_used<'a>(schemas: &mut Schemas, paths: impl Iterator<Item = &'a Value>) {
    let mut used = BTreeSet::from(["Problem".to_owned()]);
    paths.for_each(|path| targets(path, &mut used));
    loop {
        let known = used.len();
        let of_used = schemas.iter().filter(|(name, _)| used.contains(*name));
        let mut more = BTreeSet::new();
        of_used.for_each(|(_, schema)| targets(schema, &mut more));
        used.append(&mut more);
        if used.len() == known {
            break;
        }
    }
    schemas.retain(|name, _| used.contains(name));
}

/// The names of what this refers to.
fn targets(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            if let Some(target) = members.get("$ref").and_then(Value::as_str) {
                names.insert(target.rsplit('/').next().unwrap_or_default().to_owned());
            }
            members.values().for_each(|value| targets(value, names));
        }
        Value::Array(items) => items.iter().for_each(|item| targets(item, names)),
        _ => {}
    }
}

fn refers(schema: &Value, name: &str) -> bool {
    let mut names = BTreeSet::new();
    targets(schema, &mut names);
    names.contains(name)
}

fn rename(schema: &mut Value, renamed: &BTreeMap<String, String>) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members {
                match value {
                    Value::String(target) if key == "$ref" => {
                        let name = target.rsplit('/').next().unwrap_or_default();
                        if let Some(new) = renamed.get(name) {
                            *target = format!("#{COMPONENTS}/{new}");
                        }
                    }
                    value => rename(value, renamed),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, renamed)),
        _ => {}
    }
}

/// Absent parts of operations and parameters. Schemas and examples keep theirs.
fn remove_nulls(paths: &mut Map<String, Value>) {
    let drop = |object: &mut Value| {
        if let Some(members) = object.as_object_mut() {
            members.retain(|_, value| !value.is_null());
        }
    };
    for operation in paths.values_mut().filter_map(Value::as_object_mut).flat_map(Map::values_mut) {
        drop(operation);
        operation["responses"].as_object_mut().into_iter().flat_map(Map::values_mut).for_each(drop);
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        parameters.into_iter().flatten().for_each(drop);
    }
}
