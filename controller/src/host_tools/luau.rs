//! Luau types from JSON Schemas, for whoever writes scripts.
//!
//! Schemas are by whoever offers the tools: references, depth and length are bounded, and no
//! character of them steers a terminal.

use std::cell::Cell;
use std::fmt::Write as _;

use sandbox_api::HostTool;
use serde_json::{Map, Value};

/// How deep a schema is followed, references included; what is deeper is `any`.
const MAX_DEPTH: usize = 8;
/// Most bytes of a type.
const MAX_TYPE_BYTES: usize = 8 << 10;
/// Most bytes of a tool's description.
const MAX_DESCRIPTION_BYTES: usize = 4 << 10;
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
    let (arguments, result) = (Schema::new(&tool.input), tool.output.as_ref().map(Schema::new));
    let result = match (&result, result_member(tool)) {
        (Some(schema), Some(member)) => schema.text(member),
        (Some(schema), None) => schema.text_of_root(),
        (None, _) => "any".to_owned(),
    };
    let called = path(&tool.name);
    let arguments = arguments.text_of_root();
    let does = clean(&tool.description, MAX_DESCRIPTION_BYTES);
    format!("{called}(arguments: {arguments}) -> {result}\n{does}").trim_end().to_owned()
}

/// The schema of the member `result`, if results of the tool have no other one.
pub(super) fn result_member(tool: &HostTool) -> Option<&Value> {
    let properties = tool.output.as_ref()?.get("properties")?.as_object()?;
    properties.get("result").filter(|_| properties.len() == 1)
}

/// The expression that is a tool: `tools.github["odd-name"]`.
fn path(name: &str) -> String {
    let mut path = "tools".to_owned();
    let (group, tool) = name.split_once('.').unwrap_or((name, ""));
    for part in [group, tool] {
        // Writing to a string cannot fail.
        _ = match is_identifier(part) {
            true => write!(path, ".{part}"),
            false => write!(path, "[{}]", quoted(part)),
        };
    }
    path
}

fn is_identifier(name: &str) -> bool {
    let is_letter = |char: char| char.is_ascii_alphabetic() || char == '_';
    name.starts_with(is_letter)
        && name.chars().all(|char| is_letter(char) || char.is_ascii_digit())
        && !KEYWORDS.contains(&name)
}

/// A literal of a string, with the escapes that Luau has.
fn quoted(text: &str) -> String {
    let mut literal = "\"".to_owned();
    for char in text.chars() {
        match char {
            '"' | '\\' => literal.extend(['\\', char]),
            char if char.is_control() => _ = write!(literal, "\\u{{{:x}}}", u32::from(char)),
            char => literal.push(char),
        }
    }
    literal + "\""
}

/// A text in which lines may end, and nothing else steers.
fn clean(text: &str, most: usize) -> String {
    let mut clean = String::new();
    for char in text.trim().chars() {
        if clean.len() + char.len_utf8() > most {
            clean.push('…');
            break;
        }
        clean.push(if char.is_control() && char != '\n' { ' ' } else { char });
    }
    clean
}

/// A schema, whose references are into itself.
struct Schema<'a> {
    root: &'a Map<String, Value>,
    /// How many of its parts may still be looked at.
    left: Cell<usize>,
}

impl<'a> Schema<'a> {
    const fn new(root: &'a Map<String, Value>) -> Self {
        Self { root, left: Cell::new(MAX_SCHEMAS) }
    }

    fn text_of_root(&self) -> String {
        bounded(self.object(self.root, 0))
    }

    fn text(&self, schema: &Value) -> String {
        bounded(self.of(schema, 0))
    }

