//! What a server says, as the controller's data: bounded, and without control characters where it is
//! text for people or models.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, ResourceContents, Tool};
use sandbox_api::{HostTool, ToolEffect};
use sandbox_controller::host_tools::{HostAnswer, HostFile, HostToolError};
use sandbox_protocol::protected::is_ignorable;
use serde_json::Value;

/// The longest name of a tool.
const MAX_NAME: usize = 128;
/// How much of a tool's description is kept.
const MAX_DESCRIPTION: usize = 4 << 10;
/// The largest schema that is kept.
const MAX_SCHEMA: usize = 64 << 10;
/// How much of the text of a failure is kept.
pub(crate) const MAX_FAILURE: usize = 16 << 10;

/// Whether a character is not seen: one of control but line breaks, or one that changes the direction of what
/// follows, or hides words.
fn is_hidden(it: char) -> bool {
    let is_break = matches!(it, '\u{2028}' | '\u{2029}');
    is_ignorable(it) || is_break || (it.is_control() && !matches!(it, '\n' | '\t'))
}

/// At most so many bytes of a text, without what is not seen.
pub(crate) fn clean(text: &str, most: usize) -> String {
    let end = (0..=most.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    let mut clean = text[..end.unwrap_or(0)].replace(is_hidden, "");
    if text.len() > most {
        clean.push('…');
    }
    clean
}

/// A tool, if it has a name that a script can write.
pub(crate) fn tool(upstream: &str, tool: Tool) -> Option<HostTool> {
    let is_unfit = |it: char| it.is_control() || is_hidden(it);
    let is_name = !tool.name.is_empty() && !tool.name.contains(is_unfit);
    if !is_name || tool.name.len() > MAX_NAME {
        return None;
    }
    let mut hints = tool.annotations.unwrap_or_default();
    hints.title = hints.title.map(|title| clean(&title, MAX_NAME));
    let effect = match (hints.destructive_hint, hints.read_only_hint) {
        (Some(true), _) => ToolEffect::Destructive,
        (_, Some(true)) => ToolEffect::ReadOnly,
        _ => ToolEffect::Changes,
    };
    let description = tool.description.or(tool.title.map(Into::into)).unwrap_or_default();
    Some(HostTool {
        name: format!("{upstream}.{}", tool.name),
        description: clean(&description, MAX_DESCRIPTION),
        input: schema(&tool.input_schema).unwrap_or_default(),
        output: tool.output_schema.and_then(|it| schema(&it)),
        effect,
        annotations: match serde_json::to_value(hints) {
            Ok(Value::Object(annotations)) => annotations,
            _ => JsonObject::new(),
        },
    })
}

/// A schema, if it is not too large.
fn schema(schema: &JsonObject) -> Option<JsonObject> {
    let bytes = serde_json::to_vec(schema).map_or(usize::MAX, |json| json.len());
    (bytes <= MAX_SCHEMA).then(|| {
        let mut schema = schema.clone();
        clean_texts(&mut schema);
        schema
    })
}

/// Cleans the descriptions and titles of a schema and its parts: models read them.
fn clean_texts(schema: &mut JsonObject) {
    for (name, member) in schema {
        match member {
            Value::String(text) if matches!(&**name, "description" | "title") => {
                *text = clean(text, MAX_SCHEMA);
            }
            Value::Object(part) => clean_texts(part),
            Value::Array(parts) => {
                parts.iter_mut().filter_map(Value::as_object_mut).for_each(clean_texts);
            }
            _ => {}
        }
    }
}

/// The result of a call: structured content, or else text. Text stays text, even if it is JSON.
///
/// # Errors
///
/// [`HostToolError::Failed`], if the tool says that it failed.
pub(crate) fn answer(result: CallToolResult) -> Result<HostAnswer, HostToolError> {
    let (mut lines, mut files) = (Vec::new(), Vec::new());
    let mut add = |data: String, mime_type: Option<String>| {
        // What is no base64 is no file.
        if let Ok(data) = BASE64_STANDARD.decode(data) {
            let mime_type = mime_type.unwrap_or_else(|| "application/octet-stream".to_owned());
            files.push(HostFile { mime_type: clean(&mime_type, MAX_NAME), data });
        }
    };
    for block in result.content {
        match block {
            ContentBlock::Text(text) => lines.push(text.text),
            ContentBlock::Image(image) => add(image.data, Some(image.mime_type)),
            ContentBlock::Audio(audio) => add(audio.data, Some(audio.mime_type)),
            ContentBlock::Resource(embedded) => match embedded.resource {
                ResourceContents::TextResourceContents { text, .. } => lines.push(text),
                ResourceContents::BlobResourceContents { blob, mime_type, .. } => {
                    add(blob, mime_type);
                }
                _ => {}
            },
            ContentBlock::ResourceLink(link) => lines.push(link.uri),
            _ => {}
        }
    }
    if result.is_error == Some(true) {
        let text = match lines.is_empty() {
            true => result.structured_content.map_or_else(String::new, |it| it.to_string()),
            false => lines.join("\n"),
        };
        return Err(HostToolError::Failed(clean(&text, MAX_FAILURE)));
    }
    let value = match result.structured_content {
        Some(value) => value,
        None if lines.is_empty() => Value::Null,
        None => lines.join("\n").into(),
    };
    Ok(HostAnswer { value, files })
}

/// The whole result of a call as its value, in the form of the protocol, for who speaks it.
///
/// # Errors
///
/// As of [`answer`].
pub(crate) fn whole(result: CallToolResult) -> Result<HostAnswer, HostToolError> {
    if result.is_error == Some(true) {
        return answer(result);
    }
    let mut whole = CallToolResult::success(result.content);
    whole.structured_content = result.structured_content;
    let value = serde_json::to_value(whole).unwrap_or_default();
    Ok(HostAnswer { value, files: Vec::new() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_seen_is_no_part_of_a_text() {
        let text = "a\u{202e}b\u{200b}c\u{2028}d\u{e0041}e\u{feff}f\u{1b}g\nh\ti é…";
        assert_eq!(clean(text, 1000), "abcdefg\nh\ti é…");
        // Bytes can be hidden in variation selectors and tags.
        let text = "a\u{fe00}b\u{fe0f}c\u{e0100}\u{e01ef}d\u{180b}e\u{ad}f\u{3164}g";
        assert_eq!(clean(text, 1000), "abcdefg");
        assert_eq!(clean("aé", 2), "a…");
    }

    #[test]
    fn what_is_not_seen_is_no_part_of_a_text_of_a_schema() {
        let hidden = json!({
            "title": "a\u{200b}b",
            "properties": { "title": { "description": "c\u{e0041}d", "enum": ["\u{200b}"] } },
            "anyOf": [{ "title": "e\u{202e}f" }],
        });
        let hidden = Arc::new(hidden.as_object().unwrap().clone());
        let listed = tool("s", Tool::new("t", "", hidden)).unwrap();
        assert_eq!(
            Value::Object(listed.input),
            json!({
                "title": "ab",
                "properties": { "title": { "description": "cd", "enum": ["\u{200b}"] } },
                "anyOf": [{ "title": "ef" }],
            })
        );
    }
}
