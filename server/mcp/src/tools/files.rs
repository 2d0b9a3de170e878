//! The tools for files: the operations of [`Operation`] under the names that agents expect. What they
//! take is what the operations take, and what they give is what the operations give.

use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool};
use sandbox_api::files::{
    CopyData, EditData, GlobData, GrepData, ListData, MkdirData, RemoveData, RenameData, StatData,
    ViewData, WriteData,
};
use sandbox_api::operation::{
    Copy, Edit, Glob, Grep, List, Mkdir, Read, Remove, Rename, Stat, View, Write,
};
use sandbox_api::{ErrorKind, Failure, Operation};
use serde_json::{Value, json};

use super::answer::{MAX_RESULT_BYTES, failed, invalid, structured, too_large, with_text};
use super::schema;
use super::tool::{Call, Hints, described};
use crate::hints::explained;
use crate::settings::Settings;
use crate::workspace::cancelled;

/// A tool for one file operation.
#[derive(Debug)]
pub(super) struct FileTool {
    pub name: &'static str,
    title: &'static str,
    description: &'static str,
    /// Its operation.
    operation: &'static str,
    pub is_read_only: bool,
    is_destructive: bool,
    is_idempotent: bool,
    /// Whether it can change which files there are.
    changes_list: bool,
    input: fn() -> JsonObject,
    output: fn() -> JsonObject,
}

/// The tools, in the order of their list.
pub(super) static TOOLS: &[FileTool] = &[
    FileTool {
        name: "read_file",
        title: "Read a file",
        description: "Read a text file by lines, or an image. At most 2,000 lines or 50 KiB; a text \
            that goes on ends with a line that says which `lines.offset` continues it. With \
            `encoding` it gives bytes instead, from `offset`, at most `limit`: base64 for a binary \
            file. For work on many or large files, one execute_script is faster.",
        operation: "view",
        is_read_only: true,
        is_destructive: false,
        is_idempotent: true,
        changes_list: false,
        input: read_file_input,
        output: read_file_output,
    },
    FileTool {
        name: "write_file",
        title: "Write a file",
        description: "Write a whole file: readers see the old content or the new. Missing \
            directories are created. `mode` append adds to its end, create_new refuses an existing \
            file.",
        operation: "write",
        is_read_only: false,
        is_destructive: true,
        is_idempotent: false,
        changes_list: true,
        input: schema::input::<Write>,
        output: schema::output::<WriteData>,
    },
    FileTool {
        name: "edit_file",
        title: "Edit a file",
        description: "Replace text in a file. `old` must occur exactly `count` times (1 by \
            default), or nothing is changed: give enough of its surroundings.",
        operation: "edit",
        is_read_only: false,
        is_destructive: true,
        is_idempotent: false,
        changes_list: false,
        input: schema::input::<Edit>,
        output: schema::output::<EditData>,
    },
    FileTool {
        name: "list_directory",
        title: "List a directory",
        description: "List the entries of a directory, sorted, with types, sizes and times.",
        operation: "list",
        is_read_only: true,
        is_destructive: false,
        is_idempotent: true,
        changes_list: false,
        input: schema::input::<List>,
        output: schema::output::<ListData>,
    },
    FileTool {
        name: "create_directory",
        title: "Create a directory",
        description: "Create a directory, and its missing parents. An existing one is not an error.",
        operation: "mkdir",
        is_read_only: false,
        is_destructive: false,
        is_idempotent: true,
        changes_list: false,
        input: schema::input::<Mkdir>,
        output: schema::output::<MkdirData>,
    },
    FileTool {
        name: "remove",
        title: "Remove a file or directory",
        description: "Remove a file, or a directory: an empty one, or with `recursive` one with all \
            that is in it.",
        operation: "remove",
        is_read_only: false,
        is_destructive: true,
        is_idempotent: false,
        changes_list: true,
        input: schema::input::<Remove>,
        output: schema::output::<RemoveData>,
    },
    FileTool {
        name: "move",
        title: "Move or rename",
        description: "Move or rename a file or a directory. An existing target is refused without \
            `overwrite`.",
        operation: "rename",
        is_read_only: false,
        is_destructive: true,
        is_idempotent: false,
        changes_list: true,
        input: schema::input::<Rename>,
        output: schema::output::<RenameData>,
    },
    FileTool {
        name: "copy",
        title: "Copy",
        description: "Copy a file, or with `recursive` a directory. Existing files are refused \
            without `overwrite`.",
        operation: "copy",
        is_read_only: false,
        is_destructive: true,
        is_idempotent: false,
        changes_list: true,
        input: schema::input::<Copy>,
        output: schema::output::<CopyData>,
    },
    FileTool {
        name: "stat",
        title: "File information",
        description: "The type, size, permissions, owner and times of a path.",
        operation: "stat",
        is_read_only: true,
        is_destructive: false,
        is_idempotent: true,
        changes_list: false,
        input: schema::input::<Stat>,
        output: schema::output::<StatData>,
    },
    FileTool {
        name: "glob",
        title: "Find files by name",
        description: "Find paths by a pattern: `*` and `?` match within a name, `**` any \
            directories, and there are [a-z] and {a,b}.",
        operation: "glob",
        is_read_only: true,
        is_destructive: false,
        is_idempotent: true,
        changes_list: false,
        input: schema::input::<Glob>,
        output: schema::output::<GlobData>,
    },
    FileTool {
        name: "grep",
        title: "Search in files",
        description: "Find the lines of files that match a regular expression (Rust's syntax).",
        operation: "grep",
        is_read_only: true,
        is_destructive: false,
        is_idempotent: true,
        changes_list: false,
        input: schema::input::<Grep>,
        output: schema::output::<GrepData>,
    },
];

