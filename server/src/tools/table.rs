//! The table of all tools.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::client::{Download, Execute, Operate, Upload};
use super::command::RunCommand;
use super::destroy::Destroy;
use super::error::ToolError;
use super::exchange::Exchange;
use super::files::{self, Filesystem};
use super::init::Init;
use super::metadata::Json;
use super::schema;
use super::script::ExecuteScript;
use super::stop::Stop;
use super::tool::{Arguments, Context, Output, Tool, Work, decode};

/// The tools before and after the file tools.
static FIRST: [Entry; 3] = [Entry::of::<Init>(), Entry::of::<RunCommand>(), Entry::of::<Destroy>()];
static LAST: [Entry; 6] = [
    Entry::of::<ExecuteScript>(),
    Entry::of::<Filesystem>(),
    Entry::of::<Operate>(),
    Entry::of::<Execute>(),
    Entry::of::<Download>(),
    Entry::of::<Upload>(),
];

/// Every tool, in the order of the documentation.
fn tools() -> impl Iterator<Item = &'static Entry> {
    FIRST.iter().chain(files::TOOLS).chain(&LAST)
}

/// A [`Tool`] without its types.
pub(super) struct Entry {
    name: &'static str,
    description: &'static str,
    input_schema: fn() -> Value,
    output_schema: fn() -> Value,
    check: fn(&RawValue) -> Result<String, ToolError>,
    pub begin: fn(&Context, &RawValue, Stop, Exchange) -> Work<Json>,
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

    pub fn find(name: &str) -> Result<&'static Self, ToolError> {
        tools().find(|tool| tool.name == name).ok_or_else(|| {
            let names: Vec<_> = names().collect();
            ToolError::invalid(format!("unknown tool '{name}'"))
                .with_hint(format!("the tools are {}", names.join(", ")))
        })
    }
}

fn begin<T: Tool>(
    context: &Context,
    args: &RawValue,
    stop: Stop,
    exchange: Exchange,
) -> Work<Json> {
    let mut is_read_only = false;
    let work = decode::<T>(args).and_then(|args| {
        is_read_only = T::is_read_only(&args);
        T::begin_with(args, context, stop, exchange)
    });
    Box::pin(async move {
        let outcome = match work {
            Ok(work) => work.await,
            Err(error) => Err(error),
        };
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

/// Checks the arguments of a call, and returns the sandbox that it is for.
///
/// # Errors
///
/// [`ToolError`] of kind `invalid_request`, which names the cause: an unknown tool, an unknown or
/// missing key, a value of another type.
pub fn check(tool: &str, args: &RawValue) -> Result<String, ToolError> {
    (Entry::find(tool)?.check)(args)
}

/// The description of a tool for programs and models.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub description: &'static str,
    /// The schema of its arguments.
    pub input_schema: Value,
    /// The schema of `data` in its result.
    pub output_schema: Value,
}

/// Every tool, in the order of the documentation.
#[must_use]
pub fn catalogue() -> Vec<Description> {
    let describe = |tool: &Entry| Description {
        name: tool.name,
        description: tool.description,
        input_schema: (tool.input_schema)(),
        output_schema: (tool.output_schema)(),
    };
    tools().map(describe).collect()
}

/// The names of the tools, in the same order.
pub fn names() -> impl Iterator<Item = &'static str> {
    tools().map(|tool| tool.name)
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
