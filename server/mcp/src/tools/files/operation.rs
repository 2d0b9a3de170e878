//! The definition of a tool for a file operation, and how a call of one runs.

use rmcp::model::{CallToolResult, JsonObject};
use sandbox_api::{Encoding, ErrorKind, Failure, OperationRequest, WireString};
use schemars::JsonSchema;
use serde::Deserialize as _;
use serde_json::Value;

use super::super::result::{MAX_RESULT_BYTES, failed, invalid, structured, too_large};
use super::super::schema;
use super::super::tool::{Call, Hints, McpTool, ServerTraits};
use crate::hints::{IS_DIRECTORY, explained};
use crate::paths;
use crate::settings::Access;
use crate::workspace::cancelled;

/// A tool for one file operation.
pub(in crate::tools) trait FileTool: 'static {
    const NAME: &'static str;
    /// Its name for people.
    const TITLE: &'static str;
    /// The description, for models.
    const DESCRIPTION: &'static str;
    /// The operation's name.
    const OPERATION: &'static str;
    const HINTS: Hints;
    /// Whether it can change which files there are.
    const CHANGES_LIST: bool = false;
    type Data: JsonSchema;

    /// The schema of its arguments.
    fn input() -> JsonObject {
        schema::operation(Self::OPERATION)
    }

    /// The schema of its structured result.
    fn output() -> JsonObject {
        schema::output::<Self::Data>()
    }

    /// The operation that these arguments ask for.
    fn select(_arguments: &mut JsonObject) -> Result<&'static str, Failure> {
        Ok(Self::OPERATION)
    }

    /// How an operation gives a part of what is too large for one result.
    fn part_hint(_operation: &str) -> &'static str {
        "a smaller `limit`, or a path further down, gives less"
    }

    /// What an agent can do about a directory where a file is to be.
    const DIRECTORY_HINT: &'static str = IS_DIRECTORY;

    /// What an agent can do about a text in this encoding, or about what is no text, where UTF-8 is to be.
    fn encoding_hint(_encoding: Encoding) -> Option<String> {
        None
    }

    fn result(data: Value) -> CallToolResult {
        structured(data)
    }
}

/// Each file operation is a tool of its own.
impl<T: FileTool> McpTool for T {
    const NAME: &'static str = T::NAME;
    const TITLE: &'static str = T::TITLE;
    const IN_FRESH_CONTAINER: bool = false;
    type Args = OperationRequest;
    type Data = T::Data;

    fn is_offered(server: ServerTraits<'_>) -> bool {
        let may_write = server.settings.access == Access::ReadWrite;
        server.has_files && (T::HINTS.is_read_only || may_write)
    }

    fn description(_server: ServerTraits<'_>) -> String {
        T::DESCRIPTION.to_owned()
    }

    fn hints(_server: ServerTraits<'_>) -> Hints {
        T::HINTS
    }

    fn input(_server: ServerTraits<'_>) -> JsonObject {
        T::input()
    }

    fn output() -> JsonObject {
        T::output()
    }

    async fn call(call: Call<'_>) -> CallToolResult {
        run::<T>(call).await.unwrap_or_else(|failure| failed(&failure))
    }
}

async fn run<T: FileTool>(call: Call<'_>) -> Result<CallToolResult, Failure> {
    let Call { workspace, settings, mut arguments, cancelled: token, .. } = call;
    paths::understand_all(workspace, &mut arguments).await;
    let named = paths::named(&arguments);
    let operation = operation::<T>(arguments)?;
    let word = operation.operation.name();
    let changes_files = T::CHANGES_LIST || word == "edit";
    let performed = tokio::select! {
        biased;
        () = token.cancelled() => {
            // It may have been done before that.
            if T::CHANGES_LIST {
                workspace.files_changed();
            }
            if changes_files {
                workspace.files_touched(None);
            }
            return Err(cancelled());
        }
        performed = workspace.perform(operation) => performed,
    };
    let data = match performed {
        Ok(data) => data,
        Err(failure) => {
            // A directory may be half copied or removed.
            if matches!(word, "copy" | "remove") {
                workspace.files_touched(None);
            }
            let mut failure = explained(failure, settings);
            let better = match (failure.kind, &*named) {
                (ErrorKind::IsDirectory, _) => Some(T::DIRECTORY_HINT.to_owned()),
                (ErrorKind::NotFound, _) => paths::respelt_hint(workspace, &named).await,
                (ErrorKind::Encoding, [(_, path), ..]) => {
                    let encoding = paths::encoding_of(workspace, path.as_bytes()).await;
                    encoding.and_then(T::encoding_hint)
                }
                _ => None,
            };
            failure.hint = better.or(failure.hint);
            return Err(failure);
        }
    };
    if T::CHANGES_LIST {
        workspace.files_changed();
    }
    let length = data.get().len();
    if length > MAX_RESULT_BYTES {
        return Err(too_large(length, T::part_hint(word)));
    }
    let data = serde_json::from_str(data.get());
    let data = data.map_err(|error| {
        Failure::new(ErrorKind::Internal, format!("the result is unreadable: {error}"), None)
    })?;
    if changes_files {
        workspace.files_touched(Some(changed(word, &data)));
    }
    Ok(T::result(data))
}

