//! A tool without its types.

use serde_json::Value;
use serde_json::value::RawValue;

use super::error::ToolError;
use super::metadata::Json;
use super::schema;
use super::stop::Stop;
use super::tool::{Arguments, Context, Output, Tool, Work, decode};

/// A [`Tool`] without its types.
pub(super) struct Entry {
    pub name: &'static str,
    pub description: &'static str,
    pub input_schema: fn() -> Value,
    pub output_schema: fn() -> Value,
    pub check: fn(&RawValue) -> Result<String, ToolError>,
    pub begin: fn(&Context, &RawValue, Stop) -> Work<Json>,
}

impl Entry {
    pub const fn of<T: Tool>() -> Self {
        Self {
            name: T::NAME,
            description: T::DESCRIPTION,
            input_schema: schema::input::<T::Args>,
            output_schema: schema::output::<T::Data>,
            check: |args| Ok(decode::<T>(args)?.container_id().to_owned()),
            begin: begin::<T>,
        }
    }
}

fn begin<T: Tool>(context: &Context, args: &RawValue, stop: Stop) -> Work<Json> {
    let mut is_read_only = false;
    let work = decode::<T>(args).and_then(|args| {
        is_read_only = T::is_read_only(&args);
        T::begin(args, context, stop)
    });
    Box::pin(async move {
        let outcome = async { work?.await }.await;
        match outcome {
            Ok(Output { data, metadata, failure, held }) => {
                let data: Json = Box::new(data);
                Ok(Output { data, metadata, failure, held })
            }
            Err(error) if is_read_only => Err(T::complete_error(error.of_read_only_call())),
            Err(error) => Err(T::complete_error(error)),
        }
    })
}
