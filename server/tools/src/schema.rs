//! JSON Schemas of the tools' arguments and results.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::Value;

/// For arguments: a member with a default is optional.
pub(super) fn input<T: JsonSchema>() -> Value {
    schema::<T>(SchemaSettings::draft2020_12().for_deserialize())
}

/// For results: every member is present, and may be null.
pub(super) fn output<T: JsonSchema>() -> Value {
    schema::<T>(SchemaSettings::draft2020_12().for_serialize())
}

fn schema<T: JsonSchema>(settings: SchemaSettings) -> Value {
    let mut schema: Schema = settings.into_generator().into_root_schema_for::<T>();
    // The type's own name and comment mean nothing to clients.
    schema.remove("title");
    schema.remove("description");
    sandbox_api::schema::without_unused(schema).into()
}
