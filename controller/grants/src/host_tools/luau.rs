//! Luau types from JSON Schemas, for the authors of scripts.
//!
//! The providers of tools write the schemas: references, depth and length are bounded.

use std::cell::Cell;
use std::collections::BTreeMap;

use sandbox_api::HostTool;
use sandbox_protocol::limits::{MAX_TOOL_NAME_BYTES, cut_encoded};
use serde_json::{Map, Value};

/// How deep a schema is followed, references included; what is deeper is `any`.
const MAX_DEPTH: usize = 8;
/// Most bytes of a type.
const MAX_TYPE_BYTES: usize = 8 << 10;
/// Most bytes of a tool's description.
const MAX_DESCRIPTION_BYTES: usize = 4 << 10;
/// Most members of an object.
const MAX_MEMBERS: usize = 100;
/// Most literals of an enum.
const MAX_LITERALS: usize = 64;
/// Most schemas that are looked at for a type: references could lead to one of them without end.
const MAX_SCHEMAS: usize = 1000;

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// How a tool is called, with the types of its arguments and its result, and what it does.
pub fn describe(tool: &HostTool) -> String {
    let ([group, name], [arguments, result]) = (names(tool), types(tool));
    let called = format!("tools{}{}", member(group, "."), member(name, "."));
    format!("{called}(arguments: {arguments}) -> {result}\n{}", does(tool)).trim_end().to_owned()
}

/// The groups of these tools, as members in the declaration of `tools`.
pub fn declare<'a>(tools: impl IntoIterator<Item = &'a HostTool>) -> String {
    let mut groups = BTreeMap::<_, String>::new();
    for tool in tools {
        let ([group, name], [arguments, result]) = (names(tool), types(tool));
        let text = groups.entry(group).or_default();
        does(tool).lines().for_each(|line| *text += &format!("\t\t--- {line}\n"));
        let called = member(name, "");
        *text +=
            &format!("\t\t{called}: (arguments: {arguments}) -> ({result}, {{ ToolFile }}?),\n");
    }
    let group = |(name, text)| format!("\t{}: {{\n{text}\t}},\n", member(name, ""));
    groups.into_iter().map(group).collect()
}

/// A tool's group, and its own name.
fn names(tool: &HostTool) -> [&str; 2] {
    tool.name.split_once('.').unwrap_or((&tool.name, "")).into()
}

/// The types of its arguments and its result.
fn types(tool: &HostTool) -> [String; 2] {
    let result = tool.output.as_ref();
    let result = result.map_or("any".to_owned(), |it| type_of(it, result_member(tool)));
    [type_of(&tool.input, None), result]
}

fn does(tool: &HostTool) -> &str {
    cut_encoded(&tool.description, MAX_DESCRIPTION_BYTES)
}

/// The schema of the member `result`, if results of the tool have no other one.
pub(super) fn result_member(tool: &HostTool) -> Option<&Value> {
    let properties = tool.output.as_ref()?.get("properties")?.as_object()?;
    properties.get("result").filter(|_| properties.len() == 1)
}

/// The type of what a schema allows, or a part of it.
fn type_of(root: &Map<String, Value>, part: Option<&Value>) -> String {
    let schema = Schema { root, left: Cell::new(MAX_SCHEMAS) };
    let text = part.map_or_else(|| schema.object(root, 0), |part| schema.of(part, 0));
    if text.len() <= MAX_TYPE_BYTES { text } else { "{ [string]: any }".to_owned() }
}

/// A name after a dot or nothing, or as a literal in brackets.
fn member(name: &str, before: &str) -> String {
    let is_letter = |char: char| char.is_ascii_alphabetic() || char == '_';
    let is_identifier = name.starts_with(is_letter)
        && name.chars().all(|char| is_letter(char) || char.is_ascii_digit())
        && !KEYWORDS.contains(&name);
    // The escapes of Rust are escapes of Luau too.
    if is_identifier { format!("{before}{name}") } else { format!("[{name:?}]") }
}

/// A schema, whose references are into itself.
struct Schema<'a> {
    root: &'a Map<String, Value>,
    /// How many of its parts may still be looked at.
    left: Cell<usize>,
}

