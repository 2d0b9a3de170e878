//! `read_file`: the operation `view`, or with an encoding `read`.

use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use sandbox_api::files::{ReadData, ViewData};
use sandbox_api::{Encoding, ErrorKind, Failure};
use serde_json::{Value, json};

use super::super::result::{invalid, structured, with_text};
use super::super::schema;
use super::super::tool::Hints;
use super::operation::FileTool;
use crate::paths::name_of;

#[derive(Debug)]
pub(in crate::tools) struct ReadFile;

impl FileTool for ReadFile {
    const NAME: &'static str = "read_file";
    const TITLE: &'static str = "Read a file";
    const DESCRIPTION: &'static str = "Read a text file by lines, or an image. At most 2,000 lines or 50 KiB; a text \
        that goes on ends with a line that says which `lines` continue it. With \
        `encoding` it gives bytes instead, from `offset`, at most `limit`: base64 for a binary \
        file. For work on many or large files, one execute_script is faster.";
    const OPERATION: &'static str = "view";
    const HINTS: Hints = Hints::READ_ONLY;
    type Data = ViewData;

    /// The fields of `view`, and the other fields of `read`.
    fn input() -> JsonObject {
        let mut view = schema::operation("view");
        let mut read = schema::operation("read");
        let read = schema::properties(&mut read);
        for name in ["encoding", "offset", "limit"] {
            if let Some(property) = read.remove(name) {
                schema::properties(&mut view).insert(name.to_owned(), property);
            }
        }
        view
    }

    /// What `view` gives, where an image's bytes are content of their own, or what `read` gives.
    fn output() -> JsonObject {
        let mut view = schema::output::<ViewData>();
        let variants = view.get_mut("anyOf").and_then(Value::as_array_mut);
        let Some(variants) = variants else { return view };
        for variant in variants.iter_mut().filter_map(Value::as_object_mut) {
            schema::properties(variant).remove("content");
        }
        variants.push(schema::output::<ReadData>().into());
        view
    }

    fn select(arguments: &mut JsonObject) -> Result<&'static str, Failure> {
        if arguments.get("encoding").is_some_and(|it| !it.is_null()) {
            if arguments.contains_key("lines") {
                let message = "read_file: `lines` selects lines, `encoding` bytes: give one";
                return Err(invalid(message));
            }
            return Ok("read");
        }
        arguments.remove("encoding");
        // A model that continues by the footer means lines, not bytes.
        if arguments.contains_key("offset") || arguments.contains_key("limit") {
            return Err(Failure::new(
                ErrorKind::InvalidRequest,
                "read_file: `offset` and `limit` are bytes, which need an `encoding`",
                Some("`lines: {offset, limit}` selects lines".to_owned()),
            ));
        }
        Ok(Self::OPERATION)
    }

    fn part_hint(operation: &str) -> &'static str {
        match operation {
            "read" => "`offset` and `limit` read a part",
            _ => "`encoding: \"base64\"` with `offset` and `limit` reads a part",
        }
    }

    fn encoding_hint(encoding: Encoding) -> Option<String> {
        Some(format!("{}: `encoding: \"{encoding}\"` reads it", name_of(encoding)))
    }

    fn result(data: Value) -> CallToolResult {
        viewed(data)
    }
}

/// A view as content: text as text with the line that says how it goes on, an image as an image.
fn viewed(mut data: Value) -> CallToolResult {
    let image = data.get("mime_type").and_then(Value::as_str).map(str::to_owned);
    if let (Some("image"), Some(mime_type)) = (data.get("type").and_then(Value::as_str), image) {
        let content = data.as_object_mut().and_then(|data| data.remove("content"));
        let content = content.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut result = CallToolResult::success(vec![ContentBlock::image(content, mime_type)]);
        result.structured_content = Some(data);
        return result;
    }
    if data.get("type") != Some(&json!("text")) {
        // Bytes in an encoding.
        return structured(data);
    }
    let mut text = data.get("text").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(footer) = data.get("footer").and_then(Value::as_str) {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(footer);
    }
    with_text(data, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_text_with_a_footer_or_an_image() {
        let text = json!({ "type": "text", "text": "a\nb", "footer": "[Showing lines 1-2 of 9.]" });
        let result = viewed(text.clone());
        assert_eq!(result.content[0].as_text().unwrap().text, "a\nb\n[Showing lines 1-2 of 9.]");
        assert_eq!(result.structured_content, Some(text));
        let image = json!({ "type": "image", "content": "Yf8=", "mime_type": "image/png" });
        let result = viewed(image);
        let content = result.content[0].as_image().unwrap();
        assert_eq!((&*content.data, &*content.mime_type), ("Yf8=", "image/png"));
        let structured = result.structured_content.unwrap();
        assert_eq!(structured, json!({ "type": "image", "mime_type": "image/png" }));
    }
}
