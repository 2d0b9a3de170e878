//! The JSON Schemas of the documents of executions.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::document::{
    CommandBody, ExecSchema, ExecutionDocument, ReadMembers, ResultSchema, ScriptBody,
};

/// The schema of `sandboxctl.result/1`.
#[derive(Debug)]
pub struct ResultDocument;

/// The schema of `sandboxctl.exec/1`.
#[derive(Debug)]
pub struct ExecDocument;

impl JsonSchema for ResultDocument {
    fn schema_name() -> Cow<'static, str> {
        "ResultDocument".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let description = "The document of `--json`, for every way a run can end, including \
            failures of sandboxctl itself.";
        let schema = ReadMembers::<ResultSchema, ScriptBody<'static>>::json_schema(generator);
        described(schema, description, "The run's id.")
    }
}

impl JsonSchema for ExecDocument {
    fn schema_name() -> Cow<'static, str> {
        "ExecDocument".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let description = "The document of `exec --json`, for every way a command can end, \
            including failures of sandboxctl itself.";
        let schema = ReadMembers::<ExecSchema, CommandBody<'static>>::json_schema(generator);
        described(schema, description, "The command's id.")
    }
}

fn described(mut schema: Schema, description: &str, id: &str) -> Schema {
    schema.insert("description".to_owned(), description.into());
    if let Some(member) = schema.pointer_mut("/properties/id/description") {
        *member = id.into();
    }
    schema
}

impl JsonSchema for ExecutionDocument<'_> {
    fn schema_name() -> Cow<'static, str> {
        "ExecutionDocument".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let script = generator.subschema_for::<ResultDocument>();
        let command = generator.subschema_for::<ExecDocument>();
        json_schema!({ "type": "object", "anyOf": [script, command] })
    }
}
