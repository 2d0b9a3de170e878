//! JSON Schemas of what the tools take and give: those of the types, in a form that every client
//! reads, and as short as they can be: models pay for each byte of the list of tools.

use rmcp::model::JsonObject;
use sandbox_api::OperationRequest;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// The schema of what a tool takes. Some models' interfaces refuse a choice at the top: which members
/// exclude each other is said by their descriptions, and checked when they are read.
pub(super) fn input<T: JsonSchema>() -> JsonObject {
    let mut schema = schema::<T>(SchemaSettings::draft2020_12());
    for word in ["oneOf", "anyOf", "allOf"] {
        schema.remove(word);
    }
    schema
}

/// The schema of what an operation takes, beside its name.
pub(super) fn operation(name: &str) -> JsonObject {
    let mut schema = schema::<OperationRequest>(SchemaSettings::draft2020_12());
    let variants = schema.remove("oneOf").and_then(|it| it.as_array().cloned());
    let is_it = |variant: &Value| variant["properties"]["operation"]["const"] == name;
    let Some(Value::Object(mut variant)) = variants.into_iter().flatten().find(is_it) else {
        return schema;
    };
    variant.remove("description");
    let is_rename = name == "rename";
    properties(&mut variant).retain(|member, _| match &**member {
        "operation" | "permissions" => false,
        "parents" => !is_rename,
        member => !is_beyond_agents(member),
    });
    if let Some(Value::Array(required)) = variant.get_mut("required") {
        required.retain(|name| name != "operation");
        if required.is_empty() {
            variant.remove("required");
        }
    }
    variant
}

/// Members that are for sandboxes whose operations go beyond the io dir, which those of agents do not.
fn is_beyond_agents(name: &str) -> bool {
    ["details", "follow", "metadata", "target", "target_b64"].contains(&name)
}

/// The schema of what a tool gives: its members and their types. What they mean, their names say, and the
/// documentation.
pub(super) fn output<T: JsonSchema>() -> JsonObject {
    let mut value = Value::Object(schema::<T>(SchemaSettings::draft2020_12().for_serialize()));
    shorten(&mut value);
    match value {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    }
}

/// Removes what a reader of a result does without: descriptions, bounds, which members are always there, and long
/// lists of words.
fn shorten(value: &mut Value) {
    /// The longest list of words in a message.
    const MAX_WORDS: usize = 8;
    match value {
        Value::Object(object) => {
            if let Some(Value::Object(members)) = object.get_mut("properties") {
                members.retain(|name, _| !is_beyond_agents(name));
            }
            // Without those members more than one of the choices may fit.
            if let Some(choices) = object.remove("oneOf") {
                object.insert("anyOf".to_owned(), choices);
            }
            object.retain(|name, value| match (&**name, value) {
                ("description", Value::String(_))
                | ("additionalProperties", Value::Bool(_))
                | ("required", Value::Array(_))
                | ("minimum" | "maximum", Value::Number(_)) => false,
                ("enum", Value::Array(words)) => words.len() <= MAX_WORDS,
                _ => true,
            });
            object.values_mut().for_each(shorten);
        }
        Value::Array(items) => items.iter_mut().for_each(shorten),
        _ => {}
    }
}

fn schema<T: JsonSchema>(mut settings: SchemaSettings) -> JsonObject {
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    let mut object = std::mem::take(schema.ensure_object());
    // They are about the type, not about the tool.
    for word in ["$schema", "title", "description"] {
        object.remove(word);
    }
    // An enum of objects says so only in its variants.
    object.insert("type".to_owned(), "object".into());
    let mut value = Value::Object(object);
    simplify(&mut value);
    match value {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    }
}

/// Removes the formats that only Rust knows and what is said of base64, and writes a choice of words as one.
fn simplify(value: &mut Value) {
    match value {
        Value::Object(object) => {
            let is_rusts = |format: &Value| {
                let format = format.as_str().unwrap_or_default();
                format.starts_with("uint") || format.starts_with("int")
            };
            if object.get("format").is_some_and(is_rusts) {
                object.remove("format");
            }
            if object.remove("contentEncoding").is_some() {
                object.remove("pattern");
            }
            // A name: text, or its bytes.
            if let Some(bytes) = value_of_bytes(object) {
                object.remove("oneOf");
                object.insert("type".to_owned(), json!(["string", "object"]));
                object.insert("properties".to_owned(), json!({ "b64": bytes }));
            }
            if let Some(words) = words(object) {
                object.remove("oneOf");
                object.insert("type".to_owned(), "string".into());
                object.insert("enum".to_owned(), words.into());
            }
            object.values_mut().for_each(simplify);
        }
        Value::Array(items) => items.iter_mut().for_each(simplify),
        _ => {}
    }
}

/// The schema of the bytes, if a schema is that of a name.
fn value_of_bytes(schema: &JsonObject) -> Option<Value> {
    schema.get("oneOf")?.pointer("/1/properties/b64").cloned()
}

/// The words, if a schema is a choice of them.
fn words(schema: &JsonObject) -> Option<Vec<Value>> {
    let variants = schema.get("oneOf")?.as_array()?;
    let mut words = Vec::new();
    for variant in variants {
        match (variant.get("const"), variant.get("enum").and_then(Value::as_array)) {
            (Some(word), _) => words.push(word.clone()),
            (None, Some(some)) => words.extend(some.iter().cloned()),
            (None, None) => return None,
        }
    }
    words.iter().all(Value::is_string).then_some(words)
}

/// The properties of a schema.
pub(super) fn properties(schema: &mut JsonObject) -> &mut JsonObject {
    let properties = schema.entry("properties").or_insert_with(|| JsonObject::new().into());
    if !properties.is_object() {
        *properties = JsonObject::new().into();
    }
    properties.as_object_mut().expect("made one above")
}
