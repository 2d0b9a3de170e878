//! The OpenAPI document as a page: static, without scripts, and complete without a network.

use std::fmt::Write as _;

use axum::http::HeaderValue;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// A page and its policy.
pub(crate) struct Page {
    pub html: Bytes,
    /// Its own style, by its digest, and nothing else.
    pub policy: HeaderValue,
}

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--soft:#8882}\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
code,pre{font:14px/1.45 ui-monospace,monospace;background:var(--soft);border-radius:3px}\
code{padding:.1em .3em}pre{padding:.7rem;overflow:auto}pre code{background:none;padding:0}\
h2{margin-top:3rem;border-bottom:1px solid var(--line)}h3{margin:2rem 0 .3rem}\
table{border-collapse:collapse;width:100%;margin:.5rem 0}\
td,th{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid var(--line)}\
.m{display:inline-block;min-width:4.5em;font-weight:600}nav ul{list-style:none;padding:0}\
details{margin:.4rem 0}summary{cursor:pointer}";

/// The page of this document.
pub(crate) fn page(document: &Value) -> Page {
    let mut html = String::with_capacity(256 << 10);
    html.push_str("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width\">");
    _ = write!(html, "<title>sandboxctl HTTP API</title><style>{STYLE}</style></head><body>");
    html.push_str("<h1>sandboxctl HTTP API</h1>");
    paragraphs(&mut html, &document["info"]["description"]);
    html.push_str("<p><a href=\"/v1/openapi.json\">OpenAPI document</a></p>");
    contents(&mut html, document);
    for tag in items(&document["tags"]) {
        _ = write!(html, "<h2>{}</h2>", escaped(text(&tag["name"])));
        paragraphs(&mut html, &tag["description"]);
        for (path, method, operation) in operations(document) {
            if operation["tags"][0] == tag["name"] {
                write_operation(&mut html, document, path, method, operation);
            }
        }
    }
    html.push_str("<h2>Types</h2>");
    for (name, schema) in members(&document["components"]["schemas"]) {
        _ = write!(html, "<h3 id=\"{0}\"><code>{0}</code></h3>", escaped(name));
        paragraphs(&mut html, &schema["description"]);
        write_schema(&mut html, schema);
    }
    html.push_str("</body></html>\n");
    let digest = STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!("default-src 'none'; style-src 'sha256-{digest}'; frame-ancestors 'none'");
    // Base64 is visible ASCII.
    let policy = HeaderValue::from_str(&policy)
        .unwrap_or(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"));
    Page { html: html.into(), policy }
}

fn contents(html: &mut String, document: &Value) {
    html.push_str("<nav><ul>");
    for (path, method, operation) in operations(document) {
        _ = write!(
            html,
            "<li><a href=\"#{id}\"><code class=\"m\">{method}</code> <code>{path}</code></a> {summary}</li>",
            id = escaped(text(&operation["operationId"])),
            method = escaped(&method.to_ascii_uppercase()),
            path = escaped(path),
            summary = escaped(text(&operation["summary"])),
        );
    }
    html.push_str("</ul></nav>");
}

fn write_operation(
    html: &mut String,
    document: &Value,
    path: &str,
    method: &str,
    operation: &Value,
) {
    _ = write!(
        html,
        "<h3 id=\"{id}\"><code class=\"m\">{method}</code> <code>{path}</code></h3><p>{summary}.",
        id = escaped(text(&operation["operationId"])),
        method = escaped(&method.to_ascii_uppercase()),
        path = escaped(path),
        summary = escaped(text(&operation["summary"])),
    );
    match operation["security"][0]["bearer"][0].as_str() {
        Some(scope) => _ = write!(html, " Scope <code>{}</code>.</p>", escaped(scope)),
        None => html.push_str(" Public.</p>"),
    }
    paragraphs(html, &operation["description"]);
    if operation["parameters"].is_array() {
        html.push_str("<table><tr><th>Parameter</th><th>Type</th><th></th></tr>");
        for parameter in items(&operation["parameters"]) {
            _ = write!(
                html,
                "<tr><td><code>{}</code><br>{}{}</td><td>{}</td><td>{}</td></tr>",
                escaped(text(&parameter["name"])),
                escaped(text(&parameter["in"])),
                if parameter["required"] == true { ", required" } else { "" },
                type_of(&parameter["schema"]),
                inline(text(&parameter["description"])),
            );
        }
        html.push_str("</table>");
    }
    for (media_type, content) in members(&operation["requestBody"]["content"]) {
        _ = write!(
            html,
            "<p>Body: <code>{}</code> {}</p>",
            escaped(media_type),
            type_of(&content["schema"])
        );
        example(html, &content["example"]);
    }
    html.push_str("<table><tr><th>Status</th><th>Content</th><th></th></tr>");
    for (status, response) in members(&operation["responses"]) {
        let response = resolved(document, response);
        _ = write!(html, "<tr><td><code>{}</code></td><td>", escaped(status));
        for (media_type, content) in members(&response["content"]) {
            _ = write!(
                html,
                "<code>{}</code> {}<br>",
                escaped(media_type),
                type_of(&content["schema"])
            );
        }
        _ = write!(html, "</td><td>{}</td></tr>", inline(text(&response["description"])));
    }
    html.push_str("</table>");
}

fn example(html: &mut String, example: &Value) {
    if !example.is_null() {
        let json = serde_json::to_string_pretty(example).unwrap_or_default();
        _ = write!(html, "<pre><code>{}</code></pre>", escaped(&json));
    }
}

fn write_schema(html: &mut String, schema: &Value) {
    let properties = members(&schema["properties"]);
    if properties.clone().next().is_some() {
        html.push_str("<table><tr><th>Member</th><th>Type</th><th></th></tr>");
        let required = |name: &str| items(&schema["required"]).any(|it| it == name);
        for (name, member) in properties {
            let default = match member.get("default") {
                Some(default) => {
                    format!("<br>default <code>{}</code>", escaped(&default.to_string()))
                }
                None if required(name) => "<br>required".to_owned(),
                None => String::new(),
            };
            _ = write!(
                html,
                "<tr><td><code>{}</code>{default}</td><td>{}</td><td>{}</td></tr>",
                escaped(name),
                type_of(member),
                inline(text(&member["description"])),
            );
        }
        html.push_str("</table>");
        return;
    }
    let choices = items(&schema["oneOf"]).chain(items(&schema["anyOf"]));
    if choices.clone().next().is_none() {
        _ = write!(html, "<p>{}</p>", type_of(schema));
        return;
    }
    for choice in choices {
        let name = constant(choice);
        let description = inline(text(&choice["description"]));
        match choice["properties"].is_object() {
            true => {
                let what = name.map_or_else(
                    || type_of(choice),
                    |name| format!("<code>{}</code>", escaped(name)),
                );
                _ = write!(html, "<details><summary>{what} {description}</summary>");
                write_schema(html, choice);
                html.push_str("</details>");
            }
            false => _ = write!(html, "<p>{} {description}</p>", type_of(choice)),
        }
    }
}

/// The name of a variant: the one member that can have a single value.
fn constant(schema: &Value) -> Option<&str> {
    members(&schema["properties"]).find_map(|(_, member)| member["const"].as_str())
}

/// A type in a few words, with links.
fn type_of(schema: &Value) -> String {
    if let Some(target) = schema["$ref"].as_str() {
        let name = escaped(target.rsplit('/').next().unwrap_or_default());
        return format!("<a href=\"#{name}\"><code>{name}</code></a>");
    }
    if let Some(value) = schema.get("const") {
        return format!("<code>{}</code>", escaped(&value.to_string()));
    }
    if schema["enum"].is_array() {
        let names =
            items(&schema["enum"]).map(|it| format!("<code>{}</code>", escaped(&it.to_string())));
        return names.collect::<Vec<_>>().join(" | ");
    }
    let choices: Vec<String> =
        items(&schema["oneOf"]).chain(items(&schema["anyOf"])).map(type_of).collect();
    if !choices.is_empty() {
        return choices.join(" | ");
    }
    let mut words = match &schema["type"] {
        Value::String(name) if name == "array" => format!("array of {}", type_of(&schema["items"])),
        Value::String(name) => escaped(name),
        Value::Array(names) => {
            names.iter().map(|name| escaped(text(name))).collect::<Vec<_>>().join(" | ")
        }
        _ => "any".to_owned(),
    };
    for (key, word) in
        [("format", ""), ("minimum", "≥ "), ("maximum", "≤ "), ("pattern", "matches ")]
    {
        match &schema[key] {
            // As large as its format: not worth mentioning.
            Value::Number(number)
                if key == "maximum" && number.as_u64() >= Some(u32::MAX.into()) => {}
            Value::Null => {}
            Value::String(value) => _ = write!(words, ", {word}{}", escaped(value)),
            value => _ = write!(words, ", {word}{}", escaped(&value.to_string())),
        }
    }
    words
}

fn operations(document: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    members(&document["paths"]).flat_map(|(path, methods)| {
        members(methods).map(move |(method, operation)| (path, method, operation))
    })
}

fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let target = value["$ref"].as_str().and_then(|target| target.strip_prefix('#'));
    target.and_then(|pointer| document.pointer(pointer)).unwrap_or(value)
}

fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> + Clone {
    value.as_object().into_iter().flat_map(Map::iter).map(|(name, value)| (name.as_str(), value))
}

fn items(value: &Value) -> impl Iterator<Item = &Value> + Clone {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            char => safe.push(char),
        }
    }
    safe
}

/// Text with code in backticks.
fn inline(text: &str) -> String {
    let mut html = String::new();
    for (index, piece) in text.split('`').enumerate() {
        match index % 2 {
            0 => html.push_str(&escaped(piece)),
            _ => _ = write!(html, "<code>{}</code>", escaped(piece)),
        }
    }
    html
}

/// Paragraphs, and lists whose items begin with a dash.
fn paragraphs(html: &mut String, description: &Value) {
    for paragraph in text(description).split("\n\n").filter(|it| !it.is_empty()) {
        match paragraph.strip_prefix("- ") {
            None => _ = write!(html, "<p>{}</p>", inline(paragraph)),
            Some(list) => {
                html.push_str("<ul>");
                for item in list.split("\n- ") {
                    _ = write!(html, "<li>{}</li>", inline(item));
                }
                html.push_str("</ul>");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_every_route_and_type_and_runs_nothing() {
        let document = crate::openapi_document();
        let page = page(&document);
        let html = std::str::from_utf8(&page.html).unwrap();
        for (path, _, operation) in operations(&document) {
            assert!(
                html.contains(&format!("id=\"{}\"", text(&operation["operationId"]))),
                "{path}"
            );
        }
        for (name, _) in members(&document["components"]["schemas"]) {
            assert!(html.contains(&format!("id=\"{name}\"")), "{name}");
        }
        for what in ["<script", "javascript:", " on", "http://", "https://", "src="] {
            assert!(!tags(html).any(|tag| tag.contains(what)), "{what}");
        }
        let links = html.split("href=\"#").skip(1).map(|rest| rest.split('"').next().unwrap());
        for link in links {
            assert!(html.contains(&format!("id=\"{link}\"")), "{link}");
        }
        assert!(
            page.policy.to_str().unwrap().starts_with("default-src 'none'; style-src 'sha256-")
        );
    }

    fn tags(html: &str) -> impl Iterator<Item = &str> {
        html.split('<').skip(1).filter_map(|rest| rest.split('>').next())
    }

    #[test]
    fn text_of_the_document_is_no_markup() {
        assert_eq!(inline("<b> `a<b` \"x\""), "&lt;b&gt; <code>a&lt;b</code> &quot;x&quot;");
    }
}
