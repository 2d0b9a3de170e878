//! A program that embeds the controller: a script calls a function of this program.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox_api::{HostTool, Outcome, SandboxSpec, Script, ToolEffect};
use sandbox_controller::host_tools::{HostAnswer, HostToolError, HostTools, ToolGrant};
use sandbox_controller::{CancelHandle, Controller};
use serde_json::{Map, Value, json};

/// What this program knows.
#[derive(Debug)]
struct People;

#[async_trait]
impl HostTools for People {
    async fn list(&self) -> Result<Arc<[HostTool]>, HostToolError> {
        let input = json!({
            "type": "object",
            "properties": { "name": { "type": "string" } },
            "required": ["name"],
        });
        Ok([HostTool {
            name: "app.person".to_owned(),
            description: "What a person does".to_owned(),
            input: input.as_object().cloned().unwrap_or_default(),
            // Such tools are given without a rule.
            effect: ToolEffect::ReadOnly,
            ..HostTool::default()
        }]
        .into())
    }

    async fn call(
        &self,
        _tool: &str,
        arguments: Map<String, Value>,
        _permitted: ToolEffect,
    ) -> Result<HostAnswer, HostToolError> {
        match arguments.get("name").and_then(Value::as_str) {
            Some("ada") => Ok(HostAnswer { value: json!("engineer"), files: Vec::new() }),
            _ => Err(HostToolError::Failed("no such person".to_owned())),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let controller = Controller::connect(sandbox_env::config()?).await?;
    let sandbox = controller.launch(SandboxSpec::new()).await?;

    let source = r#"
        local found = {}
        for _, name in { "ada", "grace" } do
            local _, result = pcall(tools.app.person, { name = name })
            found[name] = result
        end
        return found
    "#;
    let tools = Some(ToolGrant::new(Arc::new(People)));
    let run = sandbox.start_with_tools(Script::new(source), tools, CancelHandle::new()).await?;
    let run = run.wait().await?;

    match &run.outcome {
        Outcome::Ok { result } => println!("result: {result}"),
        other => println!("{:?}, exit code {}", other.status(), run.exit_code()),
    }
    for call in run.tool_calls().0 {
        println!("{}: {}", call.tool, call.outcome);
    }

    sandbox.close().await?;
    controller.close().await;
    Ok(())
}
