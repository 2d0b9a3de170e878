//! An operation of `sandbox_filesystem` without its types.

use std::fmt;

use sandbox_api::operation::Published;
use serde_json::{Value, json};

use super::operation::{FileTool, OperationOutput, OperationWork, begin};
use crate::args::Members;
use crate::error::ToolError;
use crate::metadata::Json;
use crate::schema;
use crate::tool::{Arguments as _, Context};

/// A [`FileTool`] without its types.
pub(super) struct Entry {
    pub operation: &'static str,
    description: &'static str,
    input_schema: fn() -> Value,
    output_schema: fn() -> Value,
    pub decode: fn(Members<'_>) -> Result<FilesystemArgs, ToolError>,
}

impl Entry {
    pub const fn of<T: FileTool>() -> Self {
        Self {
            operation: T::OPERATION,
            description: T::DESCRIPTION,
            input_schema: schema::input::<T::Args>,
            output_schema: schema::output::<T::Data>,
            decode: decode::<T>,
        }
    }

    /// The members of the operation's own tool, and the operation's name.
    pub fn input_schema(&self) -> Value {
        let mut schema = (self.input_schema)();
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("$schema");
            schema.insert("description".to_owned(), self.description.into());
            if let Some(Value::Object(properties)) = schema.get_mut("properties") {
                properties.insert("operation".to_owned(), json!({ "const": self.operation }));
            }
            if let Some(Value::Array(required)) = schema.get_mut("required") {
                required.insert(0, "operation".into());
            }
        }
        schema
    }

    pub fn output_schema(&self) -> Value {
        let mut schema = (self.output_schema)();
        schema.as_object_mut().map(|schema| schema.remove("$schema"));
        schema
    }
}

fn decode<T: FileTool>(members: Members<'_>) -> Result<FilesystemArgs, ToolError> {
    let args = T::Args::decode(T::NAME, members)?;
    Ok(FilesystemArgs {
        container_id: args.container_id().to_owned(),
        is_read_only: !T::CHANGES_FILES,
        operation: Box::new(Operation::<T>(args)),
    })
}

#[derive(Debug)]
pub(crate) struct FilesystemArgs {
    pub(super) container_id: String,
    pub(super) is_read_only: bool,
    pub(super) operation: Box<dyn AnyOperation>,
}

/// The arguments of any operation.
pub(super) trait AnyOperation: fmt::Debug + Send {
    fn begin(self: Box<Self>, context: &Context) -> Result<OperationWork<Json>, ToolError>;
}

struct Operation<T: FileTool>(T::Args);

impl<T: FileTool> fmt::Debug for Operation<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl<T: FileTool> AnyOperation for Operation<T> {
    fn begin(self: Box<Self>, context: &Context) -> Result<OperationWork<Json>, ToolError> {
        let work = begin::<T>(self.0, context)?;
        Ok(Box::pin(async move {
            let OperationOutput { data, truncated, note, bytes_written, items, held } =
                work.await?;
            let data: Json = Box::new(Published(data));
            Ok(OperationOutput { data, truncated, note, bytes_written, items, held })
        }))
    }
}