/// The fields of `view`, and beside them those of `read` that it has not.
fn read_file_input() -> JsonObject {
    let mut view = schema::input::<View>();
    let mut read = schema::input::<Read>();
    let read = schema::properties(&mut read);
    for name in ["encoding", "offset", "limit"] {
        if let Some(property) = read.remove(name) {
            schema::properties(&mut view).insert(name.to_owned(), property);
        }
    }
    view
}

/// What `view` gives, where an image's bytes are content of their own, or what `read` gives.
fn read_file_output() -> JsonObject {
    let mut view = schema::output::<ViewData>();
    let variants = view.get_mut("oneOf").and_then(Value::as_array_mut);
    let Some(variants) = variants else { return view };
    for variant in variants.iter_mut().filter_map(Value::as_object_mut) {
        if schema::properties(variant).remove("content").is_some()
            && let Some(Value::Array(required)) = variant.get_mut("required")
        {
            required.retain(|name| name != "content");
        }
    }
    variants.push(schema::output::<sandbox_api::files::ReadData>().into());
    view
}

impl FileTool {
    pub fn describe(&self) -> Tool {
        let hints = Hints {
            is_read_only: self.is_read_only,
            is_destructive: self.is_destructive,
            is_idempotent: self.is_idempotent,
            is_open_world: false,
        };
        let description = self.description.to_owned();
        described(self.name, self.title, description, (self.input)(), (self.output)(), &hints)
    }

    pub async fn call(&self, call: Call<'_>) -> CallToolResult {
        self.try_call(call).await.unwrap_or_else(|failure| failed(&failure))
    }

    async fn try_call(&self, call: Call<'_>) -> Result<CallToolResult, Failure> {
        let Call { workspace, settings, arguments, cancelled: token, .. } = call;
        let operation = self.operation(arguments)?;
        let word = operation.name();
        let envelope = tokio::select! {
            biased;
            () = token.cancelled() => {
                // It may have been done before that.
                if self.changes_list {
                    workspace.files_changed();
                }
                return Err(cancelled());
            }
            envelope = workspace.perform(operation) => envelope?,
        };
        let data = match (envelope.data, envelope.error) {
            (Some(data), None) => data,
            (_, Some(failure)) => return Err(self.explained(failure, settings)),
            (None, None) => {
                return Err(Failure::new(ErrorKind::Internal, "no result", None));
            }
        };
        if self.changes_list {
            workspace.files_changed();
        }
        let length = data.get().len();
        if length > MAX_RESULT_BYTES {
            return Err(too_large(length, part_hint(word)));
        }
        let data = serde_json::from_str(data.get());
        let data = data.map_err(|error| {
            Failure::new(ErrorKind::Internal, format!("the result is unreadable: {error}"), None)
        })?;
        Ok(match self.operation {
            "view" => viewed(data),
            _ => structured(data),
        })
    }

    /// Arguments as an operation.
    fn operation(&self, mut arguments: JsonObject) -> Result<Operation, Failure> {
        let mut word = self.operation;
        if word == "view" {
            if arguments.get("encoding").is_some_and(|it| !it.is_null()) {
                if arguments.contains_key("lines") {
                    return Err(invalid(
                        "read_file: `lines` selects lines, `encoding` bytes: give one",
                    ));
                }
                word = "read";
            } else {
                arguments.remove("encoding");
                // A model that continues by the footer means lines, not bytes.
                if arguments.contains_key("offset") || arguments.contains_key("limit") {
                    return Err(Failure::new(
                        ErrorKind::InvalidRequest,
                        "read_file: `offset` and `limit` are bytes, which need an `encoding`",
                        Some("`lines: {offset, limit}` selects lines".to_owned()),
                    ));
                }
            }
        }
        if arguments.insert("operation".to_owned(), word.into()).is_some() {
            return Err(invalid(format!("{}: unknown field `operation`", self.name)));
        }
        Operation::from_object(arguments).map_err(|error| {
            // The caller knows the tool's name, not the operation's.
            let message = error.to_string();
            let message = message.strip_prefix(word).unwrap_or(&message);
            let message = message.strip_prefix(": ").unwrap_or(message);
            invalid(format!("{}: {message}", self.name))
        })
    }

