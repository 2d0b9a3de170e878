//! `mcp upstream check`: tries the servers whose tools scripts may call.

use std::fmt::Write as _;
use std::sync::Arc;

use sandbox_api::{HostTool, ToolEffect, ToolRule};
use sandbox_controller::host_tools::{ToolGrant, declare};
use serde::Serialize;

use crate::cli::upstream::UpstreamCheckArgs;
use crate::commands::upstream::of_command;
use crate::commands::{Context, block_on};
use crate::config::Key;
use crate::error::Error;
use crate::render::escaped_line;
use crate::signals::Signals;

/// The exit code if a server fails: that of `doctor`.
const FAILED: u8 = 125;
/// What the script API has for tools that it does not know.
const ANY_TOOL: &str =
    "\t[string]: { [string]: (arguments: { [string]: any }?) -> (any, { ToolFile }?) },\n";

/// What is printed.
#[derive(Debug, Serialize)]
struct Document {
    servers: Vec<Listed>,
    /// The rules that match no tool of them.
    unmatched_rules: Vec<String>,
}

/// A server, as it is printed.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    tools: Vec<ListedTool>,
}

/// A tool of it.
#[derive(Debug, Serialize)]
struct ListedTool {
    name: String,
    effect: ToolEffect,
    /// Whether scripts are given some call of it.
    given: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

impl ListedTool {
    /// Whether it is given, or why not.
    fn given(&self) -> &'static str {
        self.reason.unwrap_or("given")
    }
}

pub fn check(context: &Context<'_>, args: &UpstreamCheckArgs) -> Result<u8, Error> {
    let settings = context.settings()?;
    let configured = settings.upstreams(Key::McpUpstream);
    let found = of_command(context, &args.upstream, &settings, configured)?;
    let Some((upstreams, grant)) = found else {
        return Err(Error::usage("mcp.upstream", "no server is configured").with_hint(
            "[mcp.upstream] in the user's configuration has them, or --upstream NAME=COMMAND",
        ));
    };
    let checked = block_on(async {
        let mut signals = Signals::listen()?;
        let checked = signals.guard(upstreams.check()).await;
        upstreams.close().await;
        checked
    })?;
    let types = args.types.then(|| types(&checked, &grant));
    let document = Document {
        unmatched_rules: unmatched_rules(&checked, &grant),
        servers: checked.into_iter().map(|(name, tools)| listed(name, tools, &grant)).collect(),
    };
    match types {
        Some(types) => {
            context.output.text(&types)?;
            for Listed { name, error, .. } in &document.servers {
                if let Some(error) = error {
                    context.output.warning(&format!("{name}: failed: {}", escaped_line(error)));
                }
            }
        }
        None if args.json => context.output.document(&document)?,
        None => context.output.text(&shown(&document.servers))?,
    }
    for rule in &document.unmatched_rules {
        let rule = escaped_line(rule);
        context.output.warning(&format!("the rule '{rule}' matches no tool of these servers"));
    }
    let fails = document.servers.iter().any(|it| it.error.is_some());
    Ok(if fails { FAILED } else { 0 })
}

fn listed(name: String, tools: Result<Arc<[HostTool]>, String>, grant: &ToolGrant) -> Listed {
    let (tools, error) = match tools {
        Ok(tools) => (tools.to_vec(), None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let tools = tools.into_iter().map(|tool| {
        let given = grant.gives(&tool);
        let reason = match rules(grant).any(|rule| rule.names(&tool.name)) {
            _ if given => None,
            true => Some("needs --allow-destructive"),
            false => Some("no rule"),
        };
        ListedTool { name: tool.name, effect: tool.effect, given, reason }
    });
    Listed { name, error, tools: tools.collect() }
}

fn rules(grant: &ToolGrant) -> impl Iterator<Item = &ToolRule> {
    grant.rules.iter().chain(&grant.added)
}

/// A server, and its tools or why it has none.
type Checked = (String, Result<Arc<[HostTool]>, String>);

/// The rules that match no tool of a server that was reached.
fn unmatched_rules(checked: &[Checked], grant: &ToolGrant) -> Vec<String> {
    let matches = |rule: &ToolRule| {
        let tools = checked.iter().filter_map(|(_, tools)| tools.as_ref().ok());
        tools.flat_map(|tools| tools.iter()).any(|tool| rule.names(&tool.name))
    };
    rules(grant).filter(|rule| !matches(rule)).map(ToString::to_string).collect()
}

/// The script API with the given tools in place of any.
fn types(checked: &[Checked], grant: &ToolGrant) -> String {
    let tools = checked.iter().filter_map(|(_, tools)| tools.as_ref().ok());
    let given = tools.flat_map(|tools| tools.iter()).filter(|tool| grant.gives(tool));
    sandbox_mcp::SCRIPT_API.replace(ANY_TOOL, &declare(given))
}

fn shown(listed: &[Listed]) -> String {
    let mut text = String::new();
    for Listed { name, error, tools } in listed {
        _ = match error {
            Some(error) => writeln!(text, "{name}: failed: {}", escaped_line(error)),
            None => {
                let given = tools.iter().filter(|tool| tool.given).count();
                writeln!(text, "{name}: {} tools, {given} given", tools.len())
            }
        };
        let width = tools.iter().map(|tool| tool.given().len()).max().unwrap_or_default();
        for tool in tools {
            let (given, effect) = (tool.given(), tool.effect.as_str());
            _ = writeln!(text, "  {given:<width$}  {effect:<12} {}", escaped_line(&tool.name));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_api_has_a_place_for_tools() {
        assert_eq!(sandbox_mcp::SCRIPT_API.matches(ANY_TOOL).count(), 1);
    }

    #[test]
    fn servers_are_listed_with_what_is_given() {
        let tool = |name: &str, effect, reason: Option<&'static str>| ListedTool {
            name: name.to_owned(),
            effect,
            given: reason.is_none(),
            reason,
        };
        let listed = |name: &str, error: Option<&str>, tools| Listed {
            name: name.to_owned(),
            error: error.map(str::to_owned),
            tools,
        };
        let text = shown(&[
            listed(
                "a",
                None,
                vec![
                    tool("a.read", ToolEffect::ReadOnly, None),
                    tool("a.drop\u{202e}", ToolEffect::Destructive, Some("no rule")),
                ],
            ),
            listed("b", Some("it ended\nearly"), Vec::new()),
        ]);
        insta::assert_snapshot!(text, @r"
        a: 2 tools, 1 given
          given    read_only    a.read
          no rule  destructive  a.drop\u{202e}
        b: failed: it ended\nearly
        ");
    }
}