impl Schema<'_> {
    fn of(&self, schema: &Value, depth: usize) -> String {
        match schema {
            Value::Object(schema) if depth < MAX_DEPTH && self.left.get() > 0 => {
                self.left.set(self.left.get() - 1);
                self.object(schema, depth)
            }
            _ => "any".to_owned(),
        }
    }

    fn object(&self, schema: &Map<String, Value>, depth: usize) -> String {
        let inner = |schema| self.of(schema, depth + 1);
        let list = |key| schema.get(key).and_then(Value::as_array);
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            return self.referred(target).map_or("any".to_owned(), inner);
        }
        if let Some(literals) = list("enum") {
            return union(literals.iter().take(MAX_LITERALS).map(literal));
        }
        let all_of = || list("allOf").filter(|all| all.len() == 1);
        if let Some(schemas) = list("anyOf").or_else(|| list("oneOf")).or_else(all_of) {
            return union(schemas.iter().map(inner));
        }
        let items = || schema.get("items").map_or("any".to_owned(), inner);
        let named = |name: &str| match name {
            "string" | "boolean" => name.to_owned(),
            "integer" | "number" => "number".to_owned(),
            "null" => "nil".to_owned(),
            "array" => format!("{{ {} }}", items()),
            "object" => self.table(schema, depth),
            _ => "any".to_owned(),
        };
        match (schema.get("const"), schema.get("type")) {
            (Some(value), _) => literal(value),
            (_, Some(Value::String(name))) => named(name),
            (_, Some(Value::Array(names))) => {
                union(names.iter().filter_map(Value::as_str).map(named))
            }
            _ if schema.contains_key("properties") => named("object"),
            _ if schema.contains_key("items") => named("array"),
            _ => "any".to_owned(),
        }
    }

    /// What a reference leads to: only into the schema itself.
    fn referred(&self, target: &str) -> Option<&Value> {
        let (first, rest) = target.strip_prefix("#/")?.split_once('/')?;
        self.root.get(first)?.pointer(&format!("/{rest}"))
    }

    fn table(&self, schema: &Map<String, Value>, depth: usize) -> String {
        let required = schema.get("required").and_then(Value::as_array);
        let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|it| it == name));
        let mut members = Vec::new();
        let properties = schema.get("properties").and_then(Value::as_object);
        let properties = properties.into_iter().flatten().take(MAX_MEMBERS);
        for (name, schema) in properties.filter(|it| it.0.len() <= MAX_TOOL_NAME_BYTES) {
            let kind = self.of(schema, depth + 1);
            let kind = if is_required(name) { kind } else { optional(&kind) };
            members.push(format!("{}: {kind}", member(name, "")));
        }
        match schema.get("additionalProperties") {
            Some(more @ Value::Object(_)) => {
                members.push(format!("[string]: {}", self.of(more, depth + 1)));
            }
            None if members.is_empty() => members.push("[string]: any".to_owned()),
            _ => {}
        }
        if members.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", members.join(", ")) }
    }
}

/// The type of one value. Luau has literals of strings and booleans.
fn literal(value: &Value) -> String {
    match value {
        Value::String(text) if text.len() > MAX_TOOL_NAME_BYTES => "string".to_owned(),
        Value::String(text) => format!("{text:?}"),
        Value::Bool(value) => value.to_string(),
        Value::Number(_) => "number".to_owned(),
        Value::Null => "nil".to_owned(),
        Value::Array(_) | Value::Object(_) => "any".to_owned(),
    }
}

/// One of several types, each once. With nil, it is optional.
fn union(types: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = Vec::new();
    for kind in types {
        if !all.contains(&kind) {
            all.push(kind);
        }
    }
    if all.is_empty() || all.iter().any(|kind| kind == "any") {
        return "any".to_owned();
    }
    let count = all.len();
    all.retain(|kind| kind != "nil" || count == 1);
    let text = all.join(" | ");
    if all.len() < count { optional(&text) } else { text }
}

