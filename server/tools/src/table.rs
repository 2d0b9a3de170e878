//! The table of all tools.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::command::RunCommand;
use super::destroy::Destroy;
use super::entry::Entry;
use super::error::ToolError;
use super::files::{self, Filesystem};
use super::init::Init;
use super::script::ExecuteScript;

/// The tools before and after the file tools.
static FIRST: [Entry; 3] = [Entry::of::<Init>(), Entry::of::<RunCommand>(), Entry::of::<Destroy>()];
static LAST: [Entry; 2] = [Entry::of::<ExecuteScript>(), Entry::of::<Filesystem>()];

/// Every tool, in the order of the documentation.
fn tools() -> impl Iterator<Item = &'static Entry> {
    FIRST.iter().chain(files::TOOLS).chain(&LAST)
}

/// The tool of this name.
pub(super) fn find(name: &str) -> Result<&'static Entry, ToolError> {
    tools().find(|tool| tool.name == name).ok_or_else(|| {
        let names: Vec<_> = names().collect();
        ToolError::invalid(format!("unknown tool '{name}'"))
            .with_hint(format!("the tools are {}", names.join(", ")))
    })
}

/// Checks the arguments of a call, and returns the sandbox that it is for.
///
/// # Errors
///
/// [`ToolError`] of kind `invalid_request`, which names the cause: an unknown tool, an unknown or
/// missing key, a value with the wrong type.
pub fn check(tool: &str, args: &RawValue) -> Result<String, ToolError> {
    (find(tool)?.check)(args)
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
