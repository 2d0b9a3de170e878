//! The tools: their list, and how a call of one runs.

mod args;
mod exec;
mod execute_script;
pub(crate) mod exposed;
mod files;
mod processes;
mod result;
mod schema;
mod tool;

use rmcp::model::{CallToolResult, ErrorData, Tool};

use self::exec::Exec;
use self::execute_script::ExecuteScript;
use self::files::ReadFile;
use self::tool::{Entry, McpTool as _, ServerTraits};
use crate::settings::Settings;

pub(crate) use self::execute_script::other_servers;
pub(crate) use self::tool::Call;

/// How many scripts and commands of one client run at a time by default.
pub const DEFAULT_CONCURRENCY: u32 = 8;

/// The tool that runs a script.
pub(crate) const EXECUTE_SCRIPT: &str = ExecuteScript::NAME;

/// Every tool, in the order of their list.
static TOOLS: [&[Entry]; 4] = [
    &[Entry::of::<ExecuteScript>(), Entry::of::<ReadFile>()],
    files::TOOLS,
    &[Entry::of::<Exec>()],
    processes::TOOLS,
];

/// The tools that a server offers, in their order.
#[derive(Debug)]
pub(crate) struct Catalogue {
    tools: Vec<(&'static Entry, Tool)>,
}

fn tools() -> impl Iterator<Item = &'static Entry> {
    TOOLS.into_iter().flatten()
}

/// The names of all tools, in their order.
#[must_use]
pub fn tool_names() -> Vec<&'static str> {
    tools().map(|tool| tool.name).collect()
}

/// Whether a tool's calls may take long: each has a container of its own, or is another server's.
pub(crate) fn may_take_long(tool: &str) -> bool {
    tool.contains('.') || tools().any(|entry| entry.in_fresh_container && entry.name == tool)
}

impl Catalogue {
    /// The tools that these settings offer, with or without files.
    pub fn new(settings: &Settings, has_files: bool) -> Self {
        let server = ServerTraits { settings, has_files };
        let names = settings.tools.as_ref();
        let is_named = |name: &str| names.is_none_or(|names| names.iter().any(|it| it == name));
        let tools = tools().filter(|entry| is_named(entry.name));
        Self { tools: tools.filter_map(|it| Some((it, (it.offer)(server)?))).collect() }
    }

    pub fn list(&self) -> Vec<Tool> {
        self.tools.iter().map(|(_, tool)| tool.clone()).collect()
    }

    pub fn find(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|(entry, _)| entry.name == name).map(|(_, tool)| tool)
    }

    /// Calls a tool. What fails in it is a result; an unknown one is an error of the protocol.
    ///
    /// # Errors
    ///
    /// Invalid params, if there is no such tool.
    pub async fn call(&self, name: &str, mut call: Call<'_>) -> Result<CallToolResult, ErrorData> {
        let Some((entry, _)) = self.tools.iter().find(|(entry, _)| entry.name == name) else {
            let shown: String = name.chars().take(64).collect();
            return Err(ErrorData::invalid_params(format!("unknown tool: {shown}"), None));
        };
        // Some clients send every argument: null is as good as none.
        call.arguments.retain(|_, value| !value.is_null());
        Ok((entry.call)(call).await)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use sandbox_api::service::BySubject;
    use sandbox_api::{RootFs, SandboxSpec};
    use serde_json::{Value, json};

    use super::*;
    use crate::outputs::DEFAULT_OUTPUT_BYTES;
    use crate::settings::{Access, Audience};

    pub(crate) fn settings() -> Settings {
        Settings {
            sandbox: SandboxSpec::new(),
            timeout_ceiling: Duration::from_secs(600),
            access: Access::ReadWrite,
            audience: Audience::Local,
            has_previews: true,
            tools: None,
            output_bytes: DEFAULT_OUTPUT_BYTES,
            upstreams: BySubject::default(),
            expose: Vec::new(),
            elicitation: None,
        }
    }

    fn names(settings: &Settings, has_files: bool) -> Vec<String> {
        let tools = Catalogue::new(settings, has_files).list();
        tools.iter().map(|tool| tool.name.to_string()).collect()
    }

    #[test]
    fn list_has_what_the_settings_offer_in_one_order() {
        let mut all = settings();
        all.sandbox = all.sandbox.root(RootFs::Directory("/x".into()));
        assert_eq!(names(&all, true), tool_names());
        let processes = [
            "start_process", "read_output", "send_input", "stop_process", "list_processes",
            "open_port",
        ];
        let without_files = [&["execute_script", "exec"][..], &processes].concat();
        assert_eq!(names(&all, false), without_files);
        let without_previews = Settings { has_previews: false, ..all.clone() };
        let others = without_files.iter().copied().filter(|it| *it != "open_port");
        assert_eq!(names(&without_previews, false), others.collect::<Vec<_>>());
        assert_eq!(names(&settings(), false), ["execute_script"]);
        let read_only = Settings { access: Access::ReadOnly, ..settings() };
        assert_eq!(
            names(&read_only, true),
            ["execute_script", "read_file", "list_directory", "stat", "glob", "grep"]
        );
        let some = Settings { tools: Some(vec!["grep".into(), "stat".into()]), ..settings() };
        assert_eq!(names(&some, true), ["stat", "grep"]);
    }

    #[test]
    fn tools_are_as_reviewed() {
        let mut all = settings();
        all.sandbox = all.sandbox.root(RootFs::Directory("/x".into()));
        let mut tools = Catalogue::new(&all, true).list();
        // It has a test of its own.
        tools[0].description = None;
        insta::assert_snapshot!(serde_json::to_string_pretty(&tools).unwrap());
    }

    #[test]
    fn list_of_all_tools_has_at_most_29_kilobytes() {
        let mut all = settings();
        all.sandbox = all.sandbox.root(RootFs::Directory("/x".into()));
        let bytes = serde_json::to_vec(&Catalogue::new(&all, true).list()).unwrap().len();
        assert!(bytes <= 29_000, "{bytes}");
    }

    #[test]
    fn every_schema_is_an_object_that_clients_understand() {
        let mut all = settings();
        all.sandbox = all.sandbox.root(RootFs::Directory("/x".into()));
        for tool in Catalogue::new(&all, true).list() {
            let output = tool.output_schema.clone().unwrap();
            for schema in [&tool.input_schema, &output] {
                assert_eq!(schema["type"], json!("object"), "{}", tool.name);
                let text = Value::Object((**schema).clone()).to_string();
                // Some clients know neither references nor such formats.
                assert!(!text.contains("$ref") && !text.contains("\"uint"), "{text}");
            }
            // Some models' interfaces refuse these at the top.
            for word in ["oneOf", "anyOf", "allOf"] {
                assert!(!tool.input_schema.contains_key(word), "{} {word}", tool.name);
            }
            assert_eq!(tool.input_schema["additionalProperties"], json!(false), "{}", tool.name);
        }
    }
}