    /// An operation's failure, with what an agent can do about it.
    fn explained(&self, failure: Failure, settings: &Settings) -> Failure {
        let mut failure = explained(failure, settings);
        if self.operation == "view" && failure.kind == ErrorKind::Encoding {
            failure.hint = Some("`encoding: \"base64\"` gives the bytes of a file".to_owned());
        }
        failure
    }
}

/// How an operation gives a part of what is too large for one result.
fn part_hint(operation: &str) -> &'static str {
    match operation {
        "read" => "`offset` and `limit` read a part",
        "view" => "`encoding: \"base64\"` with `offset` and `limit` reads a part",
        _ => "a smaller `limit`, or a path further down, gives less",
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
        let footer = continued(footer, &text, data.get("first_line"));
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&footer);
    }
    with_text(data, text)
}

/// A footer, with how a line goes on whose beginning is all that there is room for.
fn continued(footer: &str, text: &str, line: Option<&Value>) -> String {
    let Some(beginning) = footer.strip_suffix(']').filter(|it| it.contains(" bytes of line "))
    else {
        return footer.to_owned();
    };
    let offset = match line.and_then(Value::as_u64) {
        Some(1) => format!("offset={}", text.len()),
        _ => "an offset in bytes".to_owned(),
    };
    format!("{beginning} Use encoding=utf8 with {offset} to continue the line.]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> &'static FileTool {
        TOOLS.iter().find(|tool| tool.name == name).unwrap()
    }

    fn operation(name: &str, arguments: Value) -> Result<Operation, String> {
        let Value::Object(arguments) = arguments else { panic!("no object") };
        tool(name).operation(arguments).map_err(|failure| failure.message)
    }

    #[test]
    fn arguments_are_those_of_the_operations() {
        for (name, arguments, expected) in [
            ("move", json!({ "from": "a", "to": "b" }), "rename"),
            ("read_file", json!({ "path": "a" }), "view"),
            ("read_file", json!({ "path": "a", "encoding": "base64", "offset": 3 }), "read"),
            ("list_directory", json!({}), "list"),
            ("remove", json!({ "path_b64": "Yf8=" }), "remove"),
        ] {
            assert_eq!(operation(name, arguments).unwrap().name(), expected, "{name}");
        }
    }

    #[test]
    fn wrong_arguments_are_named_with_the_tool() {
        for (name, arguments, expected) in [
            ("move", json!({ "from": "a" }), "move: missing field `to`"),
            ("stat", json!({ "path": "a", "x": 1 }), "stat: x: unknown field `x`"),
            ("read_file", json!({ "path": 7 }), "read_file: path: invalid type"),
            (
                "read_file",
                json!({ "path": "a", "offset": 3 }),
                "read_file: `offset` and `limit` are",
            ),
            (
                "copy",
                json!({ "operation": "read", "path": "a" }),
                "copy: unknown field `operation`",
            ),
        ] {
            let error = operation(name, arguments).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn hints_name_what_the_tool_takes() {
        for (name, arguments) in [
            ("list_directory", json!({})),
            ("glob", json!({ "pattern": "*" })),
            ("grep", json!({ "pattern": "x" })),
            ("read_file", json!({ "path": "a", "encoding": "base64" })),
            ("read_file", json!({ "path": "a" })),
        ] {
            let hint = part_hint(operation(name, arguments).unwrap().name());
            let schema = (tool(name).input)();
            for field in hint.split('`').skip(1).step_by(2) {
                let field = field.split(':').next().unwrap();
                assert!(schema["properties"].get(field).is_some(), "{name}: {hint}");
            }
        }
    }

    #[test]
    fn views_are_text_with_a_footer_or_an_image() {
        let text = json!({ "type": "text", "text": "a\nb", "footer": "[Showing lines 1-2 of 9.]" });
        let result = viewed(text.clone());
        assert_eq!(result.content[0].as_text().unwrap().text, "a\nb\n[Showing lines 1-2 of 9.]");
        assert_eq!(result.structured_content, Some(text));
        let footer = "[Showing the first 3 bytes of line 1 of 1.]";
        let long = json!({ "type": "text", "text": "aaa", "first_line": 1, "footer": footer });
        let result = viewed(long);
        let expected = "aaa\n[Showing the first 3 bytes of line 1 of 1. Use encoding=utf8 with \
                        offset=3 to continue the line.]";
        assert_eq!(result.content[0].as_text().unwrap().text, expected);
        let image = json!({ "type": "image", "content": "Yf8=", "mime_type": "image/png" });
        let result = viewed(image);
        let content = result.content[0].as_image().unwrap();
        assert_eq!((&*content.data, &*content.mime_type), ("Yf8=", "image/png"));
        let structured = result.structured_content.unwrap();
        assert_eq!(structured, json!({ "type": "image", "mime_type": "image/png" }));
    }
}
