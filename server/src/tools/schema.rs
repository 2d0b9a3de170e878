//! JSON Schemas of what tools take and give.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::Value;

/// Of what is taken: a member that has a default may be left out.
pub(super) fn input<T: JsonSchema>() -> Value {
    schema::<T>(SchemaSettings::draft2020_12().for_deserialize())
}

/// Of what is given: every member is there, if only as null.
pub(super) fn output<T: JsonSchema>() -> Value {
    schema::<T>(SchemaSettings::draft2020_12().for_serialize())
}

fn schema<T: JsonSchema>(settings: SchemaSettings) -> Value {
    let mut schema: Schema = settings.into_generator().into_root_schema_for::<T>();
    // The type's own name and comment say nothing to others.
    schema.remove("title");
    schema.remove("description");
    schema.into()
}
