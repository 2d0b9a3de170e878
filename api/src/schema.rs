//! JSON Schemas of the public documents, as clients are given them: draft 2020-12.

use std::fmt::Write as _;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::Value;

/// The settings of every schema, for requests: a member with a default is optional.
pub fn request_settings() -> SchemaSettings {
    with_transforms(SchemaSettings::draft2020_12().for_deserialize())
}

/// The settings of every schema, for answers: a member that is always written is required.
pub fn answer_settings() -> SchemaSettings {
    with_transforms(SchemaSettings::draft2020_12().for_serialize())
}

/// The schema of a document in requests.
pub fn request<T: JsonSchema + ?Sized>() -> Value {
    without_unused(request_settings().into_generator().into_root_schema_for::<T>()).into()
}

/// The schema of a document in answers.
pub fn answer<T: JsonSchema + ?Sized>() -> Value {
    without_unused(answer_settings().into_generator().into_root_schema_for::<T>()).into()
}

/// A schema without the definition of names, where none is in their own form: results have them in the
/// [public one](sandbox_protocol::names).
pub fn without_unused(mut schema: Schema) -> Schema {
    let is_used = schema.as_value().to_string().contains("\"#/$defs/Content\"");
    if !is_used && let Some(Value::Object(definitions)) = schema.get_mut("$defs") {
        definitions.remove("Content");
        if definitions.is_empty() {
            schema.remove("$defs");
        }
    }
    schema
}

fn with_transforms(settings: SchemaSettings) -> SchemaSettings {
    settings
        .with_transform(RecursiveTransform(bound_integers))
        .with_transform(RecursiveTransform(join_names))
        .with_transform(RecursiveTransform(plain_description))
}

/// The sizes of integers are named by formats, which validators ignore: they become bounds too.
fn bound_integers(schema: &mut Schema) {
    let (least, most): (i64, u64) = match schema.get("format").and_then(Value::as_str) {
        Some("uint8") => (0, u8::MAX.into()),
        Some("uint16") => (0, u16::MAX.into()),
        Some("uint32") => (0, u32::MAX.into()),
        Some("uint64" | "uint") => (0, u64::MAX),
        Some("int32") => (i32::MIN.into(), i32::MAX.unsigned_abs().into()),
        Some("int64") => (i64::MIN, i64::MAX.unsigned_abs()),
        _ => return,
    };
    let bounds = schema.ensure_object();
    bounds.entry("minimum").or_insert(least.into());
    bounds.entry("maximum").or_insert(most.into());
}

/// Names with a description each become one list, which more programs understand; the descriptions
/// stay, in one text.
fn join_names(schema: &mut Schema) {
    let Some(variants) = schema.get("oneOf").and_then(Value::as_array) else { return };
    let mut names: Vec<Value> = Vec::new();
    let mut text = schema.get("description").and_then(Value::as_str).unwrap_or("").to_owned();
    text.push('\n');
    for variant in variants {
        if variant.get("type").and_then(Value::as_str) != Some("string") {
            return;
        }
        match (variant.get("const"), variant.get("enum").and_then(Value::as_array)) {
            (Some(Value::String(name)), _) => {
                let meaning = variant.get("description").and_then(Value::as_str).unwrap_or("");
                _ = write!(text, "\n- `{name}`: {meaning}");
                names.push(name.as_str().into());
            }
            (_, Some(more)) => names.extend(more.iter().cloned()),
            _ => return,
        }
    }
    let object = schema.ensure_object();
    object.remove("oneOf");
    object.insert("type".to_owned(), "string".into());
    object.insert("enum".to_owned(), names.into());
    object.insert("description".to_owned(), text.trim().into());
}

/// Links to Rust items are only text to everyone else: `` [`None`](path) `` is `` `None` ``.
fn plain_description(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = without_links(text);
    }
}

fn without_links(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('[') {
        let Some((label, after)) = rest[start + 1..].split_once(']') else { break };
        plain.push_str(&rest[..start]);
        let target = after.strip_prefix('(').and_then(|link| link.split_once(')'));
        match target {
            Some((_, after)) => {
                plain.push_str(label);
                rest = after;
            }
            None if label.starts_with('`') && label.ends_with('`') => {
                plain.push_str(label);
                rest = after;
            }
            None => {
                plain.push('[');
                rest = &rest[start + 1..];
            }
        }
    }
    plain.push_str(rest);
    // The words of Rust where JSON has its own.
    plain.replace("`None`", "null")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_have_no_links_to_rust() {
        for (text, plain) in [
            ("no link", "no link"),
            ("`None` for all", "null for all"),
            ("see [`Limits`], and [this](crate::x::Y).", "see `Limits`, and this."),
            ("[`a`](b) [c", "`a` [c"),
            ("`HOST[:PORT]` [0, 1]", "`HOST[:PORT]` [0, 1]"),
        ] {
            assert_eq!(without_links(text), plain);
        }
    }

    #[test]
    fn names_are_one_list_with_their_meanings() {
        let schema = answer::<crate::engine_kind::EngineKind>();
        assert_eq!(schema["enum"], serde_json::json!(["docker", "embedded"]));
        let text = schema["description"].as_str().unwrap();
        assert!(text.starts_with("A kind of engine.\n\n- `docker`: A Docker Engine"), "{text}");
        assert_eq!(request::<u8>()["maximum"], 255);
    }
}