fn optional(kind: &str) -> String {
    match kind {
        "any" | "nil" => kind.to_owned(),
        _ if kind.ends_with('?') => kind.to_owned(),
        _ if kind.contains(" | ") && !kind.starts_with('{') => format!("({kind})?"),
        _ => format!("{kind}?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn type_of(schema: Value) -> String {
        let Value::Object(schema) = schema else { panic!("it is an object") };
        super::type_of(&schema, None)
    }

    #[test]
    fn schemas_become_types() {
        for (schema, expected) in [
            (json!({}), "any"),
            (json!({ "type": "object" }), "{ [string]: any }"),
            (json!({ "type": "object", "additionalProperties": false }), "{}"),
            (
                json!({
                    "type": "object",
                    "properties": {
                        "owner": { "type": "string" },
                        "state": { "enum": ["open", "closed"] },
                        "a-b": { "type": "integer" },
                        "end": { "type": ["string", "null"] },
                    },
                    "required": ["owner", "a-b"],
                }),
                r#"{ ["a-b"]: number, ["end"]: string?, owner: string, state: ("open" | "closed")? }"#,
            ),
            (
                json!({ "type": "array", "items": { "type": "array", "items": { "const": true } } }),
                "{ { true } }",
            ),
            (
                json!({ "anyOf": [{ "type": "string" }, { "type": "number" }, { "type": "null" }] }),
                "(string | number)?",
            ),
            (json!({ "oneOf": [{ "type": "string" }, {}] }), "any"),
            (json!({ "allOf": [{ "type": "boolean" }] }), "boolean"),
            (
                json!({ "type": "object", "additionalProperties": { "type": "number" } }),
                "{ [string]: number }",
            ),
            (
                json!({
                    "$defs": { "a/b": { "type": "string" } },
                    "properties": { "x": { "$ref": "#/$defs/a~1b" }, "y": { "$ref": "http://a" } },
                    "required": ["x", "y"],
                }),
                "{ x: string, y: any }",
            ),
            (json!({ "enum": ["a\"\u{1b}\\"] }), r#""a\"\u{1b}\\""#),
        ] {
            assert_eq!(type_of(schema.clone()), expected, "{schema}");
        }
    }

    #[test]
    fn schema_that_refers_to_itself_ends() {
        let schema = json!({ "properties": { "next": { "$ref": "#/$defs/n" } },
            "$defs": { "n": { "items": { "$ref": "#/$defs/n" } } } });
        let text = type_of(schema);
        assert!(text.len() <= MAX_TYPE_BYTES && text.starts_with("{ next: { {"), "{text}");
        let wide: Map<_, _> =
            (0..10_000).map(|number| (format!("p{number}"), json!({ "type": "string" }))).collect();
        let text = type_of(json!({ "type": "object", "properties": wide }));
        assert!(text.len() <= MAX_TYPE_BYTES, "{}", text.len());
        // Twice as much at each level.
        let mut deep = json!({ "type": "string" });
        for _ in 0..12 {
            deep = json!({ "properties": { "a": deep, "b": deep } });
        }
        assert!(type_of(deep).len() <= MAX_TYPE_BYTES);
        let many: Vec<_> = (0..100).map(|_| json!({ "$ref": "#/$defs/n" })).collect();
        let endless = json!({ "anyOf": many.clone(), "$defs": { "n": { "anyOf": many } } });
        assert_eq!(type_of(endless), "any");
    }

    #[test]
    fn tool_is_described_with_its_types() {
        let tool = HostTool {
            name: "my-server.list.all".to_owned(),
            description: "Lists.\nAll of them.".to_owned(),
            output: json!({ "properties": { "result": { "type": "number" } } })
                .as_object()
                .cloned(),
            effect: sandbox_api::ToolEffect::ReadOnly,
            ..HostTool::default()
        };
        assert_eq!(
            describe(&tool),
            "tools[\"my-server\"][\"list.all\"](arguments: any) -> number\nLists.\nAll of them."
        );
        let other = HostTool { name: "a.b".to_owned(), description: String::new(), ..tool.clone() };
        let declared = "\ta: {\n\t\tb: (arguments: any) -> (number, { ToolFile }?),\n\t},\n\
                        \t[\"my-server\"]: {\n\t\t--- Lists.\n\t\t--- All of them.\n\
                        \t\t[\"list.all\"]: (arguments: any) -> (number, { ToolFile }?),\n\t},\n";
        assert_eq!(declare([&tool, &other]), declared);
    }
}
