//! What tools there are, with the JSON Schemas of what they take and give.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::args::{
    CommandArgs, CreateDirectoryArgs, DeleteArgs, DestroyArgs, ExecuteScriptArgs, ExistsArgs,
    FileInfoArgs, InitArgs, ListDirectoryArgs, ReadFileArgs, WriteFileArgs,
};
use super::call::{OPERATIONS, Tool};
use super::data::{
    CommandData, CreateDirectoryData, DeleteData, DestroyData, ExecuteScriptData, ExistsData,
    FileInfoData, InitData, ListDirectoryData, ReadFileData, WriteFileData,
};

/// A tool, as programs and models are told of it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub description: &'static str,
    /// What it takes.
    pub input_schema: Value,
    /// What it gives: the schema of `data`.
    pub output_schema: Value,
}

/// Every tool, in the order of the documentation.
#[must_use]
pub fn catalogue() -> Vec<Description> {
    Tool::ALL.iter().map(|&tool| describe(tool)).collect()
}

fn describe(tool: Tool) -> Description {
    Description {
        name: tool.name(),
        description: description(tool),
        input_schema: input(tool),
        output_schema: output(tool),
    }
}

const fn description(tool: Tool) -> &'static str {
    match tool {
        Tool::Init => {
            "Make a sandbox that sees one directory of the host, and keep it by a name. Asked \
             again with the same arguments it gives the same sandbox."
        }
        Tool::Command => {
            "Run a program in a sandbox that was made with an image, and give its output and its \
             exit code. What is out of time is killed with all that it has started."
        }
        Tool::Destroy => "End a sandbox and remove its container. Its files stay on the host.",
        Tool::ReadFile => "Read a file, as text or as base64.",
        Tool::WriteFile => {
            "Write a file as a whole. Who reads it meanwhile sees the old content or the new one."
        }
        Tool::ListDirectory => "List a directory, sorted by path.",
        Tool::CreateDirectory => "Make a directory; one that is there already is no error.",
        Tool::Delete => "Delete a file or a directory.",
        Tool::Exists => "Say whether something is at a path, and what it is.",
        Tool::FileInfo => "Describe a file or a directory: size, permissions, owner, times.",
        Tool::ExecuteScript => {
            "Run a Luau script. It reads and writes files with io.open, and returns a value as \
             JSON."
        }
        Tool::Filesystem => {
            "One operation on files: what the operation's own tool does, in an envelope that says \
             whether it was done."
        }
    }
}

fn input(tool: Tool) -> Value {
    match tool {
        Tool::Init => taken::<InitArgs>(),
        Tool::Command => taken::<CommandArgs>(),
        Tool::Destroy => taken::<DestroyArgs>(),
        Tool::ReadFile => taken::<ReadFileArgs>(),
        Tool::WriteFile => taken::<WriteFileArgs>(),
        Tool::ListDirectory => taken::<ListDirectoryArgs>(),
        Tool::CreateDirectory => taken::<CreateDirectoryArgs>(),
        Tool::Delete => taken::<DeleteArgs>(),
        Tool::Exists => taken::<ExistsArgs>(),
        Tool::FileInfo => taken::<FileInfoArgs>(),
        Tool::ExecuteScript => taken::<ExecuteScriptArgs>(),
        Tool::Filesystem => {
            let operations: Vec<Value> =
                OPERATIONS.iter().map(|&(name, tool)| operation(name, tool)).collect();
            with_dialect(json!({ "type": "object", "oneOf": operations }))
        }
    }
}

/// What the operation's own tool takes, and the operation's name.
fn operation(name: &str, tool: Tool) -> Value {
    let mut schema = input(tool);
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("$schema");
        schema.insert("description".to_owned(), description(tool).into());
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            properties.insert("operation".to_owned(), json!({ "const": name }));
        }
        if let Some(Value::Array(required)) = schema.get_mut("required") {
            required.insert(0, "operation".into());
        }
    }
    schema
}