/// The paths of what an operation has changed, by its result.
fn changed(word: &str, data: &Value) -> Vec<Vec<u8>> {
    let names: &[&str] = match word {
        "copy" => &["to"],
        "rename" => &["from", "to"],
        _ => &["path"],
    };
    let paths = names.iter().filter_map(|name| WireString::deserialize(data.get(name)?).ok());
    paths.map(WireString::into_bytes).collect()
}

/// Arguments as an operation.
fn operation<T: FileTool>(mut arguments: JsonObject) -> Result<OperationRequest, Failure> {
    let word = T::select(&mut arguments)?;
    if arguments.insert("operation".to_owned(), word.into()).is_some() {
        return Err(invalid(format!("{}: unknown field `operation`", T::NAME)));
    }
    OperationRequest::from_object(arguments).map_err(|error| {
        // The caller knows the tool's name, not the operation's.
        let message = error.to_string();
        let message = message.strip_prefix(word).unwrap_or(&message);
        let message = message.strip_prefix(": ").unwrap_or(message);
        let message = with_fields::<T>(message).unwrap_or_else(|| message.to_owned());
        invalid(format!("{}: {message}", T::NAME))
    })
}

/// The refusal of an unknown argument with all arguments that the tool takes: some take those of
/// several operations.
fn with_fields<T: FileTool>(message: &str) -> Option<String> {
    let (unknown, _) = message.split_once(", expected ")?;
    let (path, field) = unknown.split_once(": unknown field ")?;
    let mut input = T::input();
    let fields = schema::properties(&mut input).keys().map(|name| format!("`{name}`"));
    let fields = fields.collect::<Vec<_>>().join(", ");
    (field.trim_matches('`') == path).then(|| format!("{unknown}, expected one of {fields}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Copy, Glob, Grep, ListDirectory, Move, ReadFile, Remove, Stat};
    use super::*;

    fn operation<T: FileTool>(arguments: Value) -> Result<&'static str, String> {
        let Value::Object(arguments) = arguments else { panic!("no object") };
        let operation = super::operation::<T>(arguments);
        operation.map(|it| it.operation.name()).map_err(|failure| failure.message)
    }

    #[test]
    fn arguments_are_those_of_the_operations() {
        assert_eq!(operation::<Move>(json!({ "from": "a", "to": "b" })).unwrap(), "rename");
        assert_eq!(operation::<ReadFile>(json!({ "path": "a" })).unwrap(), "view");
        let bytes = json!({ "path": "a", "encoding": "base64", "offset": 3 });
        assert_eq!(operation::<ReadFile>(bytes).unwrap(), "read");
        assert_eq!(operation::<ListDirectory>(json!({})).unwrap(), "list");
        assert_eq!(operation::<Remove>(json!({ "path": { "b64": "Yf8=" } })).unwrap(), "remove");
    }

    #[test]
    fn wrong_arguments_are_named_with_the_tool() {
        for (result, expected) in [
            (operation::<Move>(json!({ "from": "a" })), "move: missing field `to`"),
            (operation::<Stat>(json!({ "path": "a", "x": 1 })), "stat: x: unknown field `x`"),
            (operation::<ReadFile>(json!({ "path": 7 })), "read_file: path: invalid type"),
            (
                operation::<ReadFile>(json!({ "path": "a", "lines": [2, 3] })),
                "read_file: lines: invalid type: array, expected an object",
            ),
            (
                operation::<ReadFile>(json!({ "path": "a", "offset": 3 })),
                "read_file: `offset` and `limit` are",
            ),
            (
                operation::<Copy>(json!({ "operation": "read", "path": "a" })),
                "copy: unknown field `operation`",
            ),
        ] {
            let error = result.unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = operation::<ReadFile>(json!({ "path": "a", "x": 1 })).unwrap_err();
        for field in ["path", "lines", "encoding", "offset", "limit"] {
            assert!(error.contains(&format!("`{field}`")), "{error}");
        }
    }

    #[test]
    fn result_says_what_was_changed() {
        let two = json!({ "from": "/io/a", "to": { "b64": "L2lvL/8=" } });
        assert_eq!(changed("rename", &two), [&b"/io/a"[..], b"/io/\xff"]);
        assert_eq!(changed("copy", &two), [b"/io/\xff"]);
        assert_eq!(changed("edit", &json!({ "path": "/io/a" })), [b"/io/a"]);
    }

    #[test]
    fn hints_name_what_the_tool_takes() {
        fn check<T: FileTool>(arguments: Value) {
            let hint = T::part_hint(operation::<T>(arguments).unwrap());
            let schema = T::input();
            for field in hint.split('`').skip(1).step_by(2) {
                let field = field.split(':').next().unwrap();
                assert!(schema["properties"].get(field).is_some(), "{}: {hint}", T::NAME);
            }
        }
        check::<ListDirectory>(json!({}));
        check::<Glob>(json!({ "pattern": "*" }));
        check::<Grep>(json!({ "pattern": "x" }));
        check::<ReadFile>(json!({ "path": "a", "encoding": "base64" }));
        check::<ReadFile>(json!({ "path": "a" }));
    }
}