    /// The type of what a schema allows.
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
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            return self.referred(target).map_or_else(|| "any".to_owned(), inner);
        }
        if let Some(literal) = schema.get("const") {
            return literal_type(literal);
        }
        let list = |key| schema.get(key).and_then(Value::as_array);
        if let Some(literals) = list("enum") {
            return union(literals.iter().take(MAX_LITERALS).map(literal_type));
        }
        if let Some(schemas) = list("anyOf").or_else(|| list("oneOf")) {
            return union(schemas.iter().map(inner));
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.named(name, schema, depth),
            Some(Value::Array(names)) => {
                let names = names.iter().filter_map(Value::as_str);
                union(names.map(|name| self.named(name, schema, depth)))
            }
            _ if schema.contains_key("properties") => self.named("object", schema, depth),
            _ if schema.contains_key("items") => self.named("array", schema, depth),
            // The first has what matters, as it is written by generators.
            _ => match list("allOf").and_then(|all| all.first()) {
                Some(first) => inner(first),
                None => "any".to_owned(),
            },
        }
    }

    /// What a reference leads to: only into the schema itself.
    fn referred(&self, target: &str) -> Option<&'a Value> {
        let mut parts = target.strip_prefix("#/")?.split('/');
        let part = |part: &str| part.replace("~1", "/").replace("~0", "~");
        let first = self.root.get(&part(parts.next()?))?;
        parts.try_fold(first, |at, name| at.get(part(name)))
    }

    fn named(&self, name: &str, schema: &Map<String, Value>, depth: usize) -> String {
        match name {
            "string" | "boolean" => name.to_owned(),
            "integer" | "number" => "number".to_owned(),
            "null" => "nil".to_owned(),
            "array" => {
                let items =
                    schema.get("items").map_or("any".to_owned(), |it| self.of(it, depth + 1));
                format!("{{ {items} }}")
            }
            "object" => self.table(schema, depth),
            _ => "any".to_owned(),
        }
    }

    fn table(&self, schema: &Map<String, Value>, depth: usize) -> String {
        let required = schema.get("required").and_then(Value::as_array);
        let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|it| it == name));
        let mut members = Vec::new();
        let mut length = 0;
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, schema) in properties.into_iter().flatten() {
            if length > MAX_TYPE_BYTES {
                break;
            }
            let mut kind = self.of(schema, depth + 1);
            if !is_required(name) && kind != "any" && !kind.ends_with('?') {
                kind = if kind.contains(['|', '&']) && !kind.starts_with('{') {
                    format!("({kind})?")
                } else {
                    format!("{kind}?")
                };
            }
            let member = match is_identifier(name) {
                true => format!("{name}: {kind}"),
                false => format!("[{}]: {kind}", quoted(name)),
            };
            length += member.len();
            members.push(member);
        }
        match schema.get("additionalProperties") {
            Some(more @ Value::Object(_)) => {
                members.push(format!("[string]: {}", self.of(more, depth + 1)));
            }
            Some(Value::Bool(true)) => members.push("[string]: any".to_owned()),
            None if members.is_empty() => members.push("[string]: any".to_owned()),
            _ => {}
        }
        match members.is_empty() {
            true => "{}".to_owned(),
            false => format!("{{ {} }}", members.join(", ")),
        }
    }
}

/// The type of one value. Luau has literals of strings and booleans.
fn literal_type(literal: &Value) -> String {
    match literal {
        Value::String(text) => quoted(text),
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
    let is_optional = all.iter().any(|kind| kind == "nil") && all.len() > 1;
    all.retain(|kind| !is_optional || kind != "nil");
    match (&all[..], is_optional) {
        ([], _) => "any".to_owned(),
        _ if all.iter().any(|kind| kind == "any") => "any".to_owned(),
        ([one], false) => one.clone(),
        ([one], true) => format!("{one}?"),
        (_, false) => all.join(" | "),
        (_, true) => format!("({})?", all.join(" | ")),
    }
}

fn bounded(text: String) -> String {
    if text.len() <= MAX_TYPE_BYTES { text } else { "{ [string]: any }".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn type_of(schema: Value) -> String {
        let Value::Object(schema) = schema else { panic!("it is an object") };
        Schema::new(&schema).text_of_root()
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
        let schema = json!({ "properties": { "next": { "$ref": "#" }, "all": { "$ref": "#/x" } },
            "x": { "items": { "$ref": "#/x" } } });
        let text = type_of(schema);
        assert!(text.len() <= MAX_TYPE_BYTES && text.starts_with("{ all: { {"), "{text}");
        let wide: Map<_, _> =
            (0..10_000).map(|number| (format!("p{number}"), json!({ "type": "string" }))).collect();
        let text = type_of(json!({ "type": "object", "properties": wide }));
        assert!(text.len() <= MAX_TYPE_BYTES, "{}", text.len());
        // Twice as much at each level.
        let mut deep = json!({ "type": "string" });
        for _ in 0..40 {
            deep = json!({ "properties": { "a": deep, "b": deep } });
        }
        assert!(type_of(deep).len() <= MAX_TYPE_BYTES);
        let many: Vec<_> = (0..100).map(|_| json!({ "$ref": "#" })).collect();
        assert_eq!(type_of(json!({ "anyOf": many })), "any");
    }

    #[test]
    fn tool_is_described_with_its_types() {
        let tool = HostTool {
            name: "my-server.list.all".to_owned(),
            description: "Lists.\u{1b}[2K\nAll of them.".to_owned(),
            input: Map::new(),
            output: json!({ "properties": { "result": { "type": "number" } } })
                .as_object()
                .cloned(),
            effect: sandbox_api::ToolEffect::ReadOnly,
        };
        assert_eq!(
            describe(&tool),
            "tools[\"my-server\"][\"list.all\"](arguments: any) -> number\nLists. [2K\nAll of them."
        );
    }
}