fn output(tool: Tool) -> Value {
    match tool {
        Tool::Init => given::<InitData>(),
        Tool::Command => given::<CommandData>(),
        Tool::Destroy => given::<DestroyData>(),
        Tool::ReadFile => given::<ReadFileData>(),
        Tool::WriteFile => given::<WriteFileData>(),
        Tool::ListDirectory => given::<ListDirectoryData>(),
        Tool::CreateDirectory => given::<CreateDirectoryData>(),
        Tool::Delete => given::<DeleteData>(),
        Tool::Exists => given::<ExistsData>(),
        Tool::FileInfo => given::<FileInfoData>(),
        Tool::ExecuteScript => given::<ExecuteScriptData>(),
        Tool::Filesystem => {
            let data: Vec<Value> = OPERATIONS
                .iter()
                .map(|&(_, tool)| {
                    let mut schema = output(tool);
                    schema.as_object_mut().map(|schema| schema.remove("$schema"));
                    schema
                })
                .chain([json!({ "type": "null", "description": "The operation failed" })])
                .collect();
            let count = |what: &str| json!({ "type": ["integer", "null"], "description": what });
            with_dialect(json!({
                "type": "object",
                "properties": {
                    "success": { "type": "boolean", "description": "Whether it was done" },
                    "data": {
                        "description": "What the operation's own tool gives",
                        "anyOf": data,
                    },
                    "error": { "type": ["string", "null"], "description": "What went wrong" },
                    "metadata": {
                        "type": "object",
                        "properties": {
                            "bytesWritten": count("Bytes that a write wrote"),
                            "itemsCount": count("Entries that were listed or deleted"),
                            "truncated": {
                                "type": "boolean",
                                "description": "Of a list: there is more",
                            },
                            "kind": {
                                "type": "string",
                                "description": "Of a failure: what went wrong, in one word",
                            },
                            "retryable": {
                                "type": "boolean",
                                "description": "Of a failure: the same call may succeed if it is \
                                                made again",
                            },
                            "hint": {
                                "type": "string",
                                "description": "Of a failure: the next step",
                            },
                        },
                        "required": ["bytesWritten", "itemsCount"],
                        "additionalProperties": false,
                    },
                },
                "required": ["success", "data", "error", "metadata"],
                "additionalProperties": false,
            }))
        }
    }
}

/// Of what is taken: a member that has a default may be left out.
fn taken<T: JsonSchema>() -> Value {
    schema::<T>(SchemaSettings::draft2020_12().for_deserialize())
}

/// Of what is given: every member is there, if only as null.
fn given<T: JsonSchema>() -> Value {
    schema::<T>(SchemaSettings::draft2020_12().for_serialize())
}

fn schema<T: JsonSchema>(settings: SchemaSettings) -> Value {
    let mut schema: Schema = settings.into_generator().into_root_schema_for::<T>();
    // The type's own name and comment say nothing to others.
    schema.remove("title");
    schema.remove("description");
    schema.into()
}

fn with_dialect(schema: Value) -> Value {
    let mut with = Map::new();
    if let Some(dialect) = SchemaSettings::draft2020_12().meta_schema.as_deref() {
        with.insert("$schema".to_owned(), dialect.into());
    }
    if let Value::Object(schema) = schema {
        with.extend(schema);
    }
    with.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_is_as_reviewed() {
        let text = serde_json::to_string_pretty(&catalogue()).unwrap();
        insta::assert_snapshot!(text);
    }

    #[test]
    fn every_tool_takes_an_object_with_a_container_and_nothing_unknown() {
        for Description { name, input_schema, .. } in catalogue() {
            assert_eq!(input_schema["type"], "object", "{name}");
            let forms = match &input_schema["oneOf"] {
                Value::Array(forms) => forms.clone(),
                _ => vec![input_schema],
            };
            for form in forms {
                assert_eq!(form["additionalProperties"], false, "{name}");
                assert_eq!(form["properties"]["containerId"]["type"], "string", "{name}");
                assert!(form["required"].as_array().unwrap().contains(&"containerId".into()));
            }
        }
    }
}
