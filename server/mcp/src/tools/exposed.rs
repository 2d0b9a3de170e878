//! Tools of other servers that are offered beside those of this one, by the names that scripts have for them. A
//! call is checked, bounded and audited as that of a script.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{CallToolResult, ContentBlock, Tool};
use sandbox_api::HostTool;
use sandbox_service::host_tools::ToolGrant;
use serde_json::Value;
use tokio::time::timeout;

use super::result::{failed, invalid};
use super::tool::Call;
use crate::settings::Settings;

/// How long a list waits for servers that are being started.
const LIST_WAIT: Duration = Duration::from_secs(10);
/// The longest name of a tool that clients take.
const MAX_NAME: usize = 128;

/// Whether a tool of another server is offered, if its caller is given it. The names of other tools have no dot.
pub(crate) fn is_exposed(settings: &Settings, name: &str) -> bool {
    name.contains('.') && is_name(name) && is_wanted(settings, name)
}

fn is_wanted(settings: &Settings, name: &str) -> bool {
    settings.expose.iter().any(|pattern| pattern.names(name))
}

/// Whether a name is one that the protocol gives a tool.
fn is_name(name: &str) -> bool {
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"_-.".contains(&it);
    name.len() <= MAX_NAME && name.bytes().all(is_plain)
}

/// Those that are given, of the servers that have listed their tools by now.
pub(crate) async fn list(settings: &Settings, grant: &ToolGrant) -> Vec<Tool> {
    let (tools, missing) = match timeout(LIST_WAIT, grant.tools.list_some()).await {
        Ok(Ok(listed)) => listed,
        Ok(Err(_)) | Err(_) => grant.tools.known().unwrap_or_default(),
    };
    if !missing.is_empty() {
        tracing::warn!("not offered, for they are not listed: tools of {}", missing.join(", "));
    }
    let wanted = tools.iter().filter(|tool| is_wanted(settings, &tool.name) && grant.gives(tool));
    wanted.filter_map(offered).collect()
}

/// A tool as clients see it: as its server describes it.
fn offered(tool: &HostTool) -> Option<Tool> {
    let HostTool { name, description, input, output, annotations, .. } = tool;
    if !is_name(name) {
        let name = name.escape_debug();
        tracing::warn!(
            "not offered: '{name}' is no name of at most {MAX_NAME} of A-Z a-z 0-9 _ - ."
        );
        return None;
    }
    let mut input = input.clone();
    // Clients refuse the whole list where one has no such type.
    input.insert("type".to_owned(), "object".into());
    let mut offered = Tool::new(name.clone(), description.clone(), Arc::new(input));
    offered.output_schema = output.clone().map(Arc::new);
    offered.annotations = serde_json::from_value(Value::Object(annotations.clone())).ok();
    Some(offered)
}

/// Calls one. What fails in it is a result.
pub(crate) async fn call(name: &str, call: Call<'_>) -> CallToolResult {
    let Call { workspace, arguments, cancelled, asker, .. } = call;
    let called = workspace.call_tool(name, &arguments, asker, &cancelled).await;
    match called {
        Ok(Ok(result)) => serde_json::from_value(result)
            .unwrap_or_else(|error| failed(&invalid(format!("its result is unreadable: {error}")))),
        Ok(Err(why)) => CallToolResult::error(vec![ContentBlock::text(why)]),
        Err(failure) => failed(&failure),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::settings;
    use super::*;

    #[test]
    fn tools_of_others_differ_from_own_ones_by_their_names() {
        let settings = Settings { expose: vec!["*".parse().unwrap()], ..settings() };
        assert!(is_exposed(&settings, "github.list_issues"));
        let long = format!("a.{}", "b".repeat(MAX_NAME));
        for name in ["execute_script", "a.b c", "a.ü", "a.b\n", &long] {
            assert!(!is_exposed(&settings, name), "{name}");
        }
        let settings = Settings { expose: vec!["github.list_*".parse().unwrap()], ..settings };
        assert!(!is_exposed(&settings, "github.delete_repo"));
        assert!(!is_exposed(&super::super::tests::settings(), "github.list_issues"));
    }

    #[test]
    fn tool_is_offered_as_its_server_describes_it() {
        let object = |value: Value| value.as_object().unwrap().clone();
        let tool = HostTool {
            name: "a.b".to_owned(),
            description: "Lists".to_owned(),
            input: object(json!({ "properties": { "x": { "type": "string" } } })),
            output: Some(object(json!({ "type": "object" }))),
            annotations: object(json!({ "title": "B", "idempotentHint": true })),
            ..HostTool::default()
        };
        assert_eq!(
            serde_json::to_value(offered(&tool)).unwrap(),
            json!({
                "name": "a.b",
                "description": "Lists",
                "inputSchema": { "type": "object", "properties": { "x": { "type": "string" } } },
                "outputSchema": { "type": "object" },
                "annotations": { "title": "B", "idempotentHint": true },
            })
        );
        let odd = HostTool { name: "a.b/c".to_owned(), ..tool };
        assert_eq!(offered(&odd), None);
    }
}
